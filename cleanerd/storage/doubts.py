"""Which changes at the end of a metadata log may never have been accepted by the quorum (architecture 2).

The high watermark of the log is not on disk (spec disk F4). A node appends what it gets, as leader or from the leader,
before that is committed; after a failure the quorum may go on without it. So of a node that has stopped, a record is certain
only if one of these holds:

1. a snapshot covers it
2. a record of a later leader epoch follows it in the log that is no control record. A controller appends such a record only
   after its listener was given all that was committed before that epoch (KafkaRaftClient.ListenerContext), and nothing of
   earlier epochs counts as committed before a record of its own epoch is (LeaderState.maybeUpdateHighWatermark, as in Raft).
   The LEADER_CHANGE record alone proves nothing: a node that is elected appends it on its own
3. most voters have it, or a later record: the leader of the last epoch, where it comes from, and this node, if a voter
4. its broker has applied it, or something behind it: a partition directory has the id of a topic that was created later, or
   by the same batch or metadata transaction. A broker applies what is committed, and whole batches and transactions only.
"""

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from cleanerd.config.keys import TOPIC_KEYS
from cleanerd.env.files import Files
from cleanerd.format.errors import FormatError
from cleanerd.format.metadata_records import RESOURCE_BROKER, RESOURCE_TOPIC, ConfigRecord
from cleanerd.format.names import PARTITION_METADATA, parse_partition_dir
from cleanerd.format.partition_metadata import parse_partition_metadata

_POLICY = "cleanup.policy"
FORBIDDING = (
    _POLICY, "min.compaction.lag.ms", "delete.retention.ms", "retention.ms", "retention.bytes",
    "remote.storage.enable",
)  # fmt: skip
"""Keys of a topic with another value of which something would have to stay."""
ELSEWHERE = ("confluent.tier.enable", "diskless.enable", "inkless.enable")
"""Settings of topics with which other brokers keep records outside of their log directories."""
_OF_TOPICS = frozenset((*FORBIDDING, *ELSEWHERE))
_OF_BROKERS = frozenset(synonym for key in FORBIDDING for synonym in TOPIC_KEYS[key].synonyms)


@dataclass(frozen=True, slots=True)
class Doubts:
    """Uncertain settings: keys of topics, and broker keys that are the defaults of topics."""

    topics: frozenset[tuple[str, str]] = frozenset()
    defaults: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Change:
    """Of a key, in the batch, or transaction, before `end_offset`. `topic`: whose value it is; None: that of the broker with
    the id `broker`, as text, or of all (""). `topic_id`: of a topic that was created.
    """

    end_offset: int
    key: str
    topic: str | None = None
    topic_id: UUID | None = None
    broker: str = ""


class Tail:
    """Reads a metadata log batch by batch, and collects changes that the quorum may not have accepted.

    `seen_ms`: the timestamp of the last batch. `voters` and `leader` of the last epoch are those that the log names, None
    for none: before kraft.version 1 it has no voters.
    """

    def __init__(self) -> None:
        self.seen_ms = 0
        self.leader: int | None = None
        self.voters: frozenset[int] | None = None
        self.epoch = -1
        self._controllers_epoch = -1  # in which the last controller has written
        self._changes: list[_Change] = []
        self._found: tuple[list[tuple[str, int]], Doubts] | None = (
            None  # as of which times of the directories
        )

    def batch(self, epoch: int, timestamp_ms: int, *, is_control: bool) -> None:
        """The next batch."""
        self.seen_ms = max(timestamp_ms, 0)
        if epoch > self.epoch:
            self.epoch, self.leader = epoch, None
        if epoch > self._controllers_epoch and not is_control:
            self._controllers_epoch = epoch
            self._changes.clear()  # rule 2

    def covered(self) -> None:
        """A snapshot has all that was collected."""
        self._changes.clear()

    def created(self, end_offset: int, topic: str, topic_id: UUID) -> None:
        """A topic was created."""
        self._changes.append(_Change(end_offset, _POLICY, topic, topic_id))

    def removed(self, end_offset: int, topic: str) -> None:
        """A topic was deleted."""
        self._changes.append(_Change(end_offset, _POLICY, topic))

    def configured(self, end_offset: int, record: ConfigRecord) -> None:
        """A topic, or a broker, has another value, or none of its own any more."""
        if record.resource_type == RESOURCE_TOPIC and record.name in _OF_TOPICS:
            self._changes.append(_Change(end_offset, record.name, record.resource_name))
        elif record.resource_type == RESOURCE_BROKER and record.name in _OF_BROKERS:
            self._changes.append(_Change(end_offset, record.name, broker=record.resource_name))

    def doubts(
        self,
        files: Files,
        log_dirs: Iterable[str],
        node_id: int | None,
        voters: frozenset[int],
        leader: int | None,
    ) -> Doubts:
        """The changes that the rules above leave uncertain; `log_dirs`: of this node. An unreadable one proves nothing."""
        holders = voters & {leader, node_id}
        if not self._changes or 2 * len(holders) > len(voters):
            return Doubts()
        # asked for each log, and the directories of a stopped broker do not change
        times = [(log_dir, _modified_ms(files, log_dir)) for log_dir in sorted(log_dirs)]
        if self._found is None or self._found[0] != times:
            self._found = times, self._behind(self._applied_end(files, [one for one, _ in times]), node_id)
        return self._found[1]

    def _behind(self, offset: int, node_id: int | None) -> Doubts:
        left = [one for one in self._changes if one.end_offset > offset]
        ours = ("", str(node_id))
        return Doubts(
            frozenset((one.topic, one.key) for one in left if one.topic is not None),
            frozenset(one.key for one in left if one.topic is None and one.broker in ours),
        )

    def _applied_end(self, files: Files, log_dirs: Iterable[str]) -> int:
        """The offset up to which the directories prove that the broker has applied the log (rule 4)."""
        partitions: dict[str, list[str]] = {}
        for log_dir in log_dirs:
            with contextlib.suppress(OSError):
                for name in files.list_names(log_dir):
                    if (parsed := parse_partition_dir(name)) is not None:
                        partitions.setdefault(parsed[0].topic, []).append(os.path.join(log_dir, name))
        created = (one for one in reversed(self._changes) if one.topic_id is not None)
        for one in created:
            if any(_has_id(files, path, one.topic_id) for path in partitions.get(one.topic or "", ())):
                return one.end_offset
        return 0


def _has_id(files: Files, directory: str, topic_id: UUID | None) -> bool:
    """Whether a partition directory is one of this topic."""
    try:
        return parse_partition_metadata(files.read(os.path.join(directory, PARTITION_METADATA))) == topic_id
    except (OSError, FormatError):
        return False


def _modified_ms(files: Files, log_dir: str) -> int:
    """When a directory got its last entry, 0 where that cannot be read."""
    try:
        return files.stat(log_dir).mtime_ms
    except OSError:
        return 0
