"""The verbs of the control API, done by the parts of the daemon (`operations.Operations`)."""

import os
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict
from fnmatch import fnmatchcase
from functools import partial
from typing import TypeVar

from cleanerd import __version__
from cleanerd.cleaning.delete_records import DeletionForbidden
from cleanerd.daemon.api.operations import (
    Conflict,
    Invalid,
    NotFound,
    OperationError,
    Operations,
    Timeout,
    Unavailable,
)
from cleanerd.daemon.configuration.reload import Reloader, ReloadOutcome, ReloadTrigger
from cleanerd.daemon.loops.crew import Crew
from cleanerd.daemon.parts import Parts
from cleanerd.daemon.reports import explain as explaining
from cleanerd.daemon.reports import forecast as forecasting
from cleanerd.daemon.reports import retention as retaining
from cleanerd.daemon.reports.log_views import limits_view, log_views, rates_of
from cleanerd.daemon.reports.status_views import hold_view, log_dir_view, mute_view, reload_view
from cleanerd.daemon.store import HOLD
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.values.models import (
    CommitView,
    DeletedRecords,
    Explanation,
    Forecast,
    HistoryEvent,
    HistoryEventKind,
    HoldView,
    JobView,
    LogRef,
    LogState,
    LogView,
    MuteView,
    ReloadView,
    RetentionView,
    StatusView,
    ThrottleChange,
    ThrottleLimits,
    ThrottleView,
)
from cleanerd.daemon.values.patterns import matches, similar
from cleanerd.daemon.work.holds import Hold
from cleanerd.daemon.work.mutes import MuteNotKept, Mutes
from cleanerd.daemon.work.states import LogVanished, NotTaken, StillRunning
from cleanerd.errors import Aborted, CleanerdError, LockHeld
from cleanerd.format.names import TopicPartition
from cleanerd.policy.lifecycle import IllegalTransition, Status
from cleanerd.storage.log_dir import Owner

_T = TypeVar("_T")
_POLL_S = 0.1


