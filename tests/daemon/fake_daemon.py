"""A small daemon in memory behind a real control socket, for the tests of the API and of cleanerctl.

As a process of its own: `python -m tests.daemon.fake_daemon PATH` serves until its stdin ends.
"""

import os
import sys
from collections.abc import Collection
from pathlib import Path

from cleanerd.daemon.api import operations as op
from cleanerd.daemon.api.control_server import AuditEntry, ControlServer
from cleanerd.daemon.api.control_socket import listen
from cleanerd.daemon.api.http import Page, RequestLimits
from cleanerd.daemon.values import models
from cleanerd.daemon.values.patterns import matches
from cleanerd.format.names import TopicPartition

LOG_DIR = "/logs"
ORDERS = [TopicPartition("orders", 0), TopicPartition("orders", 3)]


class FakeOperations:
    """Two partitions of one topic; some names make verbs go wrong."""

    def __init__(self) -> None:
        self.limits = models.ThrottleLimits()
        self.held: dict[str, models.HoldView] = {}
        self.job_polls = 0
        self.kinds_asked: list[Collection[str] | None] = []
        self.commit_polls = 0
        self.is_valid = True
        self.offsets: list[int] = []

    def _view(self, tp: TopicPartition) -> models.LogView:
        holds = tuple(hold.id for hold in self.held.values() if matches(hold.pattern, tp.topic, tp.partition))
        last = models.HistoryEvent(time_ms=1, kind="cleaning", outcome="committed", removed={"superseded": 7})
        return models.LogView(
            topic=tp.topic,
            partition=tp.partition,
            log_dir=LOG_DIR,
            state="paused" if holds else "dirty",
            policy="compact",
            size_bytes=5_400_000,
            segments=3,
            dirty_ratio=0.25,
            holds=holds,
            last=last,
        )

    def _found(self, pattern: str | None) -> list[TopicPartition]:
        if pattern == "locked":
            raise op.Conflict("a live broker owns the log directory; stop it first")
        if pattern == "bug":
            raise ZeroDivisionError("secret detail")
        found = [tp for tp in ORDERS if matches(pattern, tp.topic, tp.partition)]
        if not found:
            raise op.NotFound(f"no log matches {pattern}")
        return found

    def status(self) -> models.StatusView:
        return models.StatusView(
            version="1",
            pid=os.getpid(),
            uptime_s=3700.0,
            ready=True,
            log_dirs=(
                models.LogDirView(
                    path=LOG_DIR, online=True, free_bytes=10**12, lock_owner_pid=7, broker_is_live=True
                ),
            ),
            logs_by_state={"dirty": 2},
            workers_busy=1,
            workers_total=2,
            spark_session_up=False,
            throttle=self.throttle(),
            configuration=self._reloaded(),
            holds=len(self.held),
        )

    def logs(self, pattern: str | None, state: models.LogState | None) -> tuple[models.LogView, ...]:
        views = [self._view(tp) for tp in ORDERS if matches(pattern, tp.topic, tp.partition)]
        return tuple(view for view in views if state in (None, view.state))

    def log(self, topic_partition: TopicPartition) -> tuple[models.LogView, ...]:
        return tuple(self._view(tp) for tp in self._found(str(topic_partition)))

    def clean(self, pattern: str, force: bool) -> tuple[models.JobView, ...]:
        names = tuple(map(str, self._found(pattern)))
        return (models.JobView(id="j1", trigger="request", state="queued", logs=names),)

    def jobs(self) -> tuple[models.JobView, ...]:
        return (
            models.JobView(
                id="j1", trigger="request", state="running", logs=("orders-3",), bytes_done=5, bytes_total=10
            ),
        )

    def job(self, job_id: str) -> models.JobView:
        if job_id != "j1":
            raise op.NotFound(f"no job {job_id}")
        return self.jobs()[0]

    def wait_job(self, job_id: str, timeout_ms: int) -> models.JobView:
        """Done at the second time of asking, and failed if nobody has a hold."""
        self.job_polls += 1
        if self.job_polls < 2:
            raise op.Timeout(f"job {job_id} runs still")
        outcome = "committed" if self.held else "failed"
        return self.job(job_id).model_copy(update={"state": "done", "outcome": outcome})

    def pause(
        self, pattern: str, owner: str, reason: str, ttl_ms: int | None, timeout_ms: int
    ) -> models.HoldView:
        if timeout_ms == 0:
            raise op.Timeout("orders-3 is still being cleaned")
        expires_ms = None if ttl_ms is None else ttl_ms
        hold = models.HoldView(
            id="h1", pattern=pattern, owner=owner, reason=reason, created_ms=0, expires_ms=expires_ms,
            logs=("orders-3",) if pattern.startswith("orders") else (),
        )  # fmt: skip
        self.held["h1"] = hold
        return hold

    def resume(self, selector: str) -> tuple[models.HoldView, ...]:
        if selector not in self.held:
            raise op.NotFound(f"no hold {selector}")
        return (self.held.pop(selector),)

    def holds(self) -> tuple[models.HoldView, ...]:
        return tuple(self.held.values())

    def _refs(self, pattern: str) -> tuple[models.LogRef, ...]:
        return tuple(
            models.LogRef(topic=tp.topic, partition=tp.partition, log_dir=LOG_DIR)
            for tp in self._found(pattern)
        )

    def abort(self, pattern: str, timeout_ms: int) -> tuple[models.LogRef, ...]:
        return self._refs(pattern)

    def commit(self, pattern: str | None, wait_ms: int) -> tuple[models.CommitView, ...]:
        """orders-0 is committed at once, orders-3 at the second time of asking."""
        self.commit_polls += 1
        outcomes = ("committed", "waiting") if self.commit_polls == 1 else ("nothing", "committed")
        return tuple(
            models.CommitView(topic=tp.topic, partition=tp.partition, log_dir=LOG_DIR, outcome=outcome)  # type: ignore[arg-type]
            for tp, outcome in zip(ORDERS, outcomes, strict=True)
        )

    def mute(self, pattern: str) -> tuple[models.MuteView, ...]:
        topics = {tp.topic for tp in self._found(pattern)}
        return tuple(
            models.MuteView(topic=topic, prior_ratio="0.1", since_ms=1, confirmed=True) for topic in topics
        )

    def unmute(self, pattern: str) -> tuple[models.MuteView, ...]:
        return self.mute(pattern)

    def retry(self, pattern: str) -> tuple[models.LogRef, ...]:
        return self._refs(pattern)

    def explain(self, topic_partition: TopicPartition) -> tuple[models.Explanation, ...]:
        facts = (models.Fact(name="dirty ratio", value="0.25, at most 0.50", blocks=True, rule="1.21"),)
        return tuple(
            models.Explanation(
                topic=tp.topic,
                partition=tp.partition,
                log_dir=LOG_DIR,
                decision="not dirty enough",
                facts=facts,
            )
            for tp in self._found(str(topic_partition))
        )

    def history(
        self, pattern: str | None, limit: int, since_ms: int | None, kinds: Collection[str] | None
    ) -> tuple[models.HistoryEvent, ...]:
        self.kinds_asked.append(kinds)
        event = models.HistoryEvent(
            time_ms=1, kind="cleaning", outcome="committed", reason="a\x1b[2Jb\nc", removed={"superseded": 7}
        )
        return (event,) * min(limit, 2)

    def throttle(self) -> models.ThrottleView:
        return models.ThrottleView(
            limits=self.limits, read_bytes_per_s=1.5e6, write_bytes_per_s=0.0, waited_s=0.0
        )

    def set_throttle(self, change: models.ThrottleChange) -> models.ThrottleView:
        self.limits = change.applied_to(self.limits)
        return self.throttle()

    def _reloaded(self) -> models.ReloadView:
        problems = () if self.is_valid else ("log.cleaner.threads: 0 is not at least 1",)
        return models.ReloadView(applied=self.is_valid, time_ms=1, changed=(), problems=problems)

    def reload(self) -> models.ReloadView:
        self.is_valid = not self.is_valid
        return self._reloaded()

    def delete_records(
        self, topic_partition: TopicPartition, offset: int
    ) -> tuple[models.DeletedRecords, ...]:
        return tuple(
            models.DeletedRecords(
                topic=tp.topic,
                partition=tp.partition,
                log_dir=LOG_DIR,
                log_start_offset=offset,
                segments_deleted=1,
                bytes_deleted=100,
            )
            for tp in self._found(str(topic_partition))
        )

    def forecast(self, pattern: str | None) -> models.Forecast:
        logs = tuple(
            models.LogForecast(
                topic=tp.topic,
                partition=tp.partition,
                log_dir=LOG_DIR,
                size_bytes=5_400_000,
                cleanable_bytes=1_000_000,
                peak_extra_bytes=4_000_000,
                due_ms=1_700_000_000_000,
                due_why="older than max.compaction.lag.ms",
                start_ms=1_700_000_000_000,
                end_ms=1_700_000_007_000,
                deadline_ms=1_700_000_000_000,
                is_late=tp.partition == 3,
                what_if=(
                    models.WhatIf(
                        setting="as it is",
                        lasted_ms=10**8,
                        cleanings=2,
                        read_bytes=9,
                        mean_bytes=5,
                        max_bytes=7,
                    ),
                ),
            )
            for tp in self._found(pattern)
        )
        return models.Forecast(
            workers=1,
            bytes_per_s=5e6,
            rate_is_measured=True,
            misses=1,
            first_miss_ms=1_700_000_000_000,
            enough_bytes_per_s=25e6,
            logs=logs,
        )

    def retention(self, pattern: str, dry_run: bool) -> tuple[models.RetentionView, ...]:
        return tuple(
            models.RetentionView(
                topic=tp.topic,
                partition=tp.partition,
                log_dir=LOG_DIR,
                outcome="planned" if dry_run else "deleted",
                segments=2,
                bytes=100,
                breaches=("retention.ms",),
                log_start_offset=10,
                kept="segment 10 stays: neither limit is breached",
                next_ms=1_700_000_000_000,
            )
            for tp in self._found(pattern)
        )

    def await_cleaned(
        self, topic_partition: TopicPartition, offset: int, timeout_ms: int
    ) -> tuple[models.LogView, ...]:
        """Reached at the third time of asking."""
        self.offsets.append(offset)
        if len(self.offsets) < 3:
            raise op.Timeout(f"{topic_partition} is not cleaned up to {offset} yet")
        return self.log(topic_partition)


def serve(
    path: Path | str,
    operations: op.Operations,
    *,
    limits: RequestLimits | None = None,
    pages: dict[str, Page] | None = None,
) -> tuple[ControlServer, list[AuditEntry]]:
    """A running server and its audit log."""
    entries: list[AuditEntry] = []
    server = ControlServer(
        listen(str(path), os.environ),
        operations,
        audit=entries.append,
        own_uid=os.geteuid(),
        limits=limits,
        pages=pages,
    )
    server.start()
    return server, entries


if __name__ == "__main__":
    running, _ = serve(sys.argv[1], FakeOperations())
    print("listening", flush=True)
    sys.stdin.read()
    running.stop(1.0)
