"""`cleanerd inspect`: what is in logs, and why they are so large.

Exit 0 if every log was read; 1 if some log could not be, and the others are shown, or if none of the logs that were named
was found; 2 or 78 if the command line or the configuration is wrong.

JSON and YAML are `{"apiVersion": "cleanerd/v1", "logs": [...], "ages": [...], "keys": [...], "spread": [...], "codecs":
[...], "failed": [...]}`, with the rows of `spark.inspect.Inspection`; keys that are no text are `0x` and hexadecimal digits.
JSON lines and CSV are the logs alone.
"""

import csv
import io
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict

from cleanerd.cli import output
from cleanerd.cli.configuration import log_dirs, no_log_dirs
from cleanerd.cli.named import is_nothing_there
from cleanerd.cli.tables import Columns, write_table
from cleanerd.env.clock import SystemClock
from cleanerd.env.cores import usable_cores
from cleanerd.errors import CleanerdError
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.tools.insight.log_dir_check import list_log_dir
from cleanerd.units import size

try:
    from cleanerd.tools.spark.inspect import Inspection, Row, disk_bytes, inspect
except ImportError as missing:  # the command loads this module by its name, and shows the error
    raise CleanerdError(f"inspect needs pyarrow: pip install 'cleanerd[spark]' ({missing})") from None

_KEYS_SHOWN = 64


def run(arguments: Namespace) -> int:
    """Look, report; returns the exit code."""
    now_ms = arguments.now_ms if arguments.now_ms is not None else SystemClock().now_ms()
    directories = log_dirs(arguments)
    for reason in no_log_dirs(directories):
        output.print_message(reason)
    chosen = {
        log_dir: [path for _, path in list_log_dir(log_dir).chosen(arguments.topic, arguments.partition)]
        for log_dir in directories
    }
    is_nothing = is_nothing_there(arguments, directories)
    found = _inspect(chosen, now_ms)
    for row in found.failed:
        output.print_message(f"{row['directory']}: {row['reason']}")
    _report(arguments.output, found)
    return 1 if found.failed or is_nothing else 0


def _inspect(chosen: dict[str, list[str]], now_ms: int) -> "Inspection":
    filled = {log_dir: [path for path in paths if disk_bytes(path)] for log_dir, paths in chosen.items()}
    if not any(filled.values()):
        return Inspection()
    cores = usable_cores()
    spark = LazySpark(f"local[{cores}]", {"spark.sql.shuffle.partitions": str(4 * cores)})
    try:
        return spark.run(lambda context: inspect(context, filled, now_ms))
    finally:
        spark.stop()


def _report(form: str, found: "Inspection") -> None:
    match form:
        case "json" | "yaml":
            output.write_document(form, **asdict(found))
        case "jsonl":
            output.write_document("jsonl", logs=found.logs)
        case "csv":
            output.write(_csv(found.logs))
        case _:
            _write_tables(found)


def _csv(rows: "Sequence[Row]") -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _write_tables(found: "Inspection") -> None:
    several = len({row["log_dir"] for row in found.logs}) > 1

    def log(row: "Row") -> str:
        name = f"{row['topic']}-{row['partition']}"
        return f"{name} in {row['log_dir']}" if several else name

    write_table(_logs(found.logs, log))
    for columns in _details(found, log):
        if next(iter(columns.values())):
            output.write("\n")
            write_table(columns)
    for row in found.logs:
        closed_bytes = row["superseded_bytes"] - row["superseded_active_bytes"]
        if row["superseded_bytes"] and closed_bytes < row["superseded_active_bytes"]:
            output.write(
                f"\n{log(row)}: most superseded records lie in the active segment, which `clean --roll` closes first\n"
            )


def _logs(logs: "Sequence[Row]", log: "Callable[[Row], str]") -> Columns:
    return {
        "LOG": [log(row) for row in logs],
        "ON DISK": [size(row["disk_bytes"]) for row in logs],
        "RECORDS": [f"{row['records']:,}" for row in logs],
        "KEYS": [f"{row['keys']:,}" for row in logs],
        "BYTES": [size(row["bytes"]) for row in logs],
        "SUPERSEDED": [size(row["superseded_bytes"]) for row in logs],
        "SHARE": [f"{row['superseded_bytes'] / row['bytes']:.0%}" if row["bytes"] else "" for row in logs],
        "OF THAT ACTIVE": [size(row["superseded_active_bytes"]) for row in logs],
        "TOMBSTONES": [f"{row['tombstones']:,}" for row in logs],
        "NO KEY": [size(row["no_key_bytes"]) if row["no_key_records"] else "" for row in logs],
    }


def _details(found: "Inspection", log: "Callable[[Row], str]") -> tuple[Columns, ...]:
    ages, keys, spread, codecs = found.ages, found.keys, found.spread, found.codecs
    return (
        {
            "SUPERSEDED SINCE": [log(row) for row in ages],
            "AGE": ["older" if row["below_days"] is None else f"< {row['below_days']} d" for row in ages],
            "RECORDS": [f"{row['records']:,}" for row in ages],
            "BYTES": [size(row["bytes"]) for row in ages],
        },
        {
            "HOT KEYS OF": [log(row) for row in keys],
            "KEY": [row["key"][:_KEYS_SHOWN] for row in keys],
            "RECORDS": [f"{row['records']:,}" for row in keys],
            "BYTES": [size(row["bytes"]) for row in keys],
            "SUPERSEDED": [size(row["superseded_bytes"]) for row in keys],
        },
        {
            "IN SEVERAL PARTITIONS OF": [f"{row['topic']} ({row['keys']:,} keys)" for row in spread],
            "KEY": [row["key"][:_KEYS_SHOWN] for row in spread],
            "PARTITIONS": [", ".join(map(str, row["partitions"])) for row in spread],
            "BYTES": [size(row["bytes"]) for row in spread],
        },
        {
            "BATCHES OF": [log(row) for row in codecs],
            "CODEC": [row["codec"] for row in codecs],
            "BATCHES": [f"{row['batches']:,}" for row in codecs],
            "RECORDS/BATCH": [f"{row['records'] / row['batches']:.1f}" for row in codecs],
        },
    )
