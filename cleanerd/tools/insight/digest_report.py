"""Digests as documents, which travel between machines, and what two of them tell about a log.

A document is `{"seed", "buckets", "offsets", "keys_of", "owners": [...], "logs": [...], "failed": [...]}`. Sums are 32
hexadecimal digits.
"""

import shlex
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from os.path import basename, dirname
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from cleanerd.format.names import TopicPartition, parse_partition_dir
from cleanerd.units import key_text

from .digest import Digests, LogDigest, Question
from .digest_rows import Terms
from .reports import Count, Number, Partition, Read, Text, Topic, checked, read_report

Row = dict[str, Any]
BUCKETS_MAX = 1 << 16
"""Of `--buckets`, a power of two."""


def log_row(log: LogDigest) -> Row:
    """A log in a document. `bucket_sums`: of the buckets that have any key; `listed`: the keys of the buckets `keys_of`."""
    return {
        "topic": log.topic_partition.topic,
        "partition": log.topic_partition.partition,
        "log_dir": dirname(log.directory),
        "from": log.start,
        "at": log.at,
        "log_start": log.log_start,
        "cleaned_to": log.cleaned_to,
        "stable_end": log.stable_end,
        "digest": _hex(log.digest),
        "keys": log.keys,
        "no_key_records": log.no_key[0],
        "no_key_digest": _hex(log.no_key[1]),
        "is_unkeyed": log.is_unkeyed,
        "bucket_sums": {str(bucket): _hex(value) for bucket, value in sorted(log.sums.items()) if value},
        "listed": [
            {
                "bucket": one.bucket,
                "key": key_text(one.key),
                "offset": one.offset,
                "timestamp_ms": one.timestamp_ms,
                "hash": _hex(one.hash),
            }
            for one in log.listed
        ],
    }


def document(found: Digests, question: Question) -> Row:
    """The document of `digest -o json`."""
    terms = question.terms
    return {
        "seed": terms.seed,
        "buckets": terms.buckets,
        "offsets": terms.with_offsets,
        "keys_of": sorted(question.wanted),
        "owners": [
            {"log_dir": log_dir, "cluster_id": one.cluster_id, "node_id": one.node_id}
            for log_dir, one in found.owners.items()
        ],
        "logs": [log_row(log) for log in found.logs],
        "failed": [{"directory": path, "reason": reason} for path, reason in found.failed.items()],
    }


def _hex(value: int) -> str:
    return f"{value:032x}"


_Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{1,32}$")]


def _power_of_two(number: int) -> int:
    if number & (number - 1):
        raise ValueError("a power of two")
    return number


class _Listed(Read):
    """A key in a document."""

    key: Text
    offset: Count
    timestamp_ms: Number
    hash: _Hex


class _Log(Read):
    """A log in a document."""

    topic: Topic
    partition: Partition
    log_dir: Text
    start: Count = Field(alias="from")
    at: Count
    log_start: Count
    cleaned_to: Count
    stable_end: Count
    digest: _Hex
    keys: Count
    no_key_records: Count
    no_key_digest: _Hex
    is_unkeyed: bool | None
    bucket_sums: dict[Annotated[str, Field(pattern=r"^[0-9]{1,5}$")], _Hex]
    listed: list[_Listed]


class _Owner(Read):
    """Whose a log directory is."""

    log_dir: Text
    cluster_id: Text | None
    node_id: Number | None


class _Failed(Read):
    """A directory that could not be looked at."""

    directory: Text
    reason: Text


class _Document(Read):
    """What is used of a document."""

    seed: Annotated[int, Field(ge=0, lt=1 << 64)]
    buckets: Annotated[int, Field(ge=1, le=BUCKETS_MAX), AfterValidator(_power_of_two)]
    offsets: bool
    keys_of: list[Count]
    owners: list[_Owner]
    logs: list[_Log]
    failed: list[_Failed]


