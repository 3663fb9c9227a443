"""`cleanerd inspect`: what is in logs, and why they are so large.

Exit 0 if every log was read; 1 if some log could not be, and the others are shown, or if none of the logs that were named
was found; 2 or 78 if the command line or the configuration is wrong.

JSON and YAML are `{"apiVersion": "cleanerd/v1", "logs": [...], "failed": [...]}`, a log with the fields of
`insight.inspect.Inspection` and its `log_dir`; an estimate is `{"value": ..., "error": ...}`, and keys that are no text are
`0x` and hexadecimal digits. A log of `__consumer_offsets` or `__transaction_state` has `entries` too: the newest record of
each key, with Kafka's names of its fields (`format.coordinator_records`). JSON lines and CSV are the logs alone, CSV only
what is one number.
"""

import csv
import io
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from typing import TYPE_CHECKING

from cleanerd.cli import output
from cleanerd.cli.configuration import log_dirs, no_log_dirs, topic_configs
from cleanerd.cli.named import is_nothing_there
from cleanerd.cli.progress import bytes_on
from cleanerd.env.clock import SystemClock
from cleanerd.errors import CleanerdError, attempt
from cleanerd.tools.cli.inspect_tables import (
    answers,
    date,
    notes,
    tables,
    write_coordinator,
    write_details,
    write_overview,
)
from cleanerd.tools.insight.coordinator_records import CONSUMER_OFFSETS, TRANSACTION_STATE
from cleanerd.units import key_text, size

if TYPE_CHECKING:
    from cleanerd.tools.insight.coordinators import CoordinatorEntry
    from cleanerd.tools.insight.inspect import Inspection, InspectTask

_DETAILS_MAX = 1
"""With more logs than that, details have to be asked for."""


def run(arguments: Namespace) -> int:
    """Look, report; returns the exit code."""
    from cleanerd.pipeline.values import TopicCodec  # noqa: PLC0415
    from cleanerd.tools.insight.inspect import (  # noqa: PLC0415 - loads the compiled loops
        KEYS_MAX,
        Inspection,
        InspectTask,
        inspect_logs,
        size_of_log,
    )
    from cleanerd.tools.insight.log_dir_check import list_log_dir  # noqa: PLC0415

    now_ms = arguments.now_ms if arguments.now_ms is not None else SystemClock().now_ms()
    directories = log_dirs(arguments)
    for reason in no_log_dirs(directories):
        output.print_message(reason)
    config_of = topic_configs(arguments, directories)
    keys_max = arguments.keys_max or KEYS_MAX
    tasks = [
        InspectTask(
            log_dir,
            tp,
            directory,
            size_of_log(directory),
            now_ms,
            keys_max,
            arguments.prefix_bytes,
            None if config_of is None else TopicCodec.of(config_of(tp.topic)),
        )
        for log_dir in directories
        for tp, directory in list_log_dir(log_dir).chosen(arguments.topic, arguments.partition)
    ]
    with bytes_on(sys.stderr, "inspect") as read:
        inspected = inspect_logs(tasks, arguments.processes, read)
    found: list[tuple[InspectTask, Inspection, Sequence[CoordinatorEntry]]] = []
    failed: list[dict[str, object]] = []
    for task, answer in inspected.items():
        entries = attempt(partial(_entries, task), task.directory) if isinstance(answer, Inspection) else ()
        if isinstance(answer, Inspection) and not isinstance(entries, CleanerdError):
            found.append((task, answer, entries))
        else:
            tp, reason = task.topic_partition, str(entries or answer)
            output.print_message(f"{tp}: {reason}")
            failed.append(
                {"log_dir": task.log_dir, "topic": tp.topic, "partition": tp.partition, "reason": reason}
            )
    is_nothing = is_nothing_there(arguments, directories)
    _report(arguments, found, failed)
    return 1 if failed or is_nothing else 0


def _report(
    arguments: Namespace,
    found: "Sequence[tuple[InspectTask, Inspection, Sequence[CoordinatorEntry]]]",
    failed: list[dict[str, object]],
) -> None:
    documents = [log_document(task.log_dir, one, entries) for task, one, entries in found]
    logs = [one for _, one, _ in found]
    if arguments.parquet:
        _write_parquet(arguments.parquet, documents)
    if arguments.html:
        with output.written_to(arguments.html), open(arguments.html, "w", encoding="utf-8") as file:
            file.write(page(logs))
    match arguments.output:
        case "json" | "yaml":
            output.write_document(arguments.output, logs=documents, failed=failed)
        case "jsonl":
            output.write_document("jsonl", logs=documents)
        case "csv":
            output.write(_csv(documents))
        case _:
            write_overview(logs)
            for _, log, entries in found if arguments.details or len(found) <= _DETAILS_MAX else ():
                write_details(log)
                write_coordinator(log.topic, entries)


def page(logs: "Sequence[Inspection]") -> str:
    """Everything as one HTML file: plots as inline SVG, light and dark, no scripts, nothing loaded."""
    import jinja2  # noqa: PLC0415 - only here

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cleanerd.tools.cli"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"size": size, "date": date}
    environment.globals |= {"width": 720, "bar": 18, "plot": 120, "zip": zip}
    environment.globals |= {"answers": answers, "tables": tables, "notes": notes}
    return environment.get_template("inspect.html").render(logs=logs)


def _entries(task: "InspectTask") -> "Sequence[CoordinatorEntry]":
    """The records of an internal topic, decoded; none for another topic."""
    from cleanerd.tools.insight.coordinators import read_coordinator  # noqa: PLC0415 - loads the compiled loops

    if task.topic_partition.topic not in (CONSUMER_OFFSETS, TRANSACTION_STATE):
        return ()
    found = read_coordinator(task.directory, keys_max=task.keys_max)
    if found.undecodable:
        output.print_message(
            f"{task.topic_partition}: {found.undecodable} records are of a type that is not known"
        )
    return found.entries


def log_document(
    log_dir: str, found: "Inspection", entries: "Sequence[CoordinatorEntry]" = ()
) -> dict[str, object]:
    """A log as JSON has it; `entries`: the records of an internal topic."""
    values = {one.name: _plain(getattr(found, one.name)) for one in fields(found)}
    if entries:
        values["entries"] = [
            {"offset": one.offset, "timestamp_ms": one.timestamp_ms, **asdict(one.record)} for one in entries
        ]
    return {"log_dir": log_dir, **values}


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return key_text(value)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _plain(member) for name, member in value._asdict().items()}
    if isinstance(value, tuple):
        return [_plain(member) for member in value]
    return value


def _csv(documents: Sequence[Mapping[str, object]]) -> str:
    rows = [_flat(one) for one in documents]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _flat(document: Mapping[str, object]) -> dict[str, object]:
    """What is one value; of an estimate, the value and its error."""
    flat: dict[str, object] = {}
    for name, value in document.items():
        if isinstance(value, dict):
            flat |= {name: value["value"], f"{name}_error": value["error"]}
        elif not isinstance(value, list):
            flat[name] = value
    return flat


def _write_parquet(path: str, documents: Sequence[Mapping[str, object]]) -> None:
    try:
        from cleanerd.tools.spark.parquet import write_parquet  # noqa: PLC0415 - needs an extra
    except ImportError as error:
        raise CleanerdError(f"--parquet needs pyarrow: pip install 'cleanerd[spark]' ({error})") from None
    with output.written_to(path):
        write_parquet(path, documents)
