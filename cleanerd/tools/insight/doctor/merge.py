"""Reports of several brokers as one: a fleet, replicas that differ, and when disks will be full.

The newest report of a broker counts; with an older one of the same broker its growth is known.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from shlex import quote
from typing import Any

from cleanerd.errors import BadUsage
from cleanerd.tools.insight.digest_report import Side, compare, sides_in
from cleanerd.tools.insight.findings import Severity
from cleanerd.tools.insight.reports import checked, read_report
from cleanerd.units import counted, size, utc

from .facts import DAY_MS, HOUR_MS, Finding, Limits, Place, finding
from .report import Document, Row, finding_row

_SEVERITIES = tuple(map(str, Severity))
_AGAIN = "take this report again, on its broker: `cleanerd doctor --config ... -o json`; nothing of it is in this one"


def read_reports(paths: Iterable[str]) -> tuple[list[Row], list[Side], dict[str, str]]:
    """Documents of `report`, the logs in those of `digest`, and by path why others cannot be used."""
    reports, sides, failed = list[Row](), list[Side](), dict[str, str]()
    for path in paths:
        try:
            found = read_report(path, "doctor")
            if "buckets" in found:
                of_report, lacks = sides_in(path, found)
                sides += of_report
                failed |= {path: "; ".join(lacks)} if lacks else {}
            else:
                reports.append(checked(Document, found, path, "doctor").model_dump(mode="json"))
        except BadUsage as error:
            failed[path] = str(error)
    return reports, sides, failed


def merged(
    reports: Sequence[Row],
    limits: Limits,
    digests: Sequence[Side] = (),
    failed: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The fields of the merged document; findings of one broker have its id as `node_id`. `failed`: reports that cannot be
    used, by path.
    """
    by_broker = defaultdict[tuple[object, ...], list[Row]](list)
    for report in sorted(reports, key=lambda report: report["at_ms"]):
        by_broker[_name(report)].append(report)
    newest = [some[-1] for some in by_broker.values()]
    growth = [row for some in by_broker.values() for row in _growth(some)]
    found = [(row["node_id"], finding_row(one)) for row, one in _full_soon(growth, limits)]
    of_nodes = [one for some in by_broker.values() for one in some if one["node_id"] is not None]
    found += [(None, finding_row(one)) for one in (*_log_starts(of_nodes), *_digests(digests))]
    found += [
        (None, finding_row(finding("unreadable", Place(path), why, _AGAIN)))
        for path, why in (failed or {}).items()
    ]
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
    """Replicas of which one lacks a whole segment of another at its start. Reports in the order of their times.

    Retention deletes on each broker when that one looks: where it does, the other has lacked it for an hour.
    """
    replicas = defaultdict[tuple[object, str, int], dict[int, list[tuple[int, Row]]]](
        lambda: defaultdict(list)
    )
    for report in reports:
        for log in report["logs"]:
            key = report["cluster_id"], log["topic"], log["partition"]
            replicas[key][report["node_id"]].append((report["at_ms"], log))
    for (_, topic, partition), some in replicas.items():
        newest = {node: looked[-1] for node, looked in some.items()}
        (low_node, (low_ms, low)), (high_node, (_, high)) = (
            choose(newest.items(), key=lambda one: one[1][1]["log_start"]) for choose in (min, max)
        )
        second = low["second_segment"] or 0
        if not low["log_start"] < second <= high["log_start"]:
            continue
        is_kept = low["cleanup_policy"] is not None and "delete" not in low["cleanup_policy"]
        before = [log for at_ms, log in some[high_node] if at_ms <= low_ms - HOUR_MS]
        if not is_kept and not any(log["log_start"] >= second for log in before):
            continue
        text = f"node {low_node} begins at {low['log_start']}, node {high_node} at {high['log_start']}"
        remedy = "wait for the next retention pass; then see which one is right: `kafka-delete-records.sh` raises the others"
        if is_kept:  # a broker refuses to delete records without the policy delete
            remedy = "see which one is right, and have the others fetched again"
        place = Place(f"{low['log_dir']}/{topic}-{partition}", topic, partition, low["log_start"])
        yield finding("log_starts_differ", place, text, remedy)


def _digests(sides: Sequence[Side]) -> Iterator[Finding]:
    """Replicas of one cluster whose digests differ, or cannot be compared."""
    by_cluster = defaultdict[object, list[Side]](list)
    for side in sides:
        if side.owner is not None:
            by_cluster[side.owner[0]].append(side)
    for mine in by_cluster.values():
        for one in compare(mine):
            if len(one.sides) < 2 or one.result == "equal":
                continue
            (first, _), tp = one.sides, one.topic_partition
            nodes = " and ".join(f"node {side.owner[1]}" for side in one.sides if side.owner is not None)
            place = Place(f"{first.row['log_dir']}/{tp}", tp.topic, tp.partition, first.row.get("at"))
            reports = " ".join(quote(side.report) for side in one.sides)
            command = f"cleanerd digest --compare {reports} --topic {tp.topic} --partition {tp.partition}"
            if one.result == "differs":
                text = f"{nodes} differ at offset {first.row['at']}, in {counted(len(one.buckets), 'bucket')} of keys"
                names = f"`{command} --keys` names the keys; "
                if not one.buckets:
                    text, names = f"{nodes} differ at offset {first.row['at']}: {one.why}", ""
                remedy = f"{names}if the two differ at a later offset, too, have the replica that is wrong fetched again"
                yield finding("digests_differ", place, text, remedy)
            else:
                remedy = f"take both again, `cleanerd digest --at OFFSET` alike; `{command}`"
                yield finding("digests_not_compared", place, f"{nodes}: {one.why}", remedy)
