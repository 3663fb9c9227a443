"""Whether a result is still wanted when it is committed: a policy may have changed while it waited.

What is asked again is what forbids a cleaning: cleanup.policy and min.compaction.lag.ms. The bounds that the broker sets
(high watermark, open transactions) only rise but for an unclean leader election, which the leader epochs tell. A changed
max.compaction.lag.ms or dirty ratio makes a cleaning due or not, never wrong. So does a mute, or its end: it says which
cleaner is to take the log next. A result that waits is committed all the same, unless the broker's cleaner was there first.
"""

from cleanerd.config.model import TopicConfig
from cleanerd.env.files import Files
from cleanerd.errors import PolicyChanged, SourceChanged
from cleanerd.format.names import TopicPartition
from cleanerd.policy.cleanable import first_dirty_offset, first_young, non_active_from
from cleanerd.storage.checkpoints import read_checkpoints
from cleanerd.storage.scan import scan_partition


def check_wanted(
    files: Files,
    log_dir: str,
    tp: TopicPartition,
    config: TopicConfig,
    round_end: int,
    *,
    is_kafka: bool,
    now_ms: int,
) -> None:
    """Raise PolicyChanged unless a cleaning of the log up to `round_end` may be committed under `config`.

    Needs `.lock`. Raises SourceChanged for a log without segments, CorruptFile, OSError.
    """
    if not config.compact:
        raise PolicyChanged(f"{log_dir}/{tp}: its cleanup.policy no longer contains compact")
    if config.min_compaction_lag_ms <= 0:
        return
    checkpoints = read_checkpoints(files, log_dir)
    snapshot = scan_partition(files, log_dir, tp, checkpoints, is_kafka=is_kafka)
    if snapshot is None:
        raise SourceChanged(f"{log_dir}/{tp}: is empty")
    facts = snapshot.facts(snapshot.high_watermark)
    dirty = non_active_from(facts.segments, first_dirty_offset(facts, now_ms)[0])
    young = first_young(dirty, config.min_compaction_lag_ms, now_ms)
    if young is not None and young < round_end:
        raise PolicyChanged(
            f"{log_dir}/{tp}: segment {young} is younger than min.compaction.lag.ms, which is "
            f"{config.min_compaction_lag_ms} now"
        )
