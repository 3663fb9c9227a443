"""Keeps the inventory up to date: scans at once what the watcher saw change, and everything now and then."""

import math
import os
from collections.abc import Iterable, Mapping, Set
from functools import partial
from typing import Any

import structlog

from cleanerd.cleaning.knowledge import Knowledge, is_known
from cleanerd.config.load import Configuration
from cleanerd.daemon.inventory.inventory import ScanReport
from cleanerd.daemon.inventory.watch import LogDirWatcher
from cleanerd.daemon.parts import Parts
from cleanerd.daemon.store import MOVING
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.share import share
from cleanerd.daemon.work.states import NOT_COMPACTED
from cleanerd.daemon.workers import Bell, Worker
from cleanerd.errors import CleanerdError, attempt, guarded
from cleanerd.format import names
from cleanerd.format.names import TopicPartition
from cleanerd.storage.log_dir import Owner, futures, why_two_copies

_NEW_FOR_S = 60.0
"""A broker creates a partition before it writes its topic id, and before we have read of the topic: for so long that is
nothing to warn of."""

_REST_S = 50e-6
"""For each log the next look at changes waits so long, ten times what one costs: jobs look at theirs by themselves."""
_SHOWN = 5

_log = structlog.get_logger("cleanerd")


class Scanner:
    """Scans at once when asked to, and in a thread of its own every cleanerd.scan.interval.ms."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._scanned_s = -math.inf
        self._rested_s = -math.inf  # until then what changes is left for one look at all of it
        self._reported_offline: frozenset[str] = frozenset()
        self._bell = Bell()
        self._shares: dict[str, object] = {}  # as they were told, by log directory
        self._new_since_s: dict[LogId, float] = {}  # logs that may be of a topic that is just being created
        self._lives = dict[str, tuple[Owner, str | None]]()  # as which brokers the logs were judged
        self._moving = dict(parts.store.all(MOVING, _partitions))  # as the history knows it
        for log_dir, moving in self._moving.items():
            parts.inventory.remember_futures(log_dir, moving)
        self.watcher = LogDirWatcher(parts.log_dirs, self._seen_change)
        self.worker = Worker("cleanerd-scanner", self.step, self._bell, parts.clock)

    def scan(self) -> None:
        """A full scan."""
        parts = self._parts
        self._scanned_s = parts.clock.monotonic_s()
        ownership, offline = parts.ownership, parts.ownership.take(parts.log_dirs)
        for log_dir in (one for one in parts.log_dirs if one not in offline):
            if ownership.owner_of(log_dir) is None and not ownership.is_yielding(log_dir):
                ownership.recover(log_dir)  # it may have failed in the middle of a commit, and work again
        parts.obstacles.offline = offline
        usable, were_offline = self._online(), self._reported_offline
        with parts.metrics.phase("scan"):
            self._took(parts.inventory.scan(usable))
        known = {entry.log for entry in parts.inventory.entries()}
        heard_of = parts.events.logs() | {failure.log for failure in parts.failures.all()}
        for log in heard_of - known:  # it vanished before its work ended, or while no daemon ran
            if log.log_dir in usable:
                self._forget(log)
        self.judge([log for log in list(parts.obstacles.ignored) if log.log_dir in usable])
        self._remember_moves(were_offline)
        parts.metrics.scanned(parts.log_dirs, parts.obstacles.offline)
        self._tell_shares()
        self.watcher.follow()

    def _remember_moves(self, were_offline: Set[str] = frozenset()) -> None:
        """Which replicas are on their way to which log directory: one that fails cannot be asked after a restart (2.10)."""
        history = self._parts.store
        for log_dir in self._parts.log_dirs:
            moving = self._parts.inventory.futures(log_dir)
            if moving == self._moving.get(log_dir, frozenset()):
                continue
            if log_dir in were_offline:
                self._report_unseen(log_dir, moving - self._moving.get(log_dir, frozenset()))
            if moving:
                partitions = sorted([tp.topic, tp.partition] for tp in moving)
                history.put(MOVING, log_dir, {"partitions": partitions})
            else:
                history.delete(MOVING, log_dir)
            self._moving[log_dir] = moving

    def _report_unseen(self, log_dir: str, partitions: frozenset[TopicPartition]) -> None:
        """Moves that began before a directory failed and nobody had looked: their logs may have been cleaned since."""
        listed = guarded(partial(self._parts.files.list_names, log_dir), log_dir)
        for name in [] if isinstance(listed, CleanerdError) else listed:
            for tp in partitions.intersection(futures([name])):
                log = LogId(log_dir, tp)
                _log.warning("move_unseen", **log.fields(), path=f"{log_dir}/{name}")

    def _tell_shares(self) -> None:
        """What is done in each log directory: once, and whenever that becomes another thing."""
        for log_dir in self._online():
            found = share(self._parts.conditions, log_dir)
            if self._shares.get(log_dir) != found.kind:
                self._shares[log_dir] = found.kind
                _log.info(
                    "work_shared", log_dir=log_dir, cleans=found.cleans, leaves=found.leaves, share=found.text
                )

    def refresh(self) -> None:
        """Look only at what was touched."""
        self._took(self._parts.inventory.scan_touched(self._online()))
        self._remember_moves()

    def judge(self, logs: Iterable[LogId]) -> None:
        """Decide whether these logs are the cluster's at all, and whether what made logs uncleanable is over."""
        parts = self._parts
        configuration, ignored = parts.configuration(), parts.obstacles.ignored
        judged = list(logs)
        twice = self._twice(judged)
        unknown: dict[tuple[str, str | None], set[str]] = {}
        for log in judged:
            # first: what its broker writes meanwhile is found by the next scan
            is_named = self._is_named(log, configuration)
            foreign = attempt(partial(self._why_foreign, log, configuration), log.directory)
            reason = twice.get(log, foreign)
            is_stale = reason is not None and reason == foreign and self._is_stale(log, configuration)
            (parts.obstacles.stale.add if is_stale else parts.obstacles.stale.discard)(log)
            if reason is None:
                ignored.pop(log, None)
                self._new_since_s.pop(log, None)
                continue
            is_reported = ignored.get(log) == str(reason) and log not in self._new_since_s
            ignored[log] = str(reason)
            if not is_reported and not self._may_be_new(log, is_named=is_named):
                topic = log.topic_partition.topic
                if is_stale:
                    unknown.setdefault((log.log_dir, str(reason)), set()).add(topic)
                elif reason == foreign and not is_known(topic, configuration):
                    unknown.setdefault((log.log_dir, None), set()).add(topic)
                else:
                    _log.warning("ignored", **log.fields(), reason=str(reason))
        for (log_dir, stale), topics in unknown.items():
            why = parts.brokers.known_refusal(log_dir) or "no broker answers about its topics"
            _log.warning(
                "topics_unknown", log_dir=log_dir, count=len(topics), topics=sorted(topics)[:_SHOWN],
                reason=stale or f"a broker's without a metadata log; {why}",
            )  # fmt: skip
        for failure in parts.failures.all():
            if parts.failures.changed(failure.log, parts.stamp(failure.log)):
                _log.info("tried_again", **failure.log.fields(), reason="it changed")

    def _why_foreign(self, log: LogId, configuration: Configuration) -> str | None:
        log_dir = self._parts.ownership.at(log.log_dir)
        return Knowledge(log_dir, configuration).why_untouched(log.topic_partition)

    def _is_stale(self, log: LogId, configuration: Configuration) -> bool:
        """Whether only nothing may begin in a log that must be left alone."""

        def ask() -> str | None:
            knowledge = Knowledge(self._parts.ownership.at(log.log_dir), configuration)
            return knowledge.why_untouched(log.topic_partition, has_begun=True)

        return attempt(ask, log.directory) is None

    def _why_stale(self, path: str) -> str | None:
        return Knowledge(self._parts.ownership.at(path), self._parts.configuration()).why_stale()

    def _changed_lives(self) -> list[LogId]:
        """The logs of brokers that have started or stopped since the last look, or have been down for too long by now."""
        parts, changed = self._parts, list[str]()
        for path in self._online():
            stale = attempt(partial(self._why_stale, path), path)
            life = parts.ownership.owner(path), None if stale is None else str(stale)
            if life != self._lives.get(path):
                changed.append(path)
            self._lives[path] = life
        return [log for log in parts.inventory.logs() if log.log_dir in changed]

    def _twice(self, logs: Iterable[LogId]) -> dict[LogId, str]:
        """Those that lie in another log directory of their broker as well, with the reason for leaving them alone."""
        parts, found = self._parts, dict[LogId, str]()
        unseen = set(parts.configuration().broker.log_dirs) - set(parts.log_dirs)  # by the inventory
        by_dir: dict[str, list[TopicPartition]] = {}
        for log in logs:
            if unseen or parts.inventory.twins(log):
                by_dir.setdefault(log.log_dir, []).append(log.topic_partition)
        for path, partitions in by_dir.items():
            twice = attempt(partial(self._copies, path, partitions), path)
            if not isinstance(twice, CleanerdError):  # else it is about to be offline
                found |= {LogId(path, tp): why_two_copies(other) for tp, other in twice.items()}
        return found

    def _copies(self, path: str, partitions: list[TopicPartition]) -> dict[TopicPartition, str]:
        return self._parts.ownership.at(path).copies(partitions)

    def _is_named(self, log: LogId, configuration: Configuration) -> bool:
        """Whether everything is there by which the topic of a log can be known."""
        metadata = configuration.metadata
        if metadata is None:
            return True
        if not metadata.is_whole:
            return log.topic_partition.topic in metadata.topic_ids
        path = os.path.join(log.directory, names.PARTITION_METADATA)
        is_there = guarded(partial(self._parts.files.exists, path), path) is True
        return is_there and log.topic_partition.topic in metadata.topic_ids

    def _may_be_new(self, log: LogId, *, is_named: bool) -> bool:
        """Whether its broker may still name the topic of a log that is ignored."""
        if is_named:
            self._new_since_s.pop(log, None)
            return False
        now_s = self._parts.clock.monotonic_s()
        if now_s - self._new_since_s.setdefault(log, now_s) < _NEW_FOR_S:
            return True
        self._new_since_s.pop(log, None)
        return False

    def _online(self) -> list[str]:
        offline = self._parts.obstacles.offline
        return [log_dir for log_dir in self._parts.log_dirs if log_dir not in offline]

    def _took(self, report: ScanReport) -> None:
        parts = self._parts
        parts.obstacles.offline.update(report.offline)
        self._tell_offline(parts.obstacles.offline)
        for log in report.vanished:
            self._forget(log)
        back = []
        if report.back_online:
            back = [log for log in parts.inventory.logs() if log.log_dir in report.back_online]
        others = map(parts.inventory.twins, (*report.appeared, *report.vanished, *back))
        twins = [twin for some in others for twin in some if parts.inventory.facts(twin) is not None]
        lives = self._changed_lives()
        self.judge(sorted({*report.appeared, *report.changed, *self._new_since_s, *back, *twins, *lives}))
        self._stop_unwanted()
        for log_dir in self._online():
            owner = parts.ownership.owner(log_dir)
            if owner not in (Owner.NOBODY, Owner.WRITER):
                parts.brokers_cleaner.look(log_dir, parts.ownership.owner_of(log_dir))
        parts.lease_duty.looked()
        parts.obstacles.full = parts.commits.full_dirs(parts.log_dirs, parts.configuration().broker)
        with parts.progressed:
            parts.progressed.notify_all()
        if report.appeared or report.changed or report.back_online:
            parts.work_bell.ring()
        if any(k is not None and k.contents.is_staged for k in map(parts.inventory.facts, report.changed)):
            parts.commit_bell.ring()

    def _forget(self, log: LogId) -> None:
        parts = self._parts
        parts.states.forget(log)
        parts.failures.forget(log)
        parts.obstacles.ignored.pop(log, None)
        parts.obstacles.stale.discard(log)
        parts.events.forget(log)
        parts.metrics.forget(log)
        self._new_since_s.pop(log, None)

    def _stop_unwanted(self) -> None:
        """End cleanings whose result nobody would commit, before they stage it. Whatever else happens to a log (truncated,
        created again) is found when its result is about to be committed.
        """
        parts, configuration = self._parts, self._parts.configuration()
        for log in parts.jobs.logs():
            is_compacted = configuration.topic(log.topic_partition.topic).compact
            if barred := parts.obstacles.barred(log, goes_on=True):
                parts.states.stop(log, barred)
            elif not is_compacted:
                parts.states.stop(log, NOT_COMPACTED)
            elif target := parts.inventory.moving_to(log):
                parts.states.stop(log, f"its broker moves it to {target}")

    def _tell_offline(self, offline: Mapping[str, str]) -> None:
        """Once when a log directory goes, once when it is back."""
        for log_dir in sorted(offline.keys() - self._reported_offline):
            _log.warning("log_dir_offline", log_dir=log_dir, reason=offline[log_dir])
        for log_dir in sorted(self._reported_offline - offline.keys()):
            _log.info("log_dir_online", log_dir=log_dir)
        self._reported_offline = frozenset(offline)

    def step(self) -> float:
        """One round."""
        clock, interval_s = self._parts.clock, self._parts.configuration().broker.scan_interval_ms / 1000
        now_s = clock.monotonic_s()
        if now_s - self._scanned_s < interval_s:
            if now_s < self._rested_s:
                return self._rested_s - now_s
            self.refresh()
            self._rested_s = now_s + _REST_S * len(self._parts.inventory.entries())
            return interval_s
        for failure in self._parts.failures.all():
            # A file that is repaired in place does not change its directory.
            self._parts.inventory.touch_log(failure.log)
        self.scan()
        return interval_s

    def _seen_change(self, log_dir: str, name: str | None) -> None:
        if name == names.LOCK:  # whose it was does not matter
            self._parts.commit_bell.ring()
            return
        if name is not None:
            self._parts.inventory.touch(log_dir, name)
        # events were lost, or it may be a log directory now
        if name is None or log_dir in self._parts.obstacles.offline:
            self._scanned_s = -math.inf
        self._bell.ring()


def _partitions(state: Mapping[str, Any]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(str(topic), int(partition)) for topic, partition in state["partitions"])