class Service(Operations):
    """`Operations` on the parts of the daemon; `reloaded` is called with the outcome of every reload made here."""

    def __init__(
        self,
        parts: Parts,
        crew: Crew,
        reloader: Reloader,
        reloaded: Callable[[ReloadOutcome], None],
        mutes: Mutes,
    ) -> None:
        self._parts = parts
        self._crew = crew
        self._reloader = reloader
        self._reloaded = reloaded
        self._mutes = mutes

    # -- looking ------------------------------------------------------------------------------------------------

    def status(self) -> StatusView:
        """The daemon as a whole."""
        parts = self._parts
        workers = self._crew.cleaners.workers.all()
        return StatusView(
            version=__version__,
            pid=os.getpid(),
            uptime_s=parts.clock.monotonic_s() - parts.life.started_s,
            ready=parts.life.is_ready,
            log_dirs=tuple(map(partial(log_dir_view, parts), parts.log_dirs)),
            logs_by_state=Counter(one.state for _, one in parts.conditions.all(parts.inventory.logs())),
            workers_busy=len(parts.jobs.running()),
            workers_total=len(workers) - 1,  # the express one is extra
            spark_session_up=parts.engine.pid is not None,
            throttle=self.throttle(),
            configuration=reload_view(self._reloader.last, self._reloader.last_success_ms),
            holds=len(parts.states.holds()),
            warnings=(*parts.configuration().warnings, *self._unseen()),
            muted=tuple(map(mute_view, self._mutes.all())),
        )

    def logs(self, pattern: str | None, state: LogState | None) -> tuple[LogView, ...]:
        """Every log that matches."""
        views = log_views(self._parts, self._matching(pattern))
        return tuple(view for view in views if state is None or view.state == state)

    def log(self, topic_partition: TopicPartition) -> tuple[LogView, ...]:
        """One partition, in each log directory that has it."""
        return tuple(log_views(self._parts, self._of(topic_partition)))

    def explain(self, topic_partition: TopicPartition) -> tuple[Explanation, ...]:
        """Why a log is or is not cleaned now."""
        return tuple(explaining.explain(self._parts, log, exact=True) for log in self._of(topic_partition))

    def history(
        self,
        pattern: str | None,
        limit: int,
        since_ms: int | None,
        kinds: Collection[HistoryEventKind] | None,
    ) -> tuple[HistoryEvent, ...]:
        """The newest events."""
        return self._parts.store.events(pattern, limit, since_ms, kinds)

    def jobs(self) -> tuple[JobView, ...]:
        """Jobs that are remembered."""
        return self._parts.jobs.views()

    def job(self, job_id: str) -> JobView:
        """One job."""
        try:
            return self._parts.jobs.view(job_id)
        except KeyError:
            raise NotFound(
                f"there is no job {job_id}; `cleanerctl jobs` lists those that are remembered"
            ) from None

    def wait_job(self, job_id: str, timeout_ms: int) -> JobView:
        """One job, when it is done."""
        self.job(job_id)
        if not self._parts.jobs.wait(job_id, timeout_ms / 1000):
            raise Timeout(f"job {job_id} is not done after {timeout_ms} ms; it goes on")
        return self.job(job_id)

    # -- acting -------------------------------------------------------------------------------------------------

    def clean(self, pattern: str, force: bool) -> tuple[JobView, ...]:
        """Clean now."""
        parts, views, refusals = self._parts, [], []
        for log in self._some(pattern):
            running = parts.jobs.of(log)
            refusal = self._refusal(log)
            if running is not None:
                views.append(running.id)
            elif refusal is not None:
                refusals.append(f"{log}: {refusal}")
            else:
                parts.failures.retry([log])  # to ask for a log again is to try it again
                views.append(parts.jobs.request([log], force=force).id)
        if not views:
            raise Conflict("; ".join(refusals[:5]))
        parts.work_bell.ring()
        return tuple(parts.jobs.view(job_id) for job_id in views)

    def _refusal(self, log: LogId) -> str | None:
        """What stands against even a request."""
        condition = self._parts.conditions.of(log)
        return None if condition.yields_to_requests else condition.obstacle

    def pause(self, pattern: str, owner: str, reason: str, ttl_ms: int | None, timeout_ms: int) -> HoldView:
        """Abort and pause what matches, now and later."""
        parts, now_ms = self._parts, self._parts.clock.now_ms()
        expires_ms = None if ttl_ms is None else now_ms + ttl_ms
        hold = Hold(uuid.uuid4().hex[:12], pattern, owner, reason, now_ms, expires_ms)
        running = parts.states.hold(hold, timeout_ms / 1000)
        if running:
            parts.states.release(hold.id)
            raise Timeout(
                f"still being cleaned after {timeout_ms} ms: {_some_names(running)}; nothing is paused"
            )
        if not parts.store.put(HOLD, hold.id, asdict(hold)):
            parts.states.release(hold.id)
            raise Unavailable("the hold would not survive a restart: the state directory cannot be written")
        return hold_view(self._parts, hold)

    def resume(self, selector: str) -> tuple[HoldView, ...]:
        """Lift holds."""
        parts = self._parts
        found = [hold for hold in parts.states.holds() if selector in (hold.id, hold.pattern)]
        if not found:
            raise NotFound(
                f"there is no hold with the id or the pattern {selector}; `cleanerctl holds` lists them"
            )
        views = tuple(map(partial(hold_view, self._parts), found))
        for hold in found:
            parts.states.release(hold.id)
            parts.store.delete(HOLD, hold.id)
        parts.work_bell.ring()
        parts.commit_bell.ring()
        return views

    def holds(self) -> tuple[HoldView, ...]:
        """Holds in force."""
        return tuple(map(partial(hold_view, self._parts), self._parts.states.holds()))

    def abort(self, pattern: str, timeout_ms: int) -> tuple[LogRef, ...]:
        """Stop the cleanings of what matches."""
        parts, deadline_s = self._parts, self._parts.clock.monotonic_s() + timeout_ms / 1000
        busy = [log for log in self._some(pattern) if parts.states.state(log).status is Status.IN_PROGRESS]
        for log in busy:
            parts.states.stop(log)
        for log in busy:
            try:
                parts.states.abort(log, max(deadline_s - parts.clock.monotonic_s(), 0))
            except StillRunning as error:
                raise Timeout(f"{error}; it stops at its next buffer") from error
            except ValueError as error:  # another client aborts it
                raise Conflict(str(error)) from error
            except CleanerdError as error:
                raise Unavailable(str(error)) from error
        return tuple(map(_ref, busy))

    def commit(self, pattern: str | None, wait_ms: int) -> tuple[CommitView, ...]:
        """Commit staged results. Waiting for all of them announces a broker start: everything else makes way."""
        parts, now = self._parts, self._parts.clock.monotonic_s
        deadline_s, is_start = now() + wait_ms / 1000, wait_ms > 0 and pattern is None
        self._wait_until_ready(deadline_s)
        self._crew.scanner.scan()
        logs = self._matching(pattern) if pattern is None else self._some(pattern)
        staged = set(parts.inventory.staged())
        views: dict[tuple[str, int, str], CommitView] = {}
        waiting = [log for log in logs if log in staged]
        while waiting:
            if is_start:
                self._make_way()
            for view in parts.commits.try_all(waiting, lambda _: not wait_ms or now() < deadline_s):
                views[view.topic, view.partition, view.log_dir] = view
            waiting = [log for log in waiting if views[_key(log)].outcome == "waiting"]
            if not waiting or now() >= deadline_s or parts.life.stopping.wait(_POLL_S):
                break
        if is_start:
            self._make_way()
        self._crew.scanner.scan()
        return tuple(views.values())

    def _wait_until_ready(self, deadline_s: float) -> None:
        """Before that, staged results are not known, and there would be nothing to commit."""
        life = self._parts.life
        while not life.is_ready:
            if life.stopping.is_set():
                raise Unavailable("the daemon is stopping")
            if self._parts.clock.monotonic_s() >= deadline_s:
                raise Timeout(
                    "the daemon is not ready yet: it recovers what was interrupted and looks for logs"
                )
            life.stopping.wait(_POLL_S)

    def _make_way(self) -> None:
        """A broker is about to start: until it has come, nothing of ours begins."""
        parts = self._parts
        for log_dir in parts.log_dirs:
            if parts.ownership.owner(log_dir) in (Owner.STOPPED_BROKER, Owner.BROKER_COMING):
                parts.ownership.yield_to_broker(log_dir)

    def mute(self, pattern: str) -> tuple[MuteView, ...]:
        """Keep the brokers' own cleaners away from topics."""
        configuration = self._parts.configuration()
        known = {log.topic_partition.topic for log in self._parts.inventory.logs()}
        topics = [topic for topic in sorted(known) if fnmatchcase(topic, pattern)]
        if not topics:
            raise NotFound(f"no topic matches {pattern}; {self._instead_of(pattern)}")
        compacted = [topic for topic in topics if configuration.topic(topic).compact]
        if not compacted:
            raise Conflict(f"{', '.join(topics[:5])}: not compacted, so no cleaner to keep away")
        ignored = self._parts.obstacles.ignored
        ours = {log.topic_partition.topic for log in self._parts.inventory.logs() if log not in ignored}
        if not (cleaned := [topic for topic in compacted if topic in ours]):
            raise Conflict(
                f"{', '.join(compacted[:5])}: ignored by cleanerd, so that no cleaner would be left"
            )
        muted = self._changed_mutes(lambda: self._mutes.mute(cleaned, self._parts.leases))
        return tuple(map(mute_view, muted))

    def unmute(self, pattern: str) -> tuple[MuteView, ...]:
        """Bring back what was before."""
        found = [mute for mute in self._mutes.all() if fnmatchcase(mute.topic, pattern)]
        if not found:
            raise NotFound(f"no muted topic matches {pattern}; `cleanerctl status` lists them")
        self._changed_mutes(lambda: self._mutes.unmute(found, self._parts.leases))
        return tuple(map(mute_view, found))

    def _changed_mutes(self, change: Callable[[], _T]) -> _T:
        """What `change` returns; the ratios that cleanerd goes by change with the mutes."""
        try:
            return change()
        except MuteNotKept as error:
            raise Unavailable(str(error)) from error
        except CleanerdError as error:
            raise Conflict(str(error)) from error
        finally:
            self._reloaded(self._reloader.reload(ReloadTrigger.MUTES))

    def retry(self, pattern: str) -> tuple[LogRef, ...]:
        """Forget failures."""
        freed = self._parts.failures.retry(self._some(pattern))
        self._parts.work_bell.ring()
        return tuple(map(_ref, freed))

    def throttle(self) -> ThrottleView:
        """Limits and measured rates."""
        read, written = rates_of(self._parts)
        waited_s = sum(self._parts.throttle.waited_s().values())
        return ThrottleView(
            limits=limits_view(self._parts.throttle),
            read_bytes_per_s=read,
            write_bytes_per_s=written,
            waited_s=waited_s,
        )

    def set_throttle(self, change: ThrottleChange) -> ThrottleView:
        """Change limits at once."""
        limits: ThrottleLimits = change.applied_to(limits_view(self._parts.throttle))
        unlimited = float("inf")
        self._parts.throttle.set_limits(
            total=limits.io_bytes_per_s or unlimited,
            read=limits.read_bytes_per_s or unlimited,
            write=limits.write_bytes_per_s or unlimited,
        )
        return self.throttle()

    def reload(self) -> ReloadView:
        """Read the configuration again."""
        outcome = self._reloader.reload(ReloadTrigger.REQUEST)
        self._reloaded(outcome)
        return reload_view(outcome, self._reloader.last_success_ms)

    def delete_records(self, topic_partition: TopicPartition, offset: int) -> tuple[DeletedRecords, ...]:
        """Raise the log start offset, delete the segments below it."""
        return tuple(self._delete_records(log, offset) for log in self._of(topic_partition))

    def _delete_records(self, log: LogId, offset: int) -> DeletedRecords:
        try:
            deleted = self._parts.retention.delete_records(log, offset)
        except DeletionForbidden as error:
            raise Invalid(str(error)) from error
        except LockHeld as error:
            raise Conflict(f"{error}: ask its broker (kafka-delete-records.sh)") from error
        except (NotTaken, StillRunning, LogVanished, Aborted, IllegalTransition) as error:
            raise Conflict(str(error)) from error
        except (CleanerdError, OSError) as error:
            raise OperationError(str(error)) from error
        finally:
            self._crew.scanner.scan()
        return DeletedRecords(
            **_ref(log).model_dump(),
            log_start_offset=deleted.log_start_offset,
            segments_deleted=deleted.segments,
            bytes_deleted=deleted.bytes,
        )

    def forecast(self, pattern: str | None) -> Forecast:
        """What is to come for all logs, and for those that match."""
        return forecasting.forecast(self._parts, frozenset(self._matching(pattern)))

    def retention(self, pattern: str, dry_run: bool) -> tuple[RetentionView, ...]:
        """Run or preview a retention pass."""
        logs = self._some(pattern)
        if dry_run:
            return tuple(retaining.planned(self._parts, log) for log in logs)
        views = retaining.run(self._parts, logs)
        self._crew.scanner.scan()
        return views

    def await_cleaned(
        self, topic_partition: TopicPartition, offset: int, timeout_ms: int
    ) -> tuple[LogView, ...]:
        """The log, when its first dirty offset has reached `offset`."""
        parts, deadline_s = self._parts, self._parts.clock.monotonic_s() + timeout_ms / 1000
        logs = self._of(topic_partition)
        while not all(self._cleaned_up_to(log) >= offset for log in logs):
            left_s = deadline_s - parts.clock.monotonic_s()
            if left_s <= 0:
                raise Timeout(f"{topic_partition} is not cleaned up to offset {offset} after {timeout_ms} ms")
            if parts.life.stopping.is_set():
                raise Unavailable("the daemon stops")
            with parts.progressed:
                parts.progressed.wait(min(left_s, 1.0))
        return tuple(log_views(parts, logs))

    def _cleaned_up_to(self, log: LogId) -> int:
        known = self._parts.inventory.facts(log)
        return -1 if known is None or known.offsets.checkpoint is None else known.offsets.checkpoint

    # -- helping ------------------------------------------------------------------------------------------------

    def _unseen(self) -> list[str]:
        """Log directories in which changes are found by scans only."""
        problems = self._crew.scanner.watcher.problems()
        return [f"{log_dir}: {problem}" for log_dir, problem in problems.items()]

    def _matching(self, pattern: str | None) -> list[LogId]:
        return [
            log
            for log in self._parts.inventory.logs()
            if matches(pattern, log.topic_partition.topic, log.topic_partition.partition)
        ]

    def _some(self, pattern: str) -> list[LogId]:
        found = self._matching(pattern)
        if not found:
            raise NotFound(f"no log matches {pattern}; {self._instead_of(pattern)}")
        return found

    def _of(self, tp: TopicPartition) -> list[LogId]:
        found = [log for log in self._parts.inventory.logs() if log.topic_partition == tp]
        if not found:
            raise NotFound(f"there is no log {tp}; {self._instead_of(str(tp))}")
        return found

    def _instead_of(self, pattern: str) -> str:
        near = similar(pattern, (log.topic_partition for log in self._parts.inventory.logs()))
        return f"did you mean {' or '.join(near)}?" if near else "`cleanerctl logs` lists them"


def _ref(log: LogId) -> LogRef:
    return LogRef(
        topic=log.topic_partition.topic, partition=log.topic_partition.partition, log_dir=log.log_dir
    )


def _key(log: LogId) -> tuple[str, int, str]:
    return log.topic_partition.topic, log.topic_partition.partition, log.log_dir


def _some_names(logs: Iterable[LogId]) -> str:
    return ", ".join(sorted(map(str, logs))[:10])
