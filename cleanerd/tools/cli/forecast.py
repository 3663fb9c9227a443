"""`cleanerd forecast`: what a cleaning would remove now; it only reads, and needs no daemon.

Exit 0 if every log was read; 1 if some log could not be, and the others are shown, or if none of those that were named is
there; 2 or 78 if the command line or the
configuration is wrong.

JSON and YAML are `{"apiVersion": "cleanerd/v1", "logs": [...]}` with `FIELDS` of each log that is compacted; estimates
are `{"value": ..., "error": ...}` (95 % confidence; 0: exact), and null where there is nothing to clean.
"""

import os
from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import chain

from cleanerd.cleaning.choose import Candidate, examine_all, partitions
from cleanerd.cleaning.foreign import left_alone
from cleanerd.cleaning.result import CleanRequest, LogResult
from cleanerd.cli import output
from cleanerd.cli.clean import log_name, requests_from
from cleanerd.cli.named import is_nothing_there
from cleanerd.cli.tables import write_table
from cleanerd.env.clock import Clock, FixedNow, SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.env.pace import unpaced
from cleanerd.errors import CleanerdError
from cleanerd.policy.cleanable import CompactionConfig, is_filthy
from cleanerd.storage.log_dir import LogDir
from cleanerd.units import size

_KEYS_MAX = 1 << 18
FIELDS = (
    "topic", "partition", "log_dir", "is_due", "dirty_ratio", "bytes_before", "bytes_to_read", "end_offset",
    "removable_records", "removable_bytes", "peak_extra_bytes", "reason",
)  # fmt: skip
LogRow = dict[str, object]


def run(arguments: Namespace) -> int:
    """Look, report; returns the exit code."""
    requests, unknown = requests_from(arguments)
    rows: list[LogRow] = []
    failed = 0
    clock = SystemClock() if arguments.now_ms is None else FixedNow(arguments.now_ms)
    for found in chain(unknown, *(_examined(request, clock) for request in requests)):
        try:
            row = _row(found, clock.now_ms(), exact=arguments.exact)
        except (CleanerdError, OSError) as error:
            output.print_message(f"{_name(found)}: {error}")
            failed += 1
            continue
        if row is not None:
            rows.append(row)
    log_dirs = [log_dir for request in requests for log_dir in request.log_dirs]
    is_nothing = is_nothing_there(arguments, log_dirs)
    if not rows and not failed and not is_nothing:
        output.print_message("no log with records in it was found whose cleanup.policy contains compact")
    if output.is_table(arguments.output):
        _write_table(rows)
    else:
        output.write_document(arguments.output, logs=rows)
    return 1 if failed or is_nothing else 0


def _examined(request: CleanRequest, clock: Clock) -> Iterator[Candidate | LogResult]:
    for path in request.log_dirs:
        log_dir = LogDir.at(RealFiles(), path, clock)
        found = partitions(log_dir, request)
        alone = left_alone(log_dir, found, request.configuration, request.topics)
        known = [tp for tp in found if tp not in alone]
        yield from examine_all(log_dir, known, request, lambda _: unpaced)


def _name(found: Candidate | LogResult) -> str:
    return log_name(found) if isinstance(found, LogResult) else str(found.snapshot.topic_partition)


def _row(found: Candidate | LogResult, now_ms: int, *, exact: bool) -> LogRow | None:
    """None for a log that is not compacted. Raises `CleanerdError`, `OSError`."""
    if isinstance(found, LogResult):
        if found.outcome == "failed":
            raise CleanerdError(found.reason or "failed")
        if found.bytes_before == 0:
            return None
        row: LogRow = dict.fromkeys(FIELDS)
        return row | {
            "topic": found.topic, "partition": found.partition, "log_dir": found.log_dir, "is_due": False,
            "bytes_before": found.bytes_before, "reason": found.reason,
        }  # fmt: skip
    from cleanerd.tools.insight.inspect import removable  # noqa: PLC0415 - loads the compiled loops

    snapshot, bound, config = found.snapshot, found.range, found.config
    tp, end = snapshot.topic_partition, bound.first_uncleanable_offset
    offsets = max(end - snapshot.log_start_offset, 1)
    keys_max = offsets if exact else min(offsets, _KEYS_MAX)
    records, gone = removable(os.path.join(snapshot.log_dir, str(tp)), end, keys_max, now_ms)
    thresholds = CompactionConfig(
        config.min_cleanable_dirty_ratio, config.min_compaction_lag_ms, config.max_compaction_lag_ms
    )
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "log_dir": snapshot.log_dir,
        "is_due": bound.is_empty
        or is_filthy(bound, thresholds),  # empty: an expired delete horizon is all there is
        "dirty_ratio": round(bound.dirty_ratio, 6),
        "bytes_before": snapshot.size_bytes,
        "bytes_to_read": bound.size_bytes,
        "end_offset": end,
        "removable_records": records._asdict(),
        "removable_bytes": gone._asdict(),
        "peak_extra_bytes": max(bound.size_bytes - gone.value + gone.error, 0),
        "reason": None,
    }


def _write_table(rows: Sequence[LogRow]) -> None:
    def estimate(row: LogRow, name: str, shown: str) -> str:
        found = row[name]
        if not isinstance(found, dict):
            return ""
        text = [size(found[part]) if shown == "size" else f"{found[part]:,}" for part in ("value", "error")]
        return text[0] if not found["error"] else f"{text[0]} ±{text[1]}"

    def of(name: str) -> list[str]:
        return ["" if row[name] is None else size(int(str(row[name]))) for row in rows]

    write_table(
        {
            "LOG": [f"{row['topic']}-{row['partition']}" for row in rows],
            "SIZE": of("bytes_before"),
            "DIRTY": ["" if row["dirty_ratio"] is None else f"{row['dirty_ratio']:.2f}" for row in rows],
            "DUE": ["yes" if row["is_due"] else "no" for row in rows],
            "READS": of("bytes_to_read"),
            "REMOVES": [estimate(row, "removable_bytes", "size") for row in rows],
            "RECORDS": [estimate(row, "removable_records", "count") for row in rows],
            "PEAK EXTRA": of("peak_extra_bytes"),
            "REASON": [str(row["reason"] or "") for row in rows],
        }
    )
