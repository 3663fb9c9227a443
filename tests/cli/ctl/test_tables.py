"""How the tables of cleanerctl fit a terminal."""

import re
from typing import Any

from pydantic import BaseModel

from cleanerd.cli.ctl import tables as ctl_tables
from cleanerd.daemon.api.verb import Reply
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


def shown(key: str, *views: BaseModel) -> str:
    rows: list[Any] = [view.model_dump() for view in views]
    return ctl_tables.text(Reply({"apiVersion": "cleanerd/v1", key: rows}))


def test_tables_line_up_and_have_human_units() -> None:
    """Numbers to the right, no empty columns, nothing that a terminal would obey."""
    logs = [
        models.LogView(
            topic="orders", partition=partition, log_dir="/logs", state="dirty", policy="compact",
            size_bytes=5_400_000, segments=segments, dirty_ratio=0.25,
        )
        for partition, segments in ((0, 3), (3, 12))
    ]  # fmt: skip
    assert shown("logs", *logs) == (
        "LOG       STATE  POLICY     SIZE  SEGMENTS   DIRTY  LOG DIR\n"
        "orders-0  dirty  compact  5.4 MB         3  <=0.25  /logs\n"
        "orders-3  dirty  compact  5.4 MB        12  <=0.25  /logs\n"
    )
    event = models.HistoryEvent(
        time_ms=1, kind="cleaning", outcome="committed", reason="a\x1b[2Jb\nc", removed={"superseded": 7}
    )
    history = shown("events", event)
    assert "superseded 7" in history
    assert "a?[2Jb?c" in history


def test_status_has_human_units_and_a_table_of_log_directories() -> None:
    limits = models.ThrottleLimits()
    log_dir = models.LogDirView(
        path="/logs", online=True, free_bytes=10**12, lock_owner_pid=7, broker_is_live=True
    )
    status = models.StatusView(
        version="1", pid=1, uptime_s=3700.0, ready=True, log_dirs=(log_dir,), logs_by_state={"dirty": 2},
        workers_busy=1, workers_total=2, spark_session_up=False, holds=0,
        throttle=models.ThrottleView(limits=limits, read_bytes_per_s=0.0, write_bytes_per_s=0.0, waited_s=0.0),
        configuration=models.ReloadView(applied=True, time_ms=1),
    )  # fmt: skip
    text = ctl_tables.text(Reply({"status": status.model_dump()}))
    assert "up 1h 1m" in text
    assert re.search(r"^/logs +yes +1\.0 TB +pid 7 +live$", text, re.MULTILINE)
