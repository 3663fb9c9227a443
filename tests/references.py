"""What is made from tables in the code: `python -m tests.references` writes it, and tests compare it."""

import re
from collections.abc import Iterator, Sequence

from cleanerd.cli.arguments import Argument
from cleanerd.cli.ctl.parser import PUBLIC
from cleanerd.cli.ctl.verb import Verb
from cleanerd.config.reference import render_reference
from cleanerd.daemon.telemetry.event_table import BOUND, EVENTS, Event
from cleanerd.daemon.telemetry.metric_table import METRICS, Metric
from tests.harness.programs import ROOT

_METRICS_HEAD = """# Metrics reference

Made from `cleanerd/daemon/telemetry/metric_table.py`; a test compares the two. `log_dir` is a log directory as it
is configured. Counters start at 0 with the daemon, before anything has happened, and a reload of the configuration does not
reset them. The page passes `promtool check metrics`. It also has the `process_*` and `python_*` metrics of the daemon
itself, without its engine.
"""
_METRICS_TABLE = ("| metric | type | labels | meaning | changes |", "|---|---|---|---|---|")
_PER_PARTITION = (
    "Only for topics that match `cleanerd.metrics.per.partition.topics`; no more than 500 partitions."
)


def render_metrics_reference() -> str:
    """etc/reference/metrics.md."""
    usual = [_metric_line(metric) for metric in METRICS if "topic" not in metric.labels]
    named = [_metric_line(metric) for metric in METRICS if "topic" in metric.labels]
    lines = [_METRICS_HEAD, "## Always present", "", *_METRICS_TABLE, *usual, ""]
    lines += [
        "## Partitions that the configuration names",
        "",
        _PER_PARTITION,
        "",
        *_METRICS_TABLE,
        *named,
        "",
    ]
    return "\n".join(lines)


def _metric_line(metric: Metric) -> str:
    labels = ", ".join(_labels(metric)) or "none"
    return f"| `{metric.name}` | {metric.kind.value} | {labels} | {metric.doc} | {metric.moves} |"


def _labels(metric: Metric) -> Iterator[str]:
    for label in metric.labels:
        values = ", ".join(f"`{value}`" for value in metric.values.get(label, ()))
        yield f"`{label}`: {values}" if values else f"`{label}`"


_LOGS_HEAD = """# Log reference

Made from `cleanerd/daemon/telemetry/event_table.py`; a test compares the two, and the table with the code. The daemon
writes one line for each event of `cleanerd.log.level` and above to standard error: as JSON, or as text on a terminal
(`cleanerd.log.format`). Under journald each line has its priority: debug 7, info 6, warning 4, error 3. Records and batches
are never logged.

Every line has `event`, `level` and `timestamp` (UTC). Events with an `outcome` leave out fields that are not known or do not
apply. `reason` is for people: what was expected, what was found, and where. An `event` that is not in this table is the text
of a library.

## Context

Lines that a worker logs while it does a job also have:
"""
_EVENTS_TABLE = ("| event | level | fields | meaning | what to do |", "|---|---|---|---|---|")


def render_logs_reference() -> str:
    """etc/reference/logs.md."""
    lines = [_LOGS_HEAD, "| field | |", "|---|---|"]
    lines += [f"| `{name}` | {doc} |" for name, doc in BOUND.items()]
    lines += ["", "## Events", "", *_EVENTS_TABLE]
    lines += [_event_line(event) for event in EVENTS.values()]
    return "\n".join([*lines, ""])


def _event_line(event: Event) -> str:
    fields = ", ".join(f"`{field}`" for field in event.fields) or "none"
    return f"| `{event.name}` | {_level(event)} | {fields} | {event.doc}{_outcomes(event)} | {event.to_do} |"


def _level(event: Event) -> str:
    if set(event.outcomes) == set(event.loud) != set():
        return "warning"
    return f"{event.level}; warning: {', '.join(event.loud)}" if event.loud else event.level


def _outcomes(event: Event) -> str:
    found = ", ".join(f"`{outcome}`" for outcome in event.outcomes)
    return f" Outcomes: {found}." if found else ""


_QUERIES = r""".SS Queries
Each of these takes
.BI \-\-watch\~ time
to repeat it at that interval.
"""


def render_verbs_reference() -> str:
    """Of etc/man/cleanerctl.1 what lies between `.SS Queries` and `.SH OPTIONS`, as man(1) reads it."""
    looks = [verb for verb in PUBLIC if verb.is_look]
    actions = [verb for verb in PUBLIC if verb not in looks]
    return f"{_QUERIES}{_entries(looks)}.SS Actions\n{_entries(actions)}"


def _entries(verbs: Sequence[Verb]) -> str:
    return "".join(
        f".TP\n{_bold(verb.name)}{''.join(map(_argument, verb.arguments))}\n{_text(_manual(verb))}\n"
        for verb in verbs
    )


def _manual(verb: Verb) -> str:
    """What it does: the text behind the first sentence, where there is one."""
    return (verb.doc).partition("\n\n")[2].strip() or verb.sentence


def _argument(argument: Argument) -> str:
    name, value = argument.names[0], str(argument.settings.get("metavar", "")).lower()
    if not name.startswith("-"):
        shown = f"\\fI{value}\\fP"
        return f" [{shown}]" if argument.settings.get("nargs") == "?" else f" {shown}"
    return f" [{_bold(name)} \\fI{value}\\fP]" if value else f" [{_bold(name)}]"


def _text(text: str) -> str:
    return re.sub(r"`([^`]+)`", lambda found: _bold(found[1]), text)


def _bold(text: str) -> str:
    return "\\fB" + text.replace("-", "\\-") + "\\fP"


def made() -> dict[str, str]:
    """The files by their paths in the repository, as the tables make them."""
    page = (ROOT / "etc/man/cleanerctl.1").read_text()
    before, rest = page[: page.index(".SS Queries")], page[page.index(".SH OPTIONS") :]
    return {
        "etc/reference/configuration.md": render_reference().rstrip() + "\n",
        "etc/reference/metrics.md": render_metrics_reference().rstrip() + "\n",
        "etc/reference/logs.md": render_logs_reference().rstrip() + "\n",
        "etc/man/cleanerctl.1": before + render_verbs_reference() + rest,
    }


if __name__ == "__main__":
    for path, text in made().items():
        (ROOT / path).write_text(text)
