"""Keeps the inventory up to date: scans directories with watcher events at once, and all of them periodically."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from cleanerd.daemon.inventory.inventory import ScanReport
from cleanerd.daemon.inventory.watch import LogDirWatcher
from cleanerd.daemon.telemetry.event_log import EventLog
from cleanerd.daemon.telemetry.metrics import Metrics
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.condition import Conditions
from cleanerd.daemon.work.jobs import Jobs
from cleanerd.daemon.work.judge import Judge
from cleanerd.daemon.work.moves import Moves
from cleanerd.daemon.work.share import share
from cleanerd.daemon.workers import Bell, Bells
from cleanerd.format import names
from cleanerd.storage.log_dir import Owner

_REST_S = 50e-6
"""Pause for each log before the next look at changes, ten times what one costs: jobs look at their logs themselves."""

_log = structlog.get_logger("cleanerd")


@dataclass
class Scanner:
    """Scans at once when asked to, and in a thread of its own every cleanerd.scan.interval.ms."""

    log_dirs: Sequence[str]
    conditions: Conditions
    judge: Judge
    moves: Moves
    jobs: Jobs
    events: EventLog
    metrics: Metrics
    bells: Bells

    def __post_init__(self) -> None:
        self._inventory, self._ownership = self.conditions.inventory, self.conditions.ownership
        self._obstacles = self.conditions.states.obstacles
        self._scanned_s = -math.inf
        self._rested_s = -math.inf  # until then changes wait for one scan of all of them
        self._logged_offline: frozenset[str] = frozenset()
        self._logged_shares: dict[str, object] = {}  # by log directory
        self.bell = Bell()
        self.watcher = LogDirWatcher(self.log_dirs, self._changed)

    def scan(self) -> None:
        """Scan every log directory, and recover interrupted commits."""
        self._scanned_s = self.conditions.clock.monotonic_s()
        ownership, offline = self._ownership, self._ownership.take(self.log_dirs)
        ownership.observe(self.log_dirs)
        for log_dir in (one for one in self.log_dirs if one not in offline):
            if ownership.owner_of(log_dir) is None and not ownership.is_yielding(log_dir):
                ownership.recover(log_dir)  # it may have failed in the middle of a commit, and work again
        self._obstacles.offline = offline
        usable, were_offline = self._online(), self._logged_offline
        with self.metrics.phase("scan"):
            self._take_in(self._inventory.scan(usable))
        usable = self._online()
        known = {entry.log for entry in self._inventory.entries()}
        reported = self.events.logs() | {failure.log for failure in self.conditions.failures.all()}
        for log in reported - known:  # it vanished before its work ended, or while no daemon ran
            if log.log_dir in usable:
                self._forget(log)
        self.judge.rule_on([log for log in list(self._obstacles.ignored) if log.log_dir in usable])
        self.moves.remember(were_offline)
        self.metrics.scanned(self.log_dirs, self._obstacles.offline)
        self._log_shares()
        self.watcher.follow()

    def refresh(self) -> None:
        """Scan only directories with events."""
        self._take_in(self._inventory.scan_touched(self._online()))
        self.moves.remember()

    def step(self) -> float:
        """One round."""
        interval_s = self.conditions.configuration().broker.scan_interval_ms / 1000
        now_s = self.conditions.clock.monotonic_s()
        if now_s - self._scanned_s < interval_s:
            if now_s < self._rested_s:
                return self._rested_s - now_s
            self.refresh()
            self._rested_s = now_s + _REST_S * len(self._inventory.entries())
            return interval_s
        for failure in self.conditions.failures.all():
            # A file that is repaired in place does not change its directory.
            self._inventory.touch_log(failure.log)
        self.scan()
        return interval_s

    def _online(self) -> list[str]:
        return self._obstacles.online(self.log_dirs)

    def _take_in(self, report: ScanReport) -> None:
        inventory = self._inventory
        self._obstacles.offline.update(report.offline)
        self._log_offline(self._obstacles.offline)
        for log in report.vanished:
            self._forget(log)
        back = []
        if report.back_online:
            back = [log for log in inventory.logs() if log.log_dir in report.back_online]
        others = map(inventory.twins, (*report.appeared, *report.vanished, *back))
        twins = [twin for some in others for twin in some if inventory.facts(twin) is not None]
        changed = {*report.appeared, *report.changed, *back, *twins}
        self.judge.rule_on(sorted({*changed, *self.judge.new_logs(), *self.judge.note_lives()}))
        self._stop_unwanted()
        for log_dir in self._online():
            if self._ownership.owner(log_dir) not in (Owner.NOBODY, Owner.WRITER):
                self.conditions.brokers_cleaner.observe(log_dir, self._ownership.owner_of(log_dir))
        self._obstacles.full = self._ownership.full_dirs(self.log_dirs, self.conditions.due_logs)
        with self.bells.progressed:
            self.bells.progressed.notify_all()
        if report.appeared or report.changed or report.back_online:
            self.bells.work.ring()
        if any(k is not None and k.contents.is_staged for k in map(inventory.facts, report.changed)):
            self.bells.commit.ring()

    def _forget(self, log: LogId) -> None:
        self.conditions.states.forget(log)
        self.conditions.failures.forget(log)
        self.judge.forget(log)
        self.events.forget(log)
        self.metrics.forget(log)

    def _stop_unwanted(self) -> None:
        """End cleanings whose result nobody would commit, before they stage it."""
        for log in self.jobs.logs():
            unwanted = self.conditions.why_unwanted(log)
            if unwanted is not None:
                self.conditions.states.stop(log, unwanted)

    def _log_shares(self) -> None:
        """Log once what is cleaned in each log directory and what is left to its broker, and again after a change."""
        for log_dir in self._online():
            found = share(self.conditions, log_dir)
            if self._logged_shares.get(log_dir) != found.kind:
                self._logged_shares[log_dir] = found.kind
                _log.info(
                    "work_shared", log_dir=log_dir, cleans=found.cleans, leaves=found.leaves, share=found.text
                )

    def _log_offline(self, offline: Mapping[str, str]) -> None:
        """Log once that a directory went offline, and once that it is back."""
        for log_dir in sorted(offline.keys() - self._logged_offline):
            _log.warning("log_dir_offline", log_dir=log_dir, reason=offline[log_dir])
        for log_dir in sorted(self._logged_offline - offline.keys()):
            _log.info("log_dir_online", log_dir=log_dir)
        self._logged_offline = frozenset(offline)

    def _changed(self, log_dir: str, name: str | None) -> None:
        if name == names.LOCK:  # whose it was does not matter
            self.bells.commit.ring()
            return
        if name is not None:
            self._inventory.touch(log_dir, name)
        # events were lost, or it may be a log directory now
        if name is None or log_dir in self._obstacles.offline:
            self._scanned_s = -math.inf
        self.bell.ring()
