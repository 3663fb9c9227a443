"""Why a log is or is not cleaned now, fact by fact, in the order in which they decide; then what retention does to it."""

import threading
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from cleanerd.cleaning.causes import SET_POLICY, Cause, Held
from cleanerd.cleaning.outcomes import Failed, Planned, Skipped
from cleanerd.cleaning.result import LogResult
from cleanerd.daemon.engine.calls import ExamineCall
from cleanerd.daemon.engine.client import Engine
from cleanerd.daemon.inventory.listed_log import Offsets
from cleanerd.daemon.inventory.urgency import FOREVER_MS
from cleanerd.daemon.reports.retention import RetentionReport
from cleanerd.daemon.rules.condition import LEFT_TO_BROKER
from cleanerd.daemon.telemetry.event_log import EventLog
from cleanerd.daemon.values.holds import Hold
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.values.models import Explanation, Fact
from cleanerd.daemon.work.cleaner_leases import CleanerLeases
from cleanerd.daemon.work.commits import Commits
from cleanerd.daemon.work.condition import Conditions
from cleanerd.daemon.work.jobs import Jobs
from cleanerd.daemon.work.schedule import Schedule
from cleanerd.errors import CleanerdError, each_log
from cleanerd.policy.lifecycle import Status
from cleanerd.storage.log_dir import Owner
from cleanerd.storage.scan import Checkpoints
from cleanerd.units import utc

_BROKER_S = 2.0
"""How long a broker is waited for: a session waits for 30 s, perhaps for the answer to another thread."""

_STATES = {
    Status.NONE: "neither being cleaned nor paused",
    Status.IN_PROGRESS: "in progress",
    Status.ABORTED: "aborted, still stopping",
    Status.PAUSED: "paused",
}


_BROKERS_CLEANER = {
    "LogCleaningInProgress": "cleans this log",
    "LogCleaningAborted": "stops cleaning this log",
    "LogCleaningPaused": "is kept from this log",
}


