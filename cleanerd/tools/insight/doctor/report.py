"""The report as a document, which other reports are merged with: names that others script against (`insight.md`)."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from cleanerd.tools.insight.findings import Severity
from cleanerd.tools.insight.reports import Count, Number, Partition, Read, Text, Topic

from .facts import BrokerFacts, DirectoryFacts, Finding, LogFacts

Row = Mapping[str, Any]


def document(broker: BrokerFacts, findings: Sequence[Finding], price: float | None = None) -> dict[str, Any]:
    """The fields of the document, but for its version. Times are ms since 1970, sizes bytes; null: not known. `price`: of
    10^9 bytes a month.
    """
    return {
        "at_ms": broker.at_ms,
        "node_id": broker.node_id,
        "cluster_id": broker.cluster_id,
        "is_whole": broker.is_whole and not broker.is_interrupted,
        "findings": [finding_row(one, price) for one in findings],
        "directories": [_directory_row(one) for one in broker.directories],
        "logs": [log_row(one, log) for one in broker.directories for log in one.logs],
    }


def finding_row(one: Finding, price: float | None = None) -> dict[str, Any]:
    """A finding."""
    return {
        "code": one.code,
        "severity": str(one.severity),
        "meaning": one.meaning,
        **one.place._asdict(),
        "evidence": one.evidence,
        "cost_bytes": one.cost_bytes,
        "cost_per_month": None
        if price is None or one.cost_bytes is None
        else round(one.cost_bytes * price / 1e9, 2),
        "remedy": one.remedy,
    }


def _directory_row(one: DirectoryFacts) -> dict[str, Any]:
    return {
        "path": one.path,
        "is_live": one.is_live,
        "judged_ms": one.judged_ms,
        "device": one.device,
        "size_bytes": one.size_bytes,
        "free_bytes": one.free_bytes,
        "logs": len(one.logs),
    }


def log_row(directory: DirectoryFacts, log: LogFacts) -> dict[str, Any]:
    """A log; what comes from its sample is null if it was not read."""
    snapshot, sample, tp = log.snapshot, log.sample, log.topic_partition
    second = snapshot.segments[1].base_offset if len(snapshot.segments) > 1 else None
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "log_dir": directory.path,
        "cleanup_policy": None if log.config is None else list(log.config.cleanup_policy),
        "size_bytes": snapshot.size_bytes,
        "active_bytes": snapshot.segments[-1].size_bytes,
        "clean_bytes": log.range.clean_bytes,
        "cleanable_bytes": log.range.cleanable_bytes if log.is_compacted else None,
        "due_since_ms": log.due_since_ms(),
        "log_start": snapshot.log_start_offset,
        "second_segment": second,
        "log_end": snapshot.log_end_offset,
        "superseded_bytes": None if sample is None else sample.superseded_bytes,
        "after_roll_bytes": None if sample is None else sample.after_roll_bytes,
        "error_bytes": None if sample is None else sample.error_bytes,
        "keys": None if sample is None else sample.keys,
    }


class _Finding(Read):
    """A finding in a document."""

    code: Text
    severity: Annotated[Severity, Field(strict=False)]
    meaning: Text
    path: Text
    topic: Topic | None
    partition: Partition | None
    offset: Number | None
    evidence: Text
    cost_bytes: Count | None
    cost_per_month: Annotated[float, Field(allow_inf_nan=False)] | None
    remedy: Text


class _Directory(Read):
    """A directory in a document."""

    path: Text
    is_live: bool
    judged_ms: Number
    device: Number
    size_bytes: Count
    free_bytes: Count
    logs: Count


class _Log(Read):
    """A log in a document."""

    topic: Topic
    partition: Partition
    log_dir: Text
    cleanup_policy: list[Text] | None
    size_bytes: Count
    active_bytes: Count
    clean_bytes: Count
    cleanable_bytes: Count | None
    due_since_ms: Number | None
    log_start: Count
    second_segment: Count | None
    log_end: Count
    superseded_bytes: Count | None
    after_roll_bytes: Count | None
    error_bytes: Count | None
    keys: Count | None


def _known_together(log: _Log) -> _Log:
    sample = log.superseded_bytes, log.after_roll_bytes, log.error_bytes, log.keys
    if None in sample and any(one is not None for one in sample):
        raise ValueError("all of superseded_bytes, after_roll_bytes, error_bytes and keys, or none")
    if log.due_since_ms is not None and log.cleanable_bytes is None:
        raise ValueError("cleanable_bytes beside due_since_ms")
    return log


class Document(Read):
    """What other reports are merged with: the fields of `document`."""

    at_ms: Number
    node_id: Number | None
    cluster_id: Text | None
    is_whole: bool
    findings: list[_Finding]
    directories: list[_Directory]
    logs: list[Annotated[_Log, AfterValidator(_known_together)]]
