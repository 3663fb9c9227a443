"""Why a log is or is not cleaned now, fact by fact, in the order in which they decide."""

from cleanerd.cleaning.result import LogResult
from cleanerd.daemon.due import FOREVER_MS
from cleanerd.daemon.engine_calls import ExamineCall
from cleanerd.daemon.model import LogId
from cleanerd.daemon.operations import Explanation, Fact
from cleanerd.daemon.supervisor import Supervisor
from cleanerd.errors import CleanerdError
from cleanerd.policy.lifecycle import Status
from cleanerd.storage.scan import is_kafka_dir


def explain(daemon: Supervisor, log: LogId) -> Explanation:
    """Looks at the log as exactly as a cleaning would; takes a second when the engine has to start for it."""
    facts = [*_about_daemon(daemon, log), *_about_files(daemon, log)]
    blocking = [fact for fact in facts if fact.blocks]
    if not blocking:
        facts.append(_examined(daemon, log))
        blocking = facts[-1:] if facts[-1].blocks else []
    if blocking:
        decision = f"not cleaned: {blocking[0].value}"
    elif daemon.jobs.of(log) is not None:
        decision = "being cleaned, or next"
    else:
        decision = "will be cleaned as soon as a worker is free"
    tp = log.topic_partition
    return Explanation(
        topic=tp.topic, partition=tp.partition, log_dir=log.log_dir, decision=decision, facts=tuple(facts)
    )


def _about_daemon(daemon: Supervisor, log: LogId) -> list[Fact]:
    config = daemon.configuration().topic(log.topic_partition.topic)
    policy = ",".join(config.cleanup_policy) or "empty"
    reason = f"cleanup.policy is {policy}" + ("" if config.compact else ", without compact")
    facts = [Fact(name="cleanup.policy", value=reason, blocks=not config.compact, rule="1.3")]
    state = daemon.states.state(log)
    held = [hold for hold in daemon.states.holds() if hold.matches(log.topic_partition)]
    by = "".join(f"; hold {hold.id} of {hold.owner}: {hold.reason}" for hold in held)
    facts.append(Fact(name="state", value=f"{state}{by}", blocks=state.status is Status.PAUSED, rule="2A"))
    obstacle = daemon.obstacle(log)
    if obstacle is not None:
        facts.append(Fact(name="obstacle", value=obstacle, blocks=True))
    owner = daemon.ownership.owner_of(log.log_dir)
    if owner is not None and is_kafka_dir(daemon.files, log.log_dir):
        text = f"process {owner or 'unknown'} holds .lock: a result waits staged until it stops"
        facts.append(Fact(name="owner of the log directory", value=text))
    return facts


def _about_files(daemon: Supervisor, log: LogId) -> list[Fact]:
    known, config = daemon.inventory.facts(log), daemon.configuration().topic(log.topic_partition.topic)
    if known is None:
        return [Fact(name="files", value=daemon.inventory.errors().get(log, "no segment"), blocks=True)]
    bound = known.upper_bound(config, daemon.clock.now_ms())
    offsets = known.offsets
    facts = [
        Fact(name="log start offset", value=str(offsets.log_start)),
        Fact(
            name="first dirty offset",
            value=_first_dirty(bound.first_dirty_offset, offsets.checkpoint),
            rule="1.5",
        ),
        Fact(name="high watermark", value=f"at least {offsets.high_watermark}", rule="A.1"),
        Fact(
            name="active segment",
            value=f"from offset {known.contents.active_base_offset}, never cleaned",
            rule="1.7",
        ),
        Fact(
            name="first uncleanable offset",
            value=f"at most {bound.first_uncleanable_offset}, set by the {bound.limit.value}",
            rule="1.6",
        ),
        Fact(
            name="dirty ratio",
            value=f"at most {bound.dirty_ratio:.3f}, min.cleanable.dirty.ratio is {config.min_cleanable_dirty_ratio}",
            rule="1.21",
        ),
    ]
    if offsets.recovery_point is not None:
        facts.insert(3, Fact(name="recovery point", value=f"at least {offsets.recovery_point}"))
    if config.max_compaction_lag_ms < FOREVER_MS:
        facts.append(Fact(name="max.compaction.lag.ms", value=str(config.max_compaction_lag_ms), rule="1.18"))
    last = daemon.account.last(log)
    if last is not None:
        facts.append(
            Fact(name="last", value=f"{last.kind}: {last.outcome}{f', {last.reason}' if last.reason else ''}")
        )
    return facts


def _first_dirty(offset: int, checkpoint: int | None) -> str:
    return f"{offset}, checkpoint {'none' if checkpoint is None else checkpoint}"


def _examined(daemon: Supervisor, log: LogId) -> Fact:
    """What a cleaning would find, with transactions and the true log end."""
    topic, configuration = log.topic_partition.topic, daemon.configuration()
    call = ExamineCall(
        log.log_dir, (log.topic_partition,), configuration.broker, {topic: configuration.topic(topic)}
    )
    try:
        found: LogResult = daemon.engine.examine(call)
    except CleanerdError as error:
        return Fact(name="examination", value=str(error), blocks=True)
    value = f"[{found.first_dirty_offset}, {found.end_offset}): {found.reason}"
    return Fact(name="examination", value=value, blocks=found.outcome != "planned")
