"""All rules, and those about directories as a whole."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from cleanerd.tools.insight.findings import KINDS, Severity
from cleanerd.units import counted, first_of, size

from . import cleaning_rules, key_rules, topic_rules
from .facts import (
    BrokerFacts,
    DirectoryFacts,
    Finding,
    Limits,
    LogFacts,
    Place,
    Sample,
    finding,
    verify_command,
)

_LOG_RULES: Sequence[Callable[[BrokerFacts, DirectoryFacts, LogFacts, Limits], Finding | None]] = (
    cleaning_rules.missed_deadline,
    cleaning_rules.held_back,
    cleaning_rules.open_transaction,
    cleaning_rules.future_timestamps,
    cleaning_rules.active_segment,
    cleaning_rules.retention_overdue,
)
_KEY_RULES: Sequence[Callable[[BrokerFacts, LogFacts, Sample, Limits], Finding | None]] = (
    key_rules.superseded,
    key_rules.tombstones_overdue,
    key_rules.dedupe_buffer,
    key_rules.no_keys,
)
"""For compacted logs that were read."""
_NAMED = 3


def judge(broker: BrokerFacts, limits: Limits) -> list[Finding]:
    """Everything that is wrong; errors first, then what costs most."""
    found = [
        *topic_rules.policies(broker),
        *topic_rules.large_internal(broker, limits),
        *_skew(broker, limits),
    ]
    for directory in broker.directories:
        found += _directory(directory)
        found += cleaning_rules.late(broker, directory, limits)
        for log in directory.logs:
            found += filter(None, (rule(broker, directory, log, limits) for rule in _LOG_RULES))
            sample = log.sample
            if sample is not None and log.is_compacted:
                found += filter(None, (rule(broker, log, sample, limits) for rule in _KEY_RULES))
    severities = list(Severity)
    return sorted(
        found,
        key=lambda one: (
            severities.index(one.severity),
            -(one.cost_bytes or 0),
            one.code,
            one.place.path,
        ),
    )


def _directory(directory: DirectoryFacts) -> Iterator[Finding]:
    """What lies around in a directory, what `verify` finds wrong with its names, and what could not be read."""
    for left in directory.leftovers:
        kind = KINDS[left.code]
        severity = Severity.ERROR if kind.severity is Severity.ERROR else Severity.WARNING
        text = f"{counted(left.files, 'file')} with {size(left.size_bytes)}, the first {left.path}"
        yield Finding(
            left.code, severity, kind.meaning, Place(directory.path), text, kind.remedy, left.size_bytes
        )
    alone = defaultdict[str, list[str]](list)
    for log in directory.logs:
        if log.left_alone is not None:
            alone[log.left_alone].append(str(log.topic_partition))
    for one in directory.problems:
        if alone and one.code == "meta_properties_missing":
            continue  # the reason why they are left alone, which names the logs
        place = Place(one.path, one.topic or None, None if one.partition < 0 else one.partition)
        words = (("expected", one.expected), ("found", one.found))
        text = ", ".join(f"{word} {what}" for word, what in words if what) or one.path
        yield Finding(one.code, one.kind.severity, one.kind.meaning, place, text, one.kind.remedy)
    for path, reason in (directory.failed or {}).items():
        remedy = (
            f"{verify_command(directory.path)} says what is wrong, `cleanerd salvage` copies what is sound"
        )
        yield finding("unreadable", Place(path), reason, remedy)
    for reason, logs in alone.items():
        yield finding(
            "left_alone",
            Place(directory.path),
            f"{first_of(logs, _NAMED)}: {reason}",
            "restore or set what the reason names",
        )
    unknown = sorted({log.topic_partition.topic for log in directory.logs if log.config is None})
    if unknown:
        remedy = (
            "give the broker's --config with its metadata.log.dir, or --topic-set TOPIC:cleanup.policy=..."
        )
        yield finding("unknown_topics", Place(directory.path), first_of(unknown, _NAMED), remedy)


def _skew(broker: BrokerFacts, limits: Limits) -> Iterator[Finding]:
    """The fullest of several directories."""
    sizes = {one.path: one.size_bytes for one in broker.directories}
    if len(sizes) < 2 or not broker.is_whole:
        return
    fullest, mean = max(sizes, key=lambda path: sizes[path]), sum(sizes.values()) / len(sizes)
    others = (sum(sizes.values()) - sizes[fullest]) / (len(sizes) - 1)
    if sizes[fullest] > limits.skew * others and sizes[fullest] - mean >= limits.least_bytes:
        text = f"{size(sizes[fullest])}, the others have {size(round(others))} on average"
        remedy = "move replicas with `kafka-reassign-partitions.sh` and log_dirs in its JSON"
        yield finding("skew", Place(fullest), text, remedy, round(sizes[fullest] - mean))
