"""Is a result still wanted when it is committed? A policy may have changed while it waited.

What is asked again is what forbids a cleaning: cleanup.policy and min.compaction.lag.ms. The bounds that the broker sets
(high watermark, open transactions) only rise but for an unclean leader election, which the leader epochs show. A changed
max.compaction.lag.ms or dirty ratio makes a cleaning due or not, never wrong. So does a mute, or its end: it decides which
cleaner is to take the log next. A result that waits is committed all the same, unless the broker's cleaner was there first.
"""

from cleanerd.cleaning.result import CleanRequest
from cleanerd.config.load import Configuration
from cleanerd.config.model import TopicConfig
from cleanerd.env.files import Files
from cleanerd.errors import PolicyChanged, SourceChanged, raising_ours
from cleanerd.format.names import TopicPartition
from cleanerd.policy.cleanable import first_dirty_offset, first_young, non_active_from
from cleanerd.policy.tombstones import Stay
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.metadata_log import find_metadata
from cleanerd.storage.metadata_tail import MetadataTail


class ConfiguredNow:
    """`request.configuration`, with what the cluster has changed since, by its metadata log.

    Files that have changed since are not read again: one may be half written, and the run was asked for by the old ones.
    """

    def __init__(self, request: CleanRequest, files: Files) -> None:
        self._request, self._files = request, files
        self._found = request.configuration
        metadata = request.configuration and request.configuration.metadata
        self._tail = MetadataTail(files, [metadata.directory]) if metadata and metadata.is_whole else None
        self._is_read = False  # what could not be read is read again, news or not

    def now(self) -> Configuration | None:
        """The configuration with the changes since the last call; None if the host asks. Raises CleanerdError if unknown."""
        changed = sorted(self._found.changed_files) if self._found is not None else []
        if changed:
            raise SourceChanged(
                f"{changed[0]}: has changed since this run read it; what waits is committed or dropped by the new settings "
                "when it is run again"
            )
        if self._tail is not None and (self._tail.has_changed() or not self._is_read):
            self._is_read = False
            with raising_ours(self._request.config.metadata_log_dir):
                self._found = self._read()
            self._is_read = True
        return self._found

    def _read(self) -> Configuration:
        request, known = self._request, self._request.configuration
        assert known is not None and known.metadata is not None, "there is something to follow"  # noqa: PT018
        metadata = find_metadata(self._files, request.log_dirs, request.config.metadata_log_dir)
        if metadata is None:
            raise SourceChanged(f"{known.metadata.directory}: the metadata log is gone")
        return known.with_metadata(metadata)


def check_expired(directory: str, stay: Stay | None) -> None:
    """Raise PolicyChanged if tombstones and markers must stay now that a result has removed: it is made again with them.

    When it was planned all replicas had been in sync for long enough. One that is so again has met them: brokers are
    restarted one after the other, and a result that waits for the stop of its own is committed just then.
    """
    if stay is not None and stay.until_ms is None:
        raise PolicyChanged(f"{directory}: tombstones that it has removed must stay: {stay.reason}")


def check_wanted(log_dir: LogDir, tp: TopicPartition, config: TopicConfig, round_end: int) -> None:
    """Raise PolicyChanged unless a cleaning of the log up to `round_end` may be committed under `config`.

    Needs `.lock`. Raises SourceChanged for a log without segments, CorruptFile, OSError.
    """
    directory, now_ms = log_dir.partition(tp).path, log_dir.clock.now_ms()
    if not config.compact:
        raise PolicyChanged(f"{directory}: its cleanup.policy no longer contains compact")
    if config.min_compaction_lag_ms <= 0:
        return
    snapshot = log_dir.scan(tp, log_dir.checkpoints())
    if snapshot is None:
        raise SourceChanged(f"{directory}: is empty")
    facts = snapshot.facts(snapshot.high_watermark)
    dirty = non_active_from(facts.segments, first_dirty_offset(facts, now_ms)[0])
    young = first_young(dirty, config.min_compaction_lag_ms, now_ms)
    if young is not None and young < round_end:
        raise PolicyChanged(
            f"{directory}: segment {young} is younger than min.compaction.lag.ms, which is "
            f"{config.min_compaction_lag_ms} now"
        )
