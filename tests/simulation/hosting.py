"""What a broker does when the controller gives it a replica or takes it away (spec disk E6, D2).

given    in the log directory that was told to it for this replica, or in any: the directory under the partition's name is
         opened as it is, or an empty one is made; then it follows the leader. One of another topic id is opened and not used
gone     the directory is renamed to `-delete`, its checkpoint entries are dropped, where the broker has no cleaner all but
         the first dirty offset (2.11); a minute later it is deleted
start    a directory of a replica that it has not, or of another topic id, or without one, becomes `-stray`. It does not
         start where two log directories have one of a partition
"""

import os
import shutil
from collections.abc import Callable

from cleanerd.format import names
from cleanerd.format.checkpoint import render_leader_epochs
from cleanerd.format.errors import FormatError
from cleanerd.format.partition_metadata import parse_partition_metadata, render_partition_metadata
from cleanerd.format.uuid_text import parse_uuid, render_uuid
from cleanerd.install.area import Area
from cleanerd.storage.checkpoints import LOG_DIR_CHECKPOINTS
from tests.install.cluster import BROKER
from tests.sim import kafka_startup
from tests.simulation import judge
from tests.simulation.directories import MARK
from tests.simulation.entries import set_entry
from tests.simulation.moving import Moving
from tests.simulation.replicas import Replicas
from tests.simulation.rules import Violation
from tests.simulation.stage import FILES, Stage, next_offset
from tests.simulation.writer import Log
from tests.simulation.writing import Writing

DELETE_DELAY_NS = 60 * 10**9


