"""Staged results that reach their running broker: which one is next, and one install at a time (`cleanerd.install`).

What was asked for goes first and need be neither allowed nor worth it; with `cleanerd.install=reassign` all others follow,
the one that frees most first, within the window. A result that cannot be installed waits for a restart as before, and is not
looked at again for a while. An install that another process has left is gone on with first, whatever is configured.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog

from cleanerd.config.load import Configuration
from cleanerd.daemon.inventory.installed import Installed
from cleanerd.daemon.inventory.inventory import Inventory
from cleanerd.daemon.kafka_replicas import KafkaReplicas
from cleanerd.daemon.telemetry import metric_table as table
from cleanerd.daemon.telemetry.event_log import EventLog
from cleanerd.daemon.telemetry.history import INSTALLED, HistoryFile
from cleanerd.daemon.telemetry.metrics import Metrics, MetricSample
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.values.models import InstallView
from cleanerd.daemon.work.ownership import Ownership
from cleanerd.daemon.work.states import PartitionStates
from cleanerd.daemon.work.wanted import Wanted
from cleanerd.env.clock import Clock
from cleanerd.env.files import Files
from cleanerd.errors import CleanerdError, CorruptFile
from cleanerd.format.errors import FormatError
from cleanerd.format.meta_properties import parse_meta_properties
from cleanerd.format.names import META_PROPERTIES, PARTITION_METADATA
from cleanerd.install.area import Area, NotInstallable
from cleanerd.install.cluster import Claimed
from cleanerd.install.driver import Driver, Offer, offer
from cleanerd.install.machine import Limits
from cleanerd.install.prepare import Prepared
from cleanerd.install.values import Install, Outcome, Step
from cleanerd.policy.installing import is_allowed, is_in_window, why_not_worth

_REFUSED_FOR_S = 300.0
_BEATEN_FOR_S = 2.0
"""Another broker's install takes a second or two, and says nothing about this log."""
_RIVAL_MAX_S = 600.0
"""A claim that is held for longer is told: its cleanerd may be gone for good."""
_UNDER_WAY_S, _IDLE_S = 0.05, 1.0
_LONG_STEP_S = 10.0
_CATCH_UP_MS = 3_600_000
_OUT = (Step.REMOVING, Step.MOVING, Step.ADDING, Step.EVICTING)
_log = structlog.get_logger("cleanerd")


@dataclass(slots=True)
class _Rival:
    """Another install that has the claim."""

    reason: str
    since_s: float
    until_s: float = 0.0
    is_told: bool = False


