"""Reports of several brokers as one: a fleet, replicas that do not begin at the same offset, and when disks will be full.

The newest report of a broker counts; with an older one of the same broker its growth is known.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from operator import index
from typing import Any

from cleanerd.tools.insight.findings import Severity
from cleanerd.tools.insight.reports import read_report
from cleanerd.units import size, utc

from .facts import DAY_MS, HOUR_MS, Finding, Limits, Place, finding
from .report import Row, finding_row

_SEVERITIES = tuple(map(str, Severity))
_FIELDS = {
    "": ("at_ms", "node_id", "cluster_id is_whole"),
    "directories": ("size_bytes free_bytes device", "", "path"),
    "logs": (
        "partition size_bytes active_bytes log_start log_end",
        "second_segment superseded_bytes after_roll_bytes error_bytes cleanable_bytes due_since_ms",
        "topic log_dir cleanup_policy",
    ),
    "findings": ("", "cost_bytes", "code meaning path topic partition evidence remedy cost_per_month"),
}
"""What is used of a report, by its lists: numbers, numbers or null, others."""


def read_reports(paths: Iterable[str]) -> list[Row]:
    """Documents of `report`. Raises BadUsage."""
    return [_read(path) for path in paths]


def _read(path: str) -> Row:
    with read_report(path, "doctor") as found:
        for part, (numbers, maybe_numbers, others) in _FIELDS.items():
            for row in [found] if part == "" else found[part]:
                for name in numbers.split():
                    index(row[name])
                for name in maybe_numbers.split():
                    index(row[name] or 0)
                for name in others.split():
                    row[name]
        hash(_name(found))
        for one in found["findings"]:
            _SEVERITIES.index(one["severity"])
            [
                str.isprintable(one[name] or "")
                for name in ("code", "meaning", "evidence", "remedy", "path", "topic")
            ]
    return found


def merged(reports: Sequence[Row], limits: Limits) -> dict[str, Any]:
    """The fields of the merged document; findings of one broker have its id as `node_id`."""
    by_broker = defaultdict[tuple[object, ...], list[Row]](list)
    for report in sorted(reports, key=lambda report: report["at_ms"]):
        by_broker[_name(report)].append(report)
    newest = [some[-1] for some in by_broker.values()]
    growth = [row for some in by_broker.values() for row in _growth(some)]
    found = [(row["node_id"], finding_row(one)) for row, one in _full_soon(growth, limits)]
    found += [(None, finding_row(one)) for one in _log_starts(newest)]
    found += [(report["node_id"], one) for report in newest for one in report["findings"]]
    rows = [{"node_id": node_id, **row} for node_id, row in found]
    rows.sort(key=lambda row: (_SEVERITIES.index(row["severity"]), -(row["cost_bytes"] or 0)))
    logs = [{"node_id": report["node_id"], **log} for report in newest for log in report["logs"]]
    return {"brokers": list(map(_broker_row, newest)), "growth": growth, "findings": rows, "logs": logs}


def _name(report: Row) -> tuple[object, ...]:
    """Of a broker; of directories that are nobody's, their paths."""
    if report["node_id"] is not None:
        return report["cluster_id"], report["node_id"]
    return tuple(directory["path"] for directory in report["directories"])


def _broker_row(report: Row) -> dict[str, Any]:
    devices = {one["device"]: one["free_bytes"] for one in report["directories"]}
    return {
        "cluster_id": report["cluster_id"],
        "node_id": report["node_id"],
        "at_ms": report["at_ms"],
        "directories": [one["path"] for one in report["directories"]],
        "logs": len(report["logs"]),
        "size_bytes": sum(one["size_bytes"] for one in report["directories"]),
        "free_bytes": sum(devices.values()),
        "superseded_bytes": sum(log["superseded_bytes"] or 0 for log in report["logs"]),
        **{
            f"{word}s": sum(one["severity"] == word for one in report["findings"]) for word in _SEVERITIES[:2]
        },
    }


def _growth(reports: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Of each file system between the first and the last whole report of a broker, an hour apart at least."""
    whole = [one for one in reports if one["is_whole"]]
    if not whole or whole[-1]["at_ms"] - whole[0]["at_ms"] < HOUR_MS:
        return
    first, last = whole[0], whole[-1]
    before = {one["path"]: one["size_bytes"] for one in first["directories"]}
    for device in dict.fromkeys(one["device"] for one in last["directories"]):
        mine = [one for one in last["directories"] if one["device"] == device and one["path"] in before]
        if not mine:
            continue
        grown = sum(one["size_bytes"] - before[one["path"]] for one in mine)
        per_day = grown * DAY_MS // (last["at_ms"] - first["at_ms"])
        free = min(one["free_bytes"] for one in mine)
        yield {
            "node_id": last["node_id"],
            "path": mine[0]["path"],
            "from_ms": first["at_ms"],
            "to_ms": last["at_ms"],
            "bytes_per_day": per_day,
            "free_bytes": free,
            "days_until_full": round(free / per_day, 1) if per_day > 0 else None,
        }


def _full_soon(growth: Sequence[Row], limits: Limits) -> Iterator[tuple[Row, Finding]]:
    for row in growth:
        days = row["days_until_full"]
        if days is not None and days < limits.full_days:
            text = f"{size(row['free_bytes'])} free, {size(row['bytes_per_day'])} more a day since {utc(row['from_ms'])}"
            remedy = "clean what is superseded (below), lower retention, or move replicas; `cleanerd rescue` once it is full"
            yield row, finding("full_soon", Place(row["path"]), f"{text}: full in {days:.0f} days", remedy)


def _log_starts(reports: Sequence[Row]) -> Iterator[Finding]:
    """Replicas of which one lacks a whole segment of another at its start."""
    replicas = defaultdict[tuple[object, str, int], list[tuple[int, Row]]](list)
    for report in reports:
        for log in report["logs"] if report["node_id"] is not None else ():
            key = report["cluster_id"], log["topic"], log["partition"]
            replicas[key].append((report["node_id"], log))
    for (_, topic, partition), some in replicas.items():
        (low_node, low), (high_node, high) = (
            choose(some, key=lambda one: one[1]["log_start"]) for choose in (min, max)
        )
        if not low["log_start"] < (low["second_segment"] or 0) <= high["log_start"]:
            continue
        text = f"node {low_node} begins at {low['log_start']}, node {high_node} at {high['log_start']}"
        remedy = "wait for the next retention pass; then see which one is right: `kafka-delete-records.sh` raises the others"
        place = Place(f"{low['log_dir']}/{topic}-{partition}", topic, partition, low["log_start"])
        yield finding("log_starts_differ", place, text, remedy)