@dataclass(frozen=True, slots=True)
class Explainer:
    """Explains logs, one by one; thread-safe."""

    conditions: Conditions
    retention: RetentionReport
    jobs: Jobs
    schedule: Schedule
    leases: CleanerLeases
    commits: Commits
    events: EventLog
    engine: Engine

    def of(self, log: LogId, *, exact: bool) -> Explanation:
        """Explain one log. `exact` examines its files as a cleaning would, which may start the engine; else scans decide.

        A log that is not known to be ours gets no other fact: its policy and its retention are not known either.
        """
        ignored = self.conditions.states.obstacles.ignored.get(log)
        if ignored is not None:
            return _explanation(
                log, f"not cleaned: {ignored}", [Fact(name="ignored", value=ignored, blocks=True)]
            )
        facts, remedy = self._about_daemon(log), None
        if not facts[0].blocks:  # else there is no dirty section
            held = None if exact and not any(fact.blocks for fact in facts) else self._held_back(log)
            facts += self._about_files(log, held)
            remedy = None if held is None else held.remedy
        blocking = [fact for fact in facts if fact.blocks]
        job = self.jobs.of(log)
        is_at_work = job is not None and job.started_ms is not None  # its files change while we look
        if not blocking and exact and not is_at_work:
            checkpoints, silence = self._reported(log)
            facts += [] if silence is None else [silence]
            examined, remedy = self._examined(log, checkpoints)
            facts.append(examined)
            blocking = [examined] if examined.blocks else []
        if blocking:
            decision = f"not cleaned: {_in_words(blocking[0])}"
        elif job is not None and job.started_ms is not None:
            decision = f"being cleaned since {utc(job.started_ms)} (job {job.id})"
        elif job is not None:
            decision = f"{self._promise(log)}: job {job.id} waits"
        elif exact or self.conditions.of(log).state == "dirty":
            decision = self._promise(log)
        else:
            decision = "not cleaned: not dirty enough, judging by its files"
        live = self.conditions.inventory.live(log)
        if live is not None and live.cleaning_state is not None:
            state = live.cleaning_state
            facts.append(
                Fact(name="broker's cleaner", value=f"{_BROKERS_CLEANER.get(state, '')} ({state})".lstrip())
            )
        facts += self._muted(log)
        facts.append(Fact(name="cleaned next by", value=self._cleaned_next_by(log)))
        advice = (self._advice(log) if blocking else None) or remedy
        if advice is not None:
            facts.append(Fact(name="what to do", value=advice))
        return _explanation(log, decision, facts + self.retention.facts(log))

    def _promise(self, log: LogId) -> str:
        failure = self.conditions.failures.of(log)
        if failure is None:
            return f"will be cleaned {self._when(log)}"
        failed = f"{failure.failures} failed; the last time: {failure.reason}"
        return f"will be tried again {self._when(log)} ({failed})"

    def _when(self, log: LogId) -> str:
        """When a due log is taken, if nothing changes."""
        until_ms = self.schedule.waits_until_ms(log)
        if until_ms is None:
            return "as soon as a worker is free"
        since_ms = self.conditions.clock.now_ms() - round(1000 * self.conditions.due_logs.due_for_s(log))
        waits = (
            f"due since {utc(since_ms)}, it waits for other small logs of its log directory, to share a job"
        )
        return f"from {utc(until_ms)} on, or earlier with others: {waits}"

    def _about_daemon(self, log: LogId) -> list[Fact]:
        """The first one is the policy."""
        config = self.conditions.topic_config(log)
        policy = ",".join(config.cleanup_policy)
        if not policy:
            policy = "empty: nothing goes but what lies below the log start offset"
        elif not config.compact:
            policy += ", without compact: retention only"
        origin = (
            self.conditions.configuration().topic_settings(log.topic_partition.topic)["cleanup.policy"].origin
        )
        facts = [
            Fact(name="cleanup.policy", value=policy, blocks=not config.compact, rule="1.3"),
            Fact(name="set by", value=str(origin)),
        ]
        status = self.conditions.states.state(log).status
        held = [hold for hold in self.conditions.states.holds() if hold.matches(log.topic_partition)]
        state = "; ".join([_STATES[status], *(_hold(hold) for hold in held)])
        facts.append(Fact(name="state", value=state, blocks=status is Status.PAUSED, rule="2A"))
        obstacle = self.conditions.of(log).obstacle
        if obstacle is not None and not any(fact.blocks for fact in facts):
            facts.append(Fact(name="in the way", value=obstacle, blocks=True))
        facts.append(Fact(name="result", value=str(self.conditions.ownership.way(log.log_dir))))
        return facts

    def _advice(self, log: LogId) -> str | None:
        """Advice to an operator who wants the log cleaned."""
        known, failure = self.conditions.inventory.facts(log), self.conditions.failures.of(log)
        config = self.conditions.topic_config(log)
        held = [hold.id for hold in self.conditions.states.holds() if hold.matches(log.topic_partition)]
        if not config.compact:
            return None if config.cleanup_policy else SET_POLICY
        if held:
            return " and ".join(f"`cleanerctl resume {hold_id}`" for hold_id in held)
        if failure is not None and failure.is_uncleanable:
            return f"repair or replace the file: the next scan notices and tries again; `cleanerctl retry {log}` tries now"
        if failure is not None and failure.retry_at_ms is not None:
            first = "" if failure.remedy is None else f"{failure.remedy}; "
            return f"{first}it will be tried again at {utc(failure.retry_at_ms)}; `cleanerctl retry {log}` tries now"
        if known is not None and known.contents.is_staged:
            is_off = self.conditions.configuration().broker.commit_live == "off"
            swap = "; or have the broker swap it in (cleanerd.commit.live=auto)" if is_off else ""
            stop = f"`cleanerctl commit {log} --wait` commits as soon as it has stopped"
            return f"stop the owner of the log directory: {stop}{swap}"
        return None

    def _muted(self, log: LogId) -> list[Fact]:
        """Whether the broker's cleaner is kept from a muted log, or why the log was given back to it."""
        given_back = self.leases.duty.given_back.get(log)
        if given_back is not None:
            until = "until it is cleaned and nothing is in the way of cleanerd"
            value = f"given back to the broker's cleaner, {until}: {given_back}"
        elif log in self.leases.held:
            value = "the broker's cleaner is kept away as long as cleanerd cleans the log"
        else:
            return []
        return [Fact(name="muted", value=value)]

    def _cleaned_next_by(self, log: LogId) -> str:
        """The cleaner that will clean the log next, and when, if nothing changes."""
        condition, live = self.conditions.of(log), self.conditions.inventory.live(log)
        if condition.state == "cleaning":
            return "cleanerd, which is at work on it"
        if live is not None and live.cleaning_state == "LogCleaningInProgress":
            return "the broker's cleaner, which is at work on it"
        if condition.state in ("dirty", "staged") and condition.obstacle is None:
            return f"cleanerd, {self._when(log)}"
        if condition.state == "staged":
            return f"cleanerd: {self.conditions.ownership.way(log.log_dir)}"
        theirs = self._by_the_broker(log)
        if condition.state not in ("dirty", "clean"):
            return theirs or "neither cleaner, until that changes"
        if condition.obstacle is not None:
            is_left = condition.obstacle.startswith(LEFT_TO_BROKER)
            return condition.obstacle if theirs is None or is_left else theirs
        config = self.conditions.topic_config(log)
        ours_above, theirs_above = config.min_cleanable_dirty_ratio, config.broker_min_cleanable_dirty_ratio
        when = f"when its dirty ratio is above {ours_above}"
        if ours_above >= 1:
            when = f"on request or past max.compaction.lag.ms (no dirty ratio is above {ours_above})"
        ours = f"cleanerd, {when}{self._or_horizons(log)}"
        if theirs is None:
            return ours
        return f"{ours}; {theirs}" if ours_above < theirs_above or theirs_above >= 1 else f"{theirs}; {ours}"

    def _by_the_broker(self, log: LogId) -> str | None:
        """The part of the live broker's cleaner; None if there is none, or if it is kept from the log."""
        config = self.conditions.topic_config(log)
        is_kept = self.conditions.is_leased(log) or self.conditions.brokers_cleaner.is_off(log.log_dir)
        is_there = self.conditions.ownership.owner(log.log_dir) is Owner.LIVE_BROKER
        if not config.compact or is_kept or not is_there or self.conditions.inventory.moving_to(log):
            return None
        is_seen = self.conditions.brokers_cleaner.is_at_work(log.log_dir)
        who = f"the broker's cleaner, which {'is' if is_seen else 'was not yet seen'} at work,"
        if config.broker_min_cleanable_dirty_ratio >= 1:
            return f"{who} never takes it by its ratio"
        return f"{who} when its dirty ratio is above {config.broker_min_cleanable_dirty_ratio}"

    def _or_horizons(self, log: LogId) -> str:
        """The end of a sentence: when expired tombstones are reason enough for a cleaning; empty if there are none."""
        found = self.conditions.due_logs.horizons_at_ms(log)
        if found is None:
            return ""
        passes_ms, at_ms = found
        waits = " (until then it waits for its dirty ratio)" if passes_ms < at_ms else ""
        when = "now" if at_ms <= self.conditions.clock.now_ms() else f"from {utc(at_ms)} on{waits}"
        return f", or {when} if a tombstone has passed its delete horizon"

    def _held_back(self, log: LogId) -> Cause | None:
        """Why a log is not cleanable up to its active segment, judging by scans; None if it is."""
        known, config = self.conditions.inventory.facts(log), self.conditions.topic_config(log)
        if known is None:
            return None
        facts, offsets, now_ms = known.facts({}), known.offsets, self.conditions.clock.now_ms()
        tp, high_watermark = log.topic_partition, offsets.high_watermark
        held = Held(self.conditions.ownership.files, log.log_dir, tp, facts, high_watermark, offsets.unlisted)
        return held.uncleanable(known.upper_bound(config, now_ms), config, now_ms)

    def _about_files(self, log: LogId, held: Cause | None) -> list[Fact]:
        """`held`: what to name beside the bound, None where an examination will: it may find another bound."""
        known, config = self.conditions.inventory.facts(log), self.conditions.topic_config(log)
        if known is None:
            return [
                Fact(name="files", value=self.conditions.inventory.error(log) or "no segment", blocks=True)
            ]
        bound = known.upper_bound(config, self.conditions.clock.now_ms())
        offsets, why = known.offsets, "" if held is None else f": {held.text}"
        facts = [
            Fact(name="log start offset", value=str(offsets.log_start)),
            Fact(
                name="first dirty offset", value=_first_dirty(bound.first_dirty_offset, offsets), rule="1.5"
            ),
            Fact(name="high watermark", value=f"at least {offsets.high_watermark}", rule="A.1"),
            Fact(
                name="active segment",
                value=f"from offset {known.contents.active_base_offset}, never cleaned",
                rule="1.9",
            ),
            Fact(
                name="first uncleanable offset",
                value=f"at most {bound.first_uncleanable_offset}{why}",
                rule="1.13",
            ),
            Fact(
                name="dirty ratio",
                value=f"at most {bound.dirty_ratio:.3f}, min.cleanable.dirty.ratio is {config.min_cleanable_dirty_ratio}",
                rule="1.21",
            ),
        ]
        if offsets.recovery_point is not None:
            facts.insert(3, Fact(name="recovery point", value=f"at least {offsets.recovery_point}"))
        stay = self.commits.why_tombstones_stay(log)
        if stay is not None:
            facts.append(Fact(name="tombstones", value=f"stay, and markers: {stay.reason}", rule="4.19"))
        if config.max_compaction_lag_ms < FOREVER_MS:
            facts.append(
                Fact(name="max.compaction.lag.ms", value=str(config.max_compaction_lag_ms), rule="1.18")
            )
        last = self.events.last(log)
        if last is not None:
            what = f"{last.kind} {last.outcome}{f', {last.reason}' if last.reason else ''}"
            facts.append(Fact(name="last event", value=f"{utc(last.time_ms)}: {what}"))
        return facts

    def _reported(self, log: LogId) -> tuple[Checkpoints | None, Fact | None]:
        """The offsets that a live broker goes by; or, where it does not answer in time, that fact."""
        answers: SimpleQueue[Checkpoints | None] = SimpleQueue()

        def ask() -> None:
            found = None
            with each_log(log.log_dir):  # the examination reports what is wrong
                ownership = self.conditions.ownership
                found = ownership.brokers.checkpoints(ownership.at(log.log_dir), (log.topic_partition,))
            answers.put(found)

        threading.Thread(target=ask, name="cleanerd-explain", daemon=True).start()
        try:
            return answers.get(timeout=_BROKER_S), None
        except Empty:
            silence = f"does not answer within {_BROKER_S:.0f} s: its files count, which lag behind"
            return None, Fact(name="broker", value=silence)

    def _examined(self, log: LogId, live: Checkpoints | None) -> tuple[Fact, str | None]:
        """The finding of an examination, with transactions and the true log end; and what to do."""
        topic, configuration = log.topic_partition.topic, self.conditions.configuration()
        partitions, configs = (log.topic_partition,), {topic: configuration.topic(topic)}
        try:
            found: LogResult = self.engine.examine(
                ExamineCall(log.log_dir, partitions, configuration.broker, configs, live)
            )
        except (CleanerdError, OSError) as error:
            return Fact(name="examination", value=str(error), blocks=True), None
        outcome, is_held = found.outcome, not isinstance(found.outcome, Planned)
        remedy = outcome.remedy if isinstance(outcome, Failed | Skipped) else None
        return Fact(name="examination", value=outcome.reason or outcome.word, blocks=is_held), remedy


def _explanation(log: LogId, decision: str, facts: list[Fact]) -> Explanation:
    return Explanation(**log.fields(), decision=decision, facts=tuple(facts))


def _in_words(fact: Fact) -> str:
    return f"cleanup.policy is {fact.value}" if fact.name == "cleanup.policy" else fact.value


def _hold(hold: Hold) -> str:
    until = "" if hold.expires_ms is None else f" until {utc(hold.expires_ms)}"
    reason = f": {hold.reason}" if hold.reason else ""
    return f"hold {hold.id} of {hold.owner} since {utc(hold.created_ms)}{until}{reason}"


def _first_dirty(offset: int, offsets: Offsets) -> str:
    if offsets.is_outdated:
        return f"{offset}, the checkpoint is higher, but segments from here on were written after it"
    return f"{offset}, checkpoint {'none' if offsets.checkpoint is None else offsets.checkpoint}"
