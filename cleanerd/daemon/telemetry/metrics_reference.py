"""The reference of all metrics as Markdown, made from their table: what is not in the table does not exist."""

from collections.abc import Iterator

from cleanerd.daemon.telemetry.metric_table import METRICS, Metric, When

_HEAD = """# Metrics reference

Made from `cleanerd/daemon/telemetry/metric_table.py`; a test compares the two. `log_dir` is a log directory as it
is configured. Counters begin with 0 when the daemon starts, also those of which nothing has happened yet, and a
reload of the configuration changes nothing about that. All of it passes `promtool check metrics`. Beside these there are the
`process_*` and `python_*` metrics of the daemon itself, without its engine.
"""
_SECTIONS = {
    When.ALWAYS: "## Always there",
    When.PER_PARTITION: "## Partitions that the configuration names",
}
_NOTES = {
    When.PER_PARTITION: "Only for topics that match `cleanerd.metrics.per.partition.topics`; no more than 500 partitions.",
}


def render_metrics_reference() -> str:
    """The whole document."""
    lines = [_HEAD]
    for when, title in _SECTIONS.items():
        lines += [title, "", *([_NOTES[when], ""] if when in _NOTES else [])]
        lines += ["| metric | type | labels | meaning | moves |", "|---|---|---|---|---|"]
        lines += [_line(metric) for metric in METRICS if metric.when is when]
        lines.append("")
    return "\n".join(lines)


def _line(metric: Metric) -> str:
    labels = ", ".join(_labels(metric)) or "none"
    return f"| `{metric.name}` | {metric.kind.value} | {labels} | {metric.doc} | {metric.moves} |"


def _labels(metric: Metric) -> Iterator[str]:
    for label in metric.labels:
        values = ", ".join(f"`{value}`" for value in metric.values.get(label, ()))
        yield f"`{label}`: {values}" if values else f"`{label}`"
