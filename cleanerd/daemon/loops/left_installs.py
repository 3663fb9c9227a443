"""What an earlier version left of an install by reassignment: the partition gets its old replicas back.

That version took a replica out of its partition, exchanged its log and put it back. Its journal is beside the log directory,
in `.cleanerd-install-<name>`, with partition directories made of links to closed segments (`prepared`, `rejected`). An
install is rolled back and never carried on: a replica that begins with a prepared log fetches its end from a leader that may
have dropped the tombstones in it (architecture 2).

what is found                           what is done
--------------------------------------  ---------------------------------------------------------------------------------
no journal, or its step is `prepared`   nothing: the cluster was not asked for anything, or all is done (`abandoned`)
the topic is gone or was created again  nothing (`dropped`)
another list of replicas                nothing, it stays (`foreign`)
this broker is out, or on its way out   a prepared directory under the partition's name is taken away, then the old list
                                        is asked for
it is on its way in                     waited for; if it is on its way out as well, which never ends, that is cancelled
another reassignment                    waited for
the old list                            nothing: the broker has its log (`returned`), or the prepared one (`installed`)
--------------------------------------  ---------------------------------------------------------------------------------

Then the directory goes, the journal last, so that a kill repeats the end. Before that nothing in there is deleted: if the
other replicas die meanwhile, it is the only copy. A directory stays where it is while the broker has it open, or may have it
open because it does not answer. So does a prepared one that a start of the broker has renamed to `-stray`: it may have taken
records.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

import structlog
from pydantic import Field, TypeAdapter

from cleanerd.config.model import TOPIC_NAME
from cleanerd.daemon.kafka_admin import KafkaAdmin
from cleanerd.daemon.parts import Parts
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.workers import Bell, Worker
from cleanerd.env.files import Files
from cleanerd.errors import CleanerdError, ClusterRefused, CorruptFile, Retryable
from cleanerd.format.names import TopicPartition
from cleanerd.format.uuid_text import render_uuid

_MARK = "cleanerd-install"
"""A file in a prepared directory, with the id of the install. Brokers ignore it."""
_PAUSE_S, _IDLE_S = 5.0, 300.0
_SETTLE_S = 15.0
"""A request to the cluster of a process that was killed is carried out within 10 s, or not at all."""
_UNKNOWN_TOPIC = 3
_log = structlog.get_logger("cleanerd")


@dataclass(frozen=True, slots=True)
class LeftInstall:
    """The journal, as far as it matters. `replicas`: the list that is brought back."""

    id: str
    topic: Annotated[str, Field(pattern=f"^{TOPIC_NAME}$")]
    partition: Annotated[int, Field(ge=0)]
    topic_id: str
    broker: int
    replicas: tuple[int, ...]
    step: str
    outcome: str | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """What the cluster reports. `topic_id` None: it has no such topic. `adding`, `removing`: of a reassignment under way.

    `is_alive`: the broker answers. `hosted_in`: the log directory in which it has the partition open.
    """

    topic_id: str | None
    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    is_alive: bool = True
    hosted_in: str | None = None


class _Waits(Retryable):
    """It cannot go on now, and why."""


class Replicas(KafkaAdmin):
    """The replicas of a partition. Raises ClusterRefused, from every method."""

    def see(self, left: LeftInstall) -> Seen:
        """What there is to see of an install."""
        return self._ask(lambda: self._see(left))  # type: ignore[no-any-return]

    def _see(self, left: LeftInstall) -> Seen:
        from kafka import TopicPartition as KafkaPartition  # noqa: PLC0415

        client, tp = self._client, KafkaPartition(left.topic, left.partition)
        nodes = client.describe_cluster()["brokers"]
        is_alive = any(one["broker_id"] == left.broker and not one.get("is_fenced") for one in nodes)
        hosted_in = self._hosted_in(left) if is_alive else None
        found = client.describe_topics([left.topic])[0]
        parts = [one for one in found["partitions"] if one["partition_index"] == left.partition]
        if found["error_code"] not in (0, _UNKNOWN_TOPIC):
            raise ClusterRefused(
                f"the cluster answers for {left.topic} with Kafka's error {found['error_code']}"
            )
        if found["error_code"] or not parts:
            return Seen(None, (), is_alive=is_alive, hosted_in=hosted_in)
        moving = client.list_partition_reassignments([tp]).get(tp, {})
        return Seen(
            render_uuid(UUID(str(found["topic_id"]))),
            tuple(moving.get("replicas", parts[0]["replica_nodes"])),
            tuple(moving.get("adding_replicas", ())),
            tuple(moving.get("removing_replicas", ())),
            is_alive,
            hosted_in,
        )

    def _hosted_in(self, left: LeftInstall) -> str | None:
        asked = {left.topic: [left.partition]}
        for log_dir in self._client.describe_log_dirs(asked, brokers=[left.broker])[0]["log_dirs"]:
            here = [
                replica
                for topic in log_dir["topics"]
                if topic["name"] == left.topic
                for replica in topic["partitions"]
                if replica["partition_index"] == left.partition and not replica["is_future_key"]
            ]
            if here and not log_dir["error_code"]:
                return str(log_dir["log_dir"])
        return None

    def reassign(self, left: LeftInstall, replicas: Sequence[int] | None) -> None:
        """Ask for a list of replicas; None: cancel the reassignment under way. Whether it comes to be shows later."""
        from kafka import TopicPartition as KafkaPartition  # noqa: PLC0415

        tp, wanted = KafkaPartition(left.topic, left.partition), None if replicas is None else list(replicas)
        refused = self._ask(lambda: self._client.alter_partition_reassignments({tp: wanted}))
        if refused.get(tp) is not None:
            asked = "to cancel a reassignment" if wanted is None else f"the replicas {wanted}"
            raise ClusterRefused(f"the cluster refuses {asked}: {refused[tp].__name__}")


class LeftInstalls:
    """Looks at each log directory at the start and, as one may come online later, every few minutes.

    `connect` opens a connection to the cluster, or raises ClusterRefused.
    """

    def __init__(self, parts: Parts, connect: Callable[[], Replicas] | None = None) -> None:
        self._parts = parts
        self._connect = connect or (lambda: Replicas.of(parts.configuration().broker))
        self._since_s: dict[str, float] = {}  # when this process found a journal, by log directory
        self._absent: set[str] = set()  # where the last look found no such topic
        self._reported: dict[str, str] = {}
        self.worker = Worker("cleanerd-left-installs", self.step, Bell(), parts.clock)

    def step(self) -> float:
        """One round."""
        for log_dir in self._parts.log_dirs:
            area = _Area(self._parts.files, log_dir)
            try:
                left = area.read()
                if left is not None:
                    self._go_on(area, left)
            except (CorruptFile, OSError) as error:
                if self._is_new(log_dir, str(error)):
                    _log.warning("install_unreadable", log_dir=log_dir, reason=str(error))
        return _PAUSE_S if self._since_s else _IDLE_S

    def _is_new(self, log_dir: str, reason: str) -> bool:
        is_new, self._reported[log_dir] = self._reported.get(log_dir) != reason, reason
        return is_new

    def _go_on(self, area: "_Area", left: LeftInstall) -> None:
        since_s = self._since_s.setdefault(area.log_dir, self._parts.clock.monotonic_s())
        try:
            if left.step == "prepared":
                self._end(area, left, "abandoned", "the cluster was not asked for anything")
                return
            with self._connect() as cluster:
                seen = cluster.see(left)
                if self._parts.clock.monotonic_s() - since_s < _SETTLE_S:
                    return
                if left.step != "clearing" and seen.topic_id == left.topic_id:
                    _restore(cluster, area, left, seen)
            self._check_absence(area, left, seen)
            outcome, reason = _outcome(area, left, seen)
            area.give_up(left, seen)
        except (CleanerdError, OSError) as error:
            if self._is_new(area.log_dir, str(error)):
                log, replicas = area.log(left), list(left.replicas)
                by_hand = f"restore the replicas {replicas} of {log} with kafka-reassign-partitions.sh"
                reason = f"{error}; if it cannot wait, {by_hand}, then delete {area.path}"
                _log.warning(
                    "install_waits", **log.fields(), step=left.step, replicas=replicas, reason=reason
                )
            return
        self._end(area, left, outcome, reason)

    def _check_absence(self, area: "_Area", left: LeftInstall, seen: Seen) -> None:
        """A broker that has just started may not know a topic yet. Raises _Waits."""
        is_again = area.log_dir in self._absent
        self._absent.discard(area.log_dir)
        if seen.topic_id is None and not is_again:
            self._absent.add(area.log_dir)
            raise _Waits(f"the cluster has no topic {left.topic}: is looked for once more")

    def _end(self, area: "_Area", left: LeftInstall, outcome: str, reason: str) -> None:
        replicas = list(left.replicas)
        self._parts.events.record("install", outcome, reason, area.log(left), replicas=replicas)
        area.delete()
        del self._since_s[area.log_dir]


def _restore(cluster: Replicas, area: "_Area", left: LeftInstall, seen: Seen) -> None:
    """One step towards the old list; returns when there is none to take. Raises _Waits, ClusterRefused, OSError."""
    changing = {*seen.adding, *seen.removing}
    rest = tuple(one for one in left.replicas if one != left.broker)
    if changing and (changing != {left.broker} or set(seen.replicas) != set(left.replicas)):
        raise _Waits(f"another reassignment is under way: adding {seen.adding}, removing {seen.removing}")
    if seen.adding and seen.removing:
        cluster.reassign(left, None)
        raise _Waits(f"a reassignment that adds and removes broker {left.broker} is cancelled")
    if seen.adding:
        raise _Waits(f"broker {left.broker} fetches the log again")
    if seen.removing or seen.replicas == rest:
        if area.is_ours(left):
            area.take_away(left, seen)
        cluster.reassign(left, left.replicas)
        raise _Waits(f"the cluster is asked for the replicas {list(left.replicas)}")


def _outcome(area: "_Area", left: LeftInstall, seen: Seen) -> tuple[str, str]:
    """The outcome of an install, and its reason."""
    if left.step == "clearing":
        return left.outcome or "returned", "only its directory was left"
    if seen.topic_id != left.topic_id:
        return "dropped", f"the topic with the id {left.topic_id} is gone, found {seen.topic_id}"
    if seen.replicas != left.replicas:
        return "foreign", f"the replicas were {left.replicas}, they were changed to {seen.replicas}"
    if area.is_ours(left) and area.is_open(left, seen):
        return "installed", f"the replicas are {left.replicas} again, the broker has loaded the prepared log"
    return "returned", f"the replicas are {left.replicas} again"


@dataclass(frozen=True, slots=True)
class _Area:
    """The directory that such an install had beside a log directory."""

    files: Files
    log_dir: str

    @property
    def path(self) -> str:
        parent, name = os.path.split(os.path.normpath(self.log_dir))
        return os.path.join(parent, f".cleanerd-install-{name}")

    def log(self, left: LeftInstall) -> LogId:
        return LogId(self.log_dir, TopicPartition(left.topic, left.partition))

    def read(self) -> LeftInstall | None:
        """The journal; None for none, and then nothing else is there any more. Raises CorruptFile, OSError."""
        path = os.path.join(self.path, "journal")
        if not self.files.exists(path):
            if self.files.exists(self.path):
                shutil.rmtree(self.path)
            return None
        content = self.files.read(path)
        try:
            fields = json.loads(content)
            if fields["version"] != 1:
                raise ValueError(f"version {fields['version']}")
            left: LeftInstall = TypeAdapter(LeftInstall).validate_python(fields["install"])
            if left.broker not in left.replicas:
                raise ValueError(f"broker {left.broker} is none of {left.replicas}")
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise CorruptFile(path, 0, "the journal of an install, version 1", repr(error)) from error
        return left

    def is_ours(self, left: LeftInstall) -> bool:
        """Whether the prepared directory has the name of the partition. Raises OSError."""
        path = os.path.join(self.log(left).directory, _MARK)
        return self.files.exists(path) and self.files.read(path) == left.id.encode()

    def is_open(self, left: LeftInstall, seen: Seen) -> bool:
        """Whether the broker has the partition open, and not in another directory that is seen to be another one."""
        if seen.hosted_in is None:
            return False
        here = self.log(left).directory
        there = os.path.join(seen.hosted_in, os.path.basename(here))
        return not (self.files.exists(there) and self.files.stat(there).inode != self.files.stat(here).inode)

    def take_away(self, left: LeftInstall, seen: Seen) -> None:
        """Free the partition's name of the prepared directory. Raises _Waits where the broker may have it open; OSError."""
        directory = self.log(left).directory
        if not seen.is_alive:
            raise _Waits(f"broker {left.broker} does not answer, and may have {directory} open")
        if self.is_open(left, seen):
            raise _Waits(f"broker {left.broker} has {directory} open")
        self.files.rename(directory, tempfile.mkdtemp(prefix="rejected.", dir=self.path))
        self.files.fsync_dir(self.log_dir)
        self.files.fsync_dir(self.path)

    def give_up(self, left: LeftInstall, seen: Seen) -> None:
        """Leave to the broker what is its own, before all else is deleted. Raises _Waits, OSError."""
        directory = self.log(left).directory
        if seen.hosted_in == self.log_dir and not self.files.exists(directory):
            raise _Waits(f"broker {left.broker} has {directory} open, which is not there: restart it")
        if not self.is_ours(left):
            return
        is_listed = seen.topic_id == left.topic_id and left.broker in seen.replicas
        if seen.is_alive and (self.is_open(left, seen) or (is_listed and seen.hosted_in is None)):
            self.files.unlink(os.path.join(directory, _MARK))
            self.files.fsync_dir(directory)
        else:
            self.take_away(left, seen)

    def delete(self) -> None:
        """All of it, the journal last. Raises OSError."""
        for name in self.files.list_names(self.path):
            if name.startswith(("prepared", "rejected")):
                shutil.rmtree(os.path.join(self.path, name))
        self.files.fsync_dir(self.path)
        shutil.rmtree(self.path)