class Hosting:
    """Of the broker of a stage."""

    def __init__(
        self,
        stage: Stage,
        writing: Writing,
        replicas: Replicas,
        moving: Moving,
        log_dirs: Callable[[], list[str]],
    ) -> None:
        self._stage, self._writing, self._replicas, self._log_dirs = stage, writing, replicas, log_dirs
        self._moving = moving
        self._due: dict[str, int] = {}  # when a directory is deleted, ns

    def _topic(self, log: Log) -> str | None:
        """Id of the topic of which the broker has a replica."""
        partition = self._replicas.partitions[log.tp.topic]
        return partition.topic_id if BROKER in partition.replicas else None

    def is_due(self, log: Log) -> bool:
        """Whether there is anything to do."""
        topic = self._topic(log)
        return log.known != topic or self._is_behind(log) or any(self._due_of(log))

    def _is_behind(self, log: Log) -> bool:
        assert log.leader is not None
        return log.writer is not None and log.writer.log_end_offset != log.leader.log_end_offset

    def _due_of(self, log: Log) -> list[str]:
        now_ns = self._stage.clock.ns
        return [
            path
            for path, due_ns in self._due.items()
            if due_ns < now_ns and os.path.basename(path).startswith(f"{log.tp}.")
            if os.path.dirname(path) in self._log_dirs()
        ]

    def follow(self, log: Log, told: list[str]) -> None:
        """What is due for a partition."""
        topic = self._topic(log)
        if log.known not in (None, topic):
            self._drop(log)
            told.append("replica gone")
        if topic is not None and log.known is None:
            self._choose_dir(log, told)
            self._host(log, topic, told)
        if self._is_behind(log):
            most = 1000 if self._stage.is_calm else self._stage.chance.choice([2, 1000])
            told.append(f"follows to {log.fetch(most)}")
        for path in self._due_of(log):
            shutil.rmtree(path, ignore_errors=True)
            del self._due[path]

    def load(self, log: Log, told: list[str]) -> None:
        """The broker starts."""
        log.known = log.hosted = None
        found, topic = [], self._topic(log)
        for log_dir in self._log_dirs():
            directory = f"{log_dir}/{log.tp}"
            if os.path.isdir(directory) and topic is not None and _id_in(directory) == topic:
                found.append(log_dir)
            elif os.path.isdir(directory):
                told.append(f"is a stray in {log_dir}")
                self._rename(directory, "-stray")
                log.is_exchanged |= log_dir == log.log_dir
        if len(found) > 1:
            raise Violation(f"a broker does not start: {log.tp} lies in {found}")
        if found:
            log.is_exchanged |= log.log_dir != found[0]
            log.log_dir = found[0]
        for log_dir in self._log_dirs():
            for name in FILES.list_names(log_dir):
                if name.startswith(f"{log.tp}.") and name.endswith("-delete"):
                    self._due.setdefault(f"{log_dir}/{name}", self._stage.clock.ns + DELETE_DELAY_NS)
        if found and topic is not None:
            self._host(log, topic, told)
        else:
            self._moving.abandon(log)
        self.follow(log, told)

    def _choose_dir(self, log: Log, told: list[str]) -> None:
        """Where a new replica goes."""
        partition = self._replicas.partitions[log.tp.topic]
        wanted, partition.preferred = partition.preferred, None
        if wanted not in self._log_dirs():
            wanted = self._stage.chance.choice(self._log_dirs())
        if wanted != log.log_dir:
            told.append(f"goes to {wanted}")
            log.log_dir, log.is_exchanged = wanted, True

    def _drop(self, log: Log) -> None:
        log.is_exchanged, log.is_whole = True, False
        log.close()
        self._moving.abandon(log)
        was_open = log.hosted is not None
        log.known = log.hosted = None  # a broker that is killed in the middle of it has no replica any more
        if was_open:
            self._due[self._rename(log.directory, "-delete")] = self._stage.clock.ns + DELETE_DELAY_NS
        for name in LOG_DIR_CHECKPOINTS:
            if name != names.CLEANER_OFFSET_CHECKPOINT or self._moving.has_cleaner:
                set_entry(f"{log.log_dir}/{name}", log.tp, None)

    def _rename(self, directory: str, ending: str) -> str:
        chance = self._stage.chance
        path = f"{directory}.{chance.getrandbits(128):032x}{ending}"
        os.rename(directory, path)
        if chance.random() < 0.5:
            FILES.fsync_dir(os.path.dirname(directory))
        return path

    def _host(self, log: Log, topic: str, told: list[str]) -> None:
        log.known = topic
        if not os.path.isdir(log.directory):
            self._make(log, topic)
        log.hosted = _id_in(log.directory) or topic
        if log.hosted != topic:
            told.append(f"its directory is of {log.hosted}: not used")
            return
        report = kafka_startup.start(FILES, log.directory, next_offset)
        if report.zero_indexes:
            raise Violation(f"a broker found no index, and made zeros: {report.zero_indexes}")
        is_ours, is_exchanged = os.path.exists(f"{log.directory}/{MARK}"), log.is_exchanged
        if is_ours and not os.path.exists(f"{log.directory}/{names.LEADER_EPOCH_CHECKPOINT}"):
            raise Violation(f"{log.directory}: was prepared without leader epochs")
        self._writing.open(log)
        if not is_ours:  # a writer begins a log without any
            self._write(log, names.LEADER_EPOCH_CHECKPOINT, render_leader_epochs([(0, 0)]))
        assert log.writer is not None
        assert log.leader is not None
        end = log.writer.log_end_offset
        told.append(f"opened up to {end}{', as prepared' if is_ours else ''}")
        if is_ours:
            self._stage.counts["prepared directories opened"] += 1
            install = Area(FILES, log.log_dir).journal.read()
            is_its = install is not None and install.topic_partition == log.tp
            if install is not None and is_its and is_exchanged and end != install.end_offset:
                raise Violation(f"{log.tp} was prepared up to {end}, must be {install.end_offset}")
        if end > log.leader.log_end_offset:
            self._moving.abandon(log)
            log.writer.truncate(log.leader.log_end_offset)
            self._writing.truncated(log, log.leader.log_end_offset)

    def _make(self, log: Log, topic: str) -> None:
        os.mkdir(log.directory)
        self._write(log, names.PARTITION_METADATA, render_partition_metadata(parse_uuid(topic)))
        for path in (log.directory, log.log_dir):
            FILES.fsync_dir(path)
        log.model.exchanged(0, judge.Lying((), ()))

    @staticmethod
    def _write(log: Log, name: str, content: bytes) -> None:
        FILES.write(f"{log.directory}/{name}", content)
        FILES.fsync(f"{log.directory}/{name}")

    def check_nothing_left(self) -> None:
        """Of any install. Raises Violation."""
        areas = [Area(FILES, log_dir).path for log_dir in self._stage.log_dirs]
        left = [area for area in areas if os.path.exists(area)]
        left += [
            f"{log_dir}/{name}/{MARK}"
            for log_dir in self._stage.log_dirs
            for name in os.listdir(log_dir)
            if not name.endswith("-delete") and os.path.exists(f"{log_dir}/{name}/{MARK}")
        ]
        if left:
            raise Violation(f"an install has left {left}")


def _id_in(directory: str) -> str | None:
    try:
        content = FILES.read(f"{directory}/{names.PARTITION_METADATA}")
        return render_uuid(parse_partition_metadata(content))
    except (FileNotFoundError, FormatError):
        return None
