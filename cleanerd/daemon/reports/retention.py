"""Retention of a log for people: what goes and for which of the three breaches, what stays, why and until when."""

from collections.abc import Sequence
from dataclasses import dataclass

from cleanerd.cleaning.outcomes import Failed
from cleanerd.cleaning.retain import Preview
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.values.models import Fact, RetentionView
from cleanerd.daemon.work.condition import Conditions
from cleanerd.daemon.work.retention import Passed, RetentionPasses, whose_turn
from cleanerd.errors import CleanerdError
from cleanerd.policy.retention import Breach, Kept
from cleanerd.storage.log_dir import Owner
from cleanerd.units import counted, utc

_END_OF_TIME_MS = 253_402_300_800_000
"""The year 10000: what is due later has no date."""

_BUSY = "it is paused or being cleaned, or another process holds .lock"


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """Runs and forecasts of retention passes; thread-safe."""

    conditions: Conditions
    passes: RetentionPasses

    def planned(self, log: LogId) -> RetentionView:
        """The segments that a retention pass would delete now; `skipped` if none may run now."""
        ignored = self.conditions.states.obstacles.ignored.get(log)
        if ignored is not None:
            return _view(log, outcome="skipped", reason=ignored)
        try:
            found = self.passes.preview(log)
        except CleanerdError as error:
            return _view(log, outcome="failed", reason=str(error))
        obstacle, goes = self._obstacle(log), found.goes.values()
        due_ms = None if found.kept is None else found.kept.due_ms
        return _view(
            log,
            outcome="skipped" if obstacle else "planned" if goes else "nothing",
            reason=obstacle,
            segments=sum(segments for segments, _ in goes),
            bytes=sum(size for _, size in goes),
            breaches=tuple(breach.value for breach in found.goes),
            log_start_offset=found.log_start_offset,
            kept=None if found.kept is None else _why(found),
            next_ms=due_ms if due_ms is None or due_ms < _END_OF_TIME_MS else None,
        )

    def run(self, logs: Sequence[LogId]) -> tuple[RetentionView, ...]:
        """Run a pass now, over the logs that may have one."""
        obstacles = {log: self._obstacle(log) for log in logs}
        passed = self.passes.run([log for log in logs if obstacles[log] is None])
        return tuple(
            self._done(log, passed[log])
            if log in passed
            else _view(log, outcome="skipped", reason=obstacles[log] or _BUSY)
            for log in logs
        )

    def _done(self, log: LogId, passed: Passed) -> RetentionView:
        if isinstance(passed, Failed):
            return _view(log, outcome="failed", reason=passed.reason)
        after = self.planned(log)  # what stays, and why
        if passed is None:
            return after.model_copy(update={"outcome": "nothing", "reason": None})
        return after.model_copy(
            update={
                "outcome": "deleted",
                "reason": None,
                "segments": passed.segments,
                "bytes": passed.bytes,
                "breaches": tuple(breach.value for breach in passed.reasons),
                "log_start_offset": passed.log_start_offset,
            }
        )

    def _obstacle(self, log: LogId) -> str | None:
        """Why no retention pass may run over this log now; None if one may."""
        barred, owner = (
            self.conditions.states.obstacles.barred(log),
            self.conditions.ownership.owner(log.log_dir),
        )
        if barred is not None:
            return barred
        if owner is Owner.BROKER_COMING:
            return f"{log.log_dir}: a broker is about to start"
        if owner is Owner.LIVE_BROKER:
            pid = self.conditions.ownership.owner_of(log.log_dir)
            return f"process {pid or 'unknown'} holds .lock: retention is its broker's"
        config = self.conditions.configuration()
        off_by = config.broker.off_by
        if off_by is not None and config.topic(log.topic_partition.topic).compact:
            return f"{off_by} is false, and compacted logs get their retention from the cleaner"
        known = self.conditions.inventory.facts(log)
        failed = set() if self.conditions.failures.of(log) is None else {log}
        if known is None or not whose_turn([known], config, failed, is_time=True):
            return self.conditions.of(log).obstacle or "it has no closed segment"
        return None

    def facts(self, log: LogId) -> list[Fact]:
        """One fact for each of the three limits (6.3-6.5), then why the oldest remaining segment stays (6.2)."""
        if self.conditions.inventory.facts(log) is None:
            return []
        try:
            found = self.passes.preview(log)
        except CleanerdError as error:
            return [Fact(name="retention", value=str(error), rule="1.28")]
        config = found.config
        goes = [Fact(name="log start", value=_below(found), rule="6.3")]
        if config.delete:
            configured = self.conditions.topic_config(log)
            size = _limit("retention.bytes", config.retention_bytes, configured.retention_bytes)
            size += _breached(found, Breach.SIZE)
            time = _limit("retention.ms", config.retention_ms, configured.retention_ms) + _breached(
                found, Breach.TIME
            )
            goes += [
                Fact(name="retention size", value=size, rule="6.4"),
                Fact(name="retention time", value=time, rule="6.5"),
            ]
        obstacle = self._obstacle(log)
        if found.goes and obstacle is not None:
            goes.append(Fact(name="retention", value=f"no pass now: {obstacle}", rule="1.28"))
        if found.kept is not None:
            goes.append(Fact(name="oldest segment", value=_until(found, found.kept), rule="6.2"))
        return goes


def _view(log: LogId, **fields: object) -> RetentionView:
    return RetentionView.model_validate({**log.fields(), **fields})


def _why(found: Preview) -> str:
    assert found.kept is not None
    assert found.cause is not None
    return f"segment {found.kept.segment.base_offset} stays: {found.cause.text}"


def _limit(key: str, value: int, configured: int) -> str:
    """`configured`: the value of the topic; a pass may have to leave it out, beside a stopped broker."""
    if value != configured:
        return f"{key} is {configured}, which does not hold here"
    return f"{key} is {'unlimited' if value < 0 else value}"


def _below(found: Preview) -> str:
    segments, size = found.goes.get(Breach.LOG_START_OFFSET, (0, 0))
    if not segments:
        return "no whole segment lies below it"
    return f"below it: {counted(segments, 'segment')} with {size} bytes"


def _breached(found: Preview, breach: Breach) -> str:
    segments, size = found.goes.get(breach, (0, 0))
    return (
        f", breached by {counted(segments, 'segment')} with {size} bytes"
        if segments
        else ", breached by no closed segment"
    )


def _until(found: Preview, kept: Kept) -> str:
    """Why it stays and what ends that."""
    ends = []
    if kept.due_ms is not None:
        is_ever = kept.due_ms < _END_OF_TIME_MS
        ends.append(
            f"retention.ms lets it go from {utc(kept.due_ms)} on"
            if is_ever
            else "retention.ms never lets it go"
        )
    if kept.due_bytes is not None:
        ends.append(f"retention.bytes takes it when the log has grown by {kept.due_bytes} bytes")
    if found.cause is not None and found.cause.remedy is not None:
        ends.append(found.cause.remedy)
    return "; ".join([_why(found), *ends])