@dataclass(frozen=True, slots=True)
class Side:
    """A log of a report. `owner`: cluster and node, None for what is nobody's."""

    report: str  # its name
    terms: Terms
    keys_of: frozenset[int]
    row: Row
    failed: str | None = None  # why there is no digest
    owner: tuple[str | None, int | None] | None = None

    @property
    def name(self) -> str:
        """The name of the log, for people."""
        return f"{self.report} ({self.row['log_dir']})" if self.report else str(self.row["log_dir"])

    def again(self, buckets: Sequence[int]) -> str:
        """The command that lists the keys of some buckets of the same digest."""
        row, terms = self.row, self.terms
        of_log = ["--log-dir", row["log_dir"], "--topic", row["topic"], "--partition", row["partition"]]
        bounds = ["--from", row["from"], "--at", row["at"], "--seed", terms.seed, "--buckets", terms.buckets]
        words = [*of_log, *bounds, *(() if terms.with_offsets else ("--no-offsets",))]
        return shlex.join(
            map(str, ["cleanerd", "digest", *words, "--keys", ",".join(map(str, buckets)), "-o", "json"])
        )


@dataclass(slots=True)
class Comparison:
    """Two sides of a log, or its only one. `result`: equal, differs, or not_comparable, and then `why`."""

    topic_partition: TopicPartition
    sides: tuple[Side, ...]
    result: str
    why: str | None = None
    buckets: list[int] = field(default_factory=list)
    keys: list[Row] | None = None  # None: not listed

    @property
    def fields(self) -> Row:
        """The fields of `digest --compare -o json`."""
        tp = self.topic_partition
        return {
            "topic": tp.topic,
            "partition": tp.partition,
            "sides": [side.name for side in self.sides],
            "result": self.result,
            "why": self.why,
            "buckets": self.buckets,
            "keys": self.keys,
        }


def sides_of(found: Digests, question: Question) -> list[Side]:
    """The logs of a run, to compare those of which it has several replicas."""
    return [Side("", question.terms, question.wanted, log_row(log)) for log in found.logs]


def read_reports(paths: Sequence[str]) -> tuple[list[Side], list[str]]:
    """The logs in documents, and what else they lack, with the reasons. Raises BadUsage."""
    sides, lacks = list[Side](), list[str]()
    for path in paths:
        of_report, its_lacks = sides_in(path, read_report(path, "digest"))
        sides += of_report
        lacks += its_lacks
    return sides, lacks


def sides_in(path: str, document: Row) -> tuple[list[Side], list[str]]:
    """As `read_reports`, of one document."""
    sides, lacks = list[Side](), list[str]()
    found = checked(_Document, document, path, "digest")
    terms = Terms(found.seed, found.buckets, found.offsets)
    keys_of = frozenset(found.keys_of)
    owners = {one.log_dir: (one.cluster_id, one.node_id) for one in found.owners}
    for log in found.logs:
        row = log.model_dump(by_alias=True)
        sides.append(Side(path, terms, keys_of, row, None, owners.get(log.log_dir)))
    for failed in found.failed:
        parsed = parse_partition_dir(basename(failed.directory))
        if parsed is None:
            lacks.append(f"{path}: {failed.directory}: {failed.reason}")
        else:
            row = {**asdict(parsed[0]), "log_dir": dirname(failed.directory)}
            sides.append(Side(path, terms, keys_of, row, failed.reason, owners.get(row["log_dir"])))
    return sides, lacks


def _tp(row: Row) -> TopicPartition:
    return TopicPartition(str(row["topic"]), int(row["partition"]))


def compare(
    sides: Sequence[Side], listed: Callable[[Side, Sequence[int]], Side | None] | None = None
) -> list[Comparison]:
    """Each log of each report with the first one of its name. What has only one side may be lost on the other.

    `listed`: looks up the keys of some buckets on a side, None where that is not possible.
    """
    by_log: dict[TopicPartition, list[Side]] = defaultdict(list)
    for side in sides:
        by_log[_tp(side.row)].append(side)
    found = []
    for tp, (first, *others) in sorted(by_log.items()):
        found += [_compared(tp, (first, other), listed) for other in others]
        if not others:
            found.append(Comparison(tp, (first,), "not_comparable", f"only {first.name} has it"))
    return found