@dataclass(slots=True)
class Installs:
    """Thread-safe; `step` is for one thread. `connect` opens a connection to the cluster, or raises ClusterRefused."""

    files: Files
    clock: Clock
    log_dirs: Sequence[str]
    configuration: Callable[[], Configuration]
    inventory: Inventory
    states: PartitionStates
    ownership: Ownership
    wanted: Wanted
    events: EventLog
    history: HistoryFile
    metrics: Metrics
    connect: Callable[[], KafkaReplicas]
    pause: Callable[[float], object]
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _asked: list[LogId] = field(default_factory=list)
    _ended: dict[LogId, InstallView] = field(default_factory=dict)
    _refused_s: dict[LogId, float] = field(default_factory=dict)
    _driver: Driver | None = None
    _cluster: KafkaReplicas | None = None
    _waits: str | None = None
    _rival: "_Rival | None" = None
    _unreadable: dict[str, str] = field(default_factory=dict)  # why, by log directory: told once
    _taken: LogId | None = None

    def __post_init__(self) -> None:
        self.inventory.installed.note(self.history.all(INSTALLED, _installed).values())

    # -- what the thread does -----------------------------------------------------------------------------------

    def step(self, alive: Callable[[], object] = lambda: None) -> bool:
        """Go on with the install that is under way, or begin the next; whether to be called again at once.

        `alive` is called now and then in what may take long.
        """
        if self._driver is None:
            self._resume()
        if self._driver is not None:
            self._go_on(self._driver)
        elif (log := self._next()) is not None:
            self._begin(*log, alive)
        else:
            self._disconnect()
        return False

    def pause_s(self) -> float:
        """How long until the next step: a step that takes long waits for a broker, which is not asked all the time."""
        driver = self._driver
        if driver is None or self._waits is not None:
            return _IDLE_S
        return _UNDER_WAY_S if driver.in_step_s < _LONG_STEP_S else _IDLE_S

    def close(self, timeout_s: float) -> None:
        """The thread has ended: bring what is under way to its end, or leave it to the next process in its journal."""
        deadline_s = self.clock.monotonic_s() + timeout_s
        while self._driver is not None and self.clock.monotonic_s() < deadline_s:
            self._go_on(self._driver)
            with self._changed:
                self._changed.wait(self.pause_s())  # not `pause`, which ends at once when the daemon stops
        self._disconnect()

    def _resume(self) -> None:
        """Find what another process has left; a log directory may come online later than the others."""
        for log_dir in self.log_dirs:
            area = Area(self.files, log_dir)
            try:
                found = area.journal.read()
                if found is None:
                    area.sweep()
            except (CorruptFile, OSError) as error:
                if self._unreadable.get(log_dir) != str(error):
                    _log.warning("install_unreadable", log_dir=log_dir, reason=str(error))
                self._unreadable[log_dir] = str(error)
                continue
            if found is not None:
                self._driver = self._drive(area, None, found)
                self._take(_log_of(found))
                return

    def _next(self) -> tuple[LogId, bool] | None:
        """The next log and whether it was requested."""
        if self._is_beaten:
            return None
        with self._changed:
            if self._asked:
                return self._asked[0], True
        config, now_s = self.configuration().broker, self.clock.monotonic_s()
        if config.install != "reassign" or not is_in_window(config.install_window, self.clock.now_ms()):
            return None
        found = []
        for log in self.inventory.staged():
            known = self.inventory.facts(log)
            if known is None or known.contents.staged is None or self._refused_s.get(log, 0) > now_s:
                continue
            is_free = self.states.is_free(log) and self.ownership.owner_of(log.log_dir) is not None
            if is_free and is_allowed(log.topic_partition.topic, config.install_topics):
                found.append((-known.contents.staged.freed_bytes, log))
        return (min(found)[1], False) if found else None

    def _begin(self, log: LogId, is_asked: bool, alive: Callable[[], object]) -> None:
        try:
            offered = self._offered(log, self._connected())
            if not is_asked:
                self._check_worth(log, offered.prepared)
            if not self._take(log):
                raise NotInstallable(f"{log}: is {self.states.state(log)}")
        except Claimed as error:  # then again; who has asked waits
            self._beaten(log, str(error))
            return
        except (CleanerdError, OSError) as error:
            self._give_up(log, str(error))
            return
        area = Area(self.files, log.log_dir)
        driver = self._driver = self._drive(area, self._cluster, offered.install)
        try:
            self.wanted.check(log, offered.prepared.round_end)
            driver.begin(offered.prepared, self.pause, alive)
            self._remember(log, area, offered.install)
        except (CleanerdError, OSError) as error:
            if isinstance(error, Claimed):
                self._beaten(log, str(error))
            driver.abandon(str(error))

    def _offered(self, log: LogId, cluster: KafkaReplicas) -> Offer:
        """Changes nothing. Raises NotInstallable and what else stands against it."""
        if self.ownership.owner_of(log.log_dir) is None:
            raise NotInstallable(
                f"{log.log_dir}: no broker runs there; `cleanerctl commit {log}` commits the result"
            )
        if self.configuration().topic(log.topic_partition.topic).remote_storage_enable:
            raise NotInstallable(f"{log}: its topic is tiered")
        if (target := self.inventory.moving_to(log)) is not None:
            raise NotInstallable(f"{log}: its broker moves it to {target}")
        area = Area(self.files, log.log_dir)
        area.check_place(self.log_dirs)
        node_id = self._node_id(log.log_dir)
        return offer(self.files, cluster, area, log.topic_partition, node_id, self.clock)

    def _check_worth(self, log: LogId, prepared: Prepared) -> None:
        """Raises NotInstallable where the gain is not worth it."""
        config = self.configuration().broker
        reason = why_not_worth(
            freed_bytes=prepared.freed_bytes,
            size_bytes=prepared.size_bytes,
            tail_bytes=prepared.tail_bytes,
            min_reclaim_bytes=config.install_min_reclaim_bytes,
            min_reclaim_ratio=config.install_min_reclaim_ratio,
            max_tail_bytes=config.install_max_tail_bytes,
        )
        if reason is not None:
            raise NotInstallable(f"{log}: {reason}")

    def _node_id(self, log_dir: str) -> int:
        path = os.path.join(log_dir, META_PROPERTIES)
        try:
            found = parse_meta_properties(self.files.read(path)).node_id
        except FormatError as error:
            raise CorruptFile(path, error.position, error.expected, error.found) from error
        if found is None:
            raise NotInstallable(f"{path}: expected node.id, found none")
        return found

    def _drive(self, area: Area, cluster: KafkaReplicas | None, install: Install) -> Driver:
        limits = Limits(self.configuration().broker.install_step_timeout_ms, _CATCH_UP_MS)
        # `_go_on` sets the connection before each step: it may have to be made again.
        return Driver(area, cluster, self.clock, limits, install, self._told)  # type: ignore[arg-type]

    def _go_on(self, driver: Driver) -> None:
        try:
            driver.cluster = self._connected()
            done = driver.step()
        except (CleanerdError, OSError) as error:
            if self._waits != str(error):
                self._waits = str(error)
                log = _log_of(driver.install)
                _log.warning(
                    "install_waits", **log.fields(), step=driver.install.step.value, reason=self._waits
                )
            return
        self._waits = None
        if done is not None:
            self._over(done)

    def _told(self, install: Install) -> None:
        """A step is in the journal."""
        if install.step is not Step.CLEARING:
            self._record(install, "running")

    def _over(self, install: Install) -> None:
        log, outcome = _log_of(install), install.outcome or Outcome.ABANDONED
        self._driver = None
        if outcome is Outcome.INSTALLED:
            self.metrics.installed(log.log_dir, install.freed_bytes)
        else:
            self.history.delete(INSTALLED, log.directory)
            if not self._is_beaten:
                self._refused_s[log] = self.clock.monotonic_s() + _REFUSED_FOR_S
        self._record(install, outcome.value)
        self.inventory.touch(log.log_dir, str(log.topic_partition))
        if self._taken is not None:
            self.states.done_cleaning(self._taken)
            self._taken = None
        if not (self._is_beaten and outcome is Outcome.ABANDONED):  # else it is tried again
            self._end(log, _view(install, outcome.value))

    def _record(self, install: Install, outcome: str) -> None:
        self.events.record_log(
            "install", outcome, _log_of(install), install.reason, step=install.step.value,
            replicas=list(install.replicas), freed_bytes=install.freed_bytes, tail_bytes=install.tail_bytes,
        )  # fmt: skip

    def _remember(self, log: LogId, area: Area, install: Install) -> None:
        """Up to where the log will be clean, before a scan sees its new directory."""
        for directory in (area.prepared, log.directory):
            with suppress(OSError):
                inode = self.files.stat(os.path.join(directory, PARTITION_METADATA)).inode
                installed = Installed(inode, install.round_end, self.clock.now_ms())
                self.inventory.installed.note([(log, installed)])
                self.history.put(INSTALLED, log.directory, {**log.fields(), **installed.fields()})
                return

    def _give_up(self, log: LogId, reason: str) -> None:
        self._refused_s[log] = self.clock.monotonic_s() + _REFUSED_FOR_S
        self._end(log, _refusal(log, reason))

    @property
    def _is_beaten(self) -> bool:
        """Whether another install has had the claim a moment ago."""
        return self._rival is not None and self._rival.until_s > self.clock.monotonic_s()

    def _beaten(self, log: LogId, reason: str) -> None:
        now_s = self.clock.monotonic_s()
        if self._rival is None or self._rival.reason != reason:
            self._rival = _Rival(reason, now_s)
        self._rival.until_s = now_s + _BEATEN_FOR_S
        if not self._rival.is_told and now_s - self._rival.since_s > _RIVAL_MAX_S:
            self._rival.is_told = True
            _log.warning("install_waits", **log.fields(), step=Step.PREPARED.value, reason=reason)

    def _end(self, log: LogId, view: InstallView) -> None:
        with self._changed:
            if log in self._asked:
                self._asked.remove(log)
            self._ended[log] = view
            self._changed.notify_all()

    def _take(self, log: LogId) -> bool:
        """Keep everybody else away from a log; one that an operator has paused is kept away already."""
        if self.states.try_start_all([log]):
            self._taken = log
            return True
        return False

    def _connected(self) -> KafkaReplicas:
        if self._cluster is None:
            self._cluster = self.connect()
        return self._cluster

    def _disconnect(self) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.__exit__()

    # -- what clients ask ---------------------------------------------------------------------------------------

    def samples(self) -> Iterator[MetricSample]:
        """For the metrics."""
        driver = self._driver
        is_out = driver is not None and driver.install.step in _OUT
        yield table.INSTALL_OUT, (), driver.age_s if driver is not None and is_out else 0.0

    def look(self, log: LogId) -> InstallView:
        """Whether an install of this log could begin now, or how far it is. Changes nothing."""
        if self._driver_of(log) is not None:
            return self._now(log)
        try:
            with self.connect() as cluster:
                found = self._offered(log, cluster)
        except (CleanerdError, OSError) as error:
            return _refusal(log, str(error))
        return _view(found.install, "possible")

    def ask(self, log: LogId, wait_s: float) -> InstallView:
        """Install this log next; what became of it within `wait_s`, or how far it is."""
        with self._changed:
            if log not in self._asked and self._driver_of(log) is None:
                self._ended.pop(log, None)
                self._asked.append(log)
            self._changed.wait_for(partial(self._ended.get, log), wait_s)
            return self._ended.get(log) or self._now(log)

    def abort(self, log: LogId) -> InstallView:
        """Do not begin, or take back."""
        with self._changed:
            if log in self._asked:
                self._asked.remove(log)
            if (driver := self._driver_of(log)) is not None:
                driver.is_abort_asked = True
            return self._ended.get(log) or self._now(log)

    def _driver_of(self, log: LogId) -> Driver | None:
        """Of its install, if that is under way."""
        driver = self._driver
        return driver if driver is not None and _log_of(driver.install) == log else None

    def _now(self, log: LogId) -> InstallView:
        if (driver := self._driver_of(log)) is not None:
            view = _view(driver.install, "running")
            return view.model_copy(update={"reason": self._waits or view.reason or driver.failure})
        if log not in self._asked:
            return _state(log, "abandoned")
        return _state(
            log, "waiting", reason=self._rival.reason if self._rival is not None and self._is_beaten else None
        )


def _log_of(install: Install) -> LogId:
    return LogId(install.log_dir, install.topic_partition)


def _view(install: Install, outcome: str) -> InstallView:
    return _state(
        _log_of(install),
        outcome,
        reason=install.reason,
        step=install.step.value if outcome == "running" else None,
        replicas=install.replicas,
        freed_bytes=install.freed_bytes,
        tail_bytes=install.tail_bytes,
    )


def _refusal(log: LogId, reason: str) -> InstallView:
    return _state(log, "refused", reason=reason)


def _state(log: LogId, outcome: str, **more: Any) -> InstallView:
    return InstallView.model_validate({**log.fields(), "outcome": outcome, **more})


def _installed(fields: Mapping[str, Any]) -> tuple[LogId, Installed]:
    """What an earlier version put down has no time: such a log is cleaned from its start."""
    noted_ms = int(fields.get("noted_ms", 0))
    return LogId.of_fields(fields), Installed(int(fields["inode"]), int(fields["offset"]), noted_ms)
