"""How much of a log is written before it is committed, and how much room that takes at most."""

from cleanerd.config.model import CleanerdConfig, TopicConfig

_BYTES_PER_CORE = 1 << 30
"""Of segments in a round: some 8 s of work. Begin and end of one keep all cores waiting for some 0.2 s."""
_ROUND_S = 10
"""A round takes so long, about, where I/O is limited, and keeps no core busy."""
_BYTES_PER_KEY_BYTE = 8
"""The keys of the dirty section, where they are looked up with the rewrite, are handed to the tasks in each round."""


def round_bytes(cores: int, config: CleanerdConfig, keys_bytes: int = 0) -> float:
    """Bytes of a round; a segment group that is larger is one. `keys_bytes`: of the keys that its tasks share."""
    rate = min(
        config.io_max_bytes_per_second / 2,  # what is read is written, too
        config.io_max_read_bytes_per_second,
        config.io_max_write_bytes_per_second,
    )
    return max(min(_BYTES_PER_CORE * cores, _ROUND_S * rate), _BYTES_PER_KEY_BYTE * keys_bytes)


def most_written_bytes(size_bytes: int, cores: int, config: CleanerdConfig, topic: TopicConfig) -> float:
    """Bytes that a cleaning of a log of `size_bytes` writes at most before it deletes, if its result does not wait."""
    keys_bytes = int(config.dedupe_buffer_size_bytes * config.io_buffer_load_factor)
    return min(size_bytes, max(round_bytes(cores, config, keys_bytes), topic.segment_bytes))