def _compared(
    tp: TopicPartition,
    sides: tuple[Side, Side],
    listed: Callable[[Side, Sequence[int]], Side | None] | None,
) -> Comparison:
    why = _why_not(*sides)
    if why is not None:
        return Comparison(tp, sides, "not_comparable", why)
    one, other = (side.row for side in sides)
    mine, theirs = one["bucket_sums"], other["bucket_sums"]
    buckets = sorted(
        int(bucket) for bucket in mine.keys() | theirs.keys() if mine.get(bucket) != theirs.get(bucket)
    )
    without_key, why = _without_key(one, other)
    result = Comparison(tp, sides, "differs" if buckets else without_key, why, buckets)
    if buckets and listed is not None:
        sides_listed = tuple(_with_keys(side, buckets, listed) for side in sides)
        if sides_listed[0] is not None and sides_listed[1] is not None:
            result.keys = _different(sides_listed[0], sides_listed[1])
    elif buckets and all(side.keys_of >= set(buckets) for side in sides):
        result.keys = _different(*sides)
    return result


def _without_key(one: Row, other: Row) -> tuple[str, str | None]:
    """What the records without a key say of two sides whose keys are equal, and why."""
    if one["no_key_digest"] == other["no_key_digest"]:
        return "equal", None
    numbers = f"records without a key differ: {one['no_key_records']} and {other['no_key_records']}"
    if all(row["cleaned_to"] <= row["from"] for row in (one, other)):
        return "differs", numbers
    if False in (one["is_unkeyed"], other["is_unkeyed"]):
        return "equal", f"{numbers}; a cleaning removes them"
    if None in (one["is_unkeyed"], other["is_unkeyed"]):
        return "not_comparable", f"{numbers}; whether a cleaning took them is not known"
    return "differs", f"{numbers}; a cleaning removes them"


def _with_keys(
    side: Side, buckets: Sequence[int], listed: Callable[[Side, Sequence[int]], Side | None]
) -> Side | None:
    return side if side.keys_of >= set(buckets) else listed(side, buckets)


def _different(one: Side, other: Side) -> list[Row]:
    mine, theirs = ({row["key"]: row for row in side.row["listed"]} for side in (one, other))
    return [
        {"key": key, "sides": [_place(mine.get(key)), _place(theirs.get(key))]}
        for key in sorted(mine.keys() | theirs.keys())
        if mine.get(key, {}).get("hash") != theirs.get(key, {}).get("hash")
    ]


def _place(row: Mapping[str, Any] | None) -> Row | None:
    return None if row is None else {"offset": row["offset"], "timestamp_ms": row["timestamp_ms"]}


def _why_not(one: Side, other: Side) -> str | None:
    for side in (one, other):
        if side.failed is not None:
            return f"{side.name}: {side.failed}"
    if one.terms != other.terms:
        return "seed, buckets or --no-offsets are not the same"
    if not one.terms.with_offsets:
        return None
    mine, theirs = one.row, other.row
    if mine["at"] != theirs["at"]:
        least = max(mine["cleaned_to"], theirs["cleaned_to"])
        most = min(mine["stable_end"], theirs["stable_end"])
        what = f"one is at offset {mine['at']}, the other at {theirs['at']}"
        if least <= most:
            return f"{what}; ask both --at {most}"
        return f"{what}; one is cleaned up to {least}, the other decided up to {most}: try again when it has caught up"
    if mine["from"] != theirs["from"]:
        start = max(mine["log_start"], theirs["log_start"])
        return f"one begins at offset {mine['from']}, the other at {theirs['from']}; ask both --from {start}"
    return None
