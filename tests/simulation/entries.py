"""How a broker writes an entry of a checkpoint: the others stay as they are, whatever they say."""

from cleanerd.format.checkpoint import render_offset_checkpoint
from cleanerd.format.names import TopicPartition
from cleanerd.storage.checkpoints import read_offsets
from cleanerd.storage.replace import replace_file
from tests.simulation.stage import FILES


def set_entry(path: str, topic_partition: TopicPartition, offset: int | None) -> None:
    """None drops it."""
    before = read_offsets(FILES, path)
    after = {tp: other for tp, other in before.items() if tp != topic_partition}
    if offset is not None:
        after[topic_partition] = offset
    if after != before:
        replace_file(FILES, path, render_offset_checkpoint(after), like=None)
