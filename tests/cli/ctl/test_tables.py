"""How the tables of cleanerctl fit a terminal."""

from cleanerd.cli.ctl import tables as ctl_tables
from cleanerd.daemon.values import models

_LOG_COLUMNS = ("LOG", "STATE", "POLICY", "SIZE", "SEGMENTS", "DIRTY", "CLEANABLE", "LOG DIR", "REASON")


def test_tables_fit_the_terminal() -> None:
    """Less important columns go, then names and reasons are shortened; a pipe gets everything."""
    row = models.LogView(
        topic="a-topic-with-a-name-that-is-long",
        partition=12,
        log_dir="/var/lib/kafka-logs",
        state="uncleanable",
        policy="compact",
        size_bytes=5,
        segments=3,
        reason="because " * 30,
    ).model_dump()
    columns = {name: [name.lower()] for name in _LOG_COLUMNS}
    columns |= {"LOG": [f"{row['topic']}-12"], "REASON": [row["reason"]]}
    ctl_tables._fit(columns, 80)
    assert sum(max(map(len, (name, *texts))) + 2 for name, texts in columns.items()) <= 82
    assert list(columns) == ["LOG", "STATE", "SIZE", "DIRTY", "CLEANABLE", "REASON"]
    assert columns["LOG"][0].endswith("-12")
    assert columns["REASON"][0].endswith("…")
    assert len(ctl_tables.table([row], {"REASON": lambda found: found["reason"]}).splitlines()[1]) > 200
