"""How the tables of cleanerctl fit a terminal."""

import os
import re

import pytest

from cleanerd.cli.ctl.verbs import daemon, history, logs, mutes
from cleanerd.cli.tables import fitted
from cleanerd.daemon.values import models
from tests.harness.daemon.views import event, log_view, status_view


@pytest.mark.usefixtures("terminal")
def test_tables_fit_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less important columns go, then names and reasons are shortened; a wide table, as a pipe, has everything."""
    monkeypatch.setattr("os.get_terminal_size", lambda *_: os.terminal_size((80, 20)))
    monkeypatch.setenv("NO_COLOR", "1")
    view = log_view(
        "a-topic-with-a-name-that-is-long", 12, state="uncleanable", size_bytes=10**8, reason="because " * 30
    )
    rows = [view.model_dump()]
    head, row = logs.LOGS.show(rows).splitlines()
    assert head.split() == ["LOG", "STATE", "SIZE", "DIRTY", "CLEANABLE", "REASON"]
    assert re.match(r"a-\S*~\S*-12  uncleanable ", row)
    assert row.endswith("…")
    with fitted(False):
        wide = logs.LOGS.show(rows)
        assert f"{view.topic}-12  " in wide
        assert str(view.reason).strip() in wide


def test_tables_line_up_and_have_human_units() -> None:
    """Numbers to the right, no empty columns, nothing that a terminal would obey."""
    views = [log_view(size_bytes=5_400_000), log_view("orders", 3, size_bytes=5_400_000, segments=12)]
    assert logs.LOGS.show([view.model_dump() for view in views]) == (
        "LOG       STATE  POLICY     SIZE  SEGMENTS   DIRTY  CLEANABLE  LOG DIR\n"
        "orders-0  dirty  compact  5.4 MB         4  <=0.40      200 B  /logs\n"
        "orders-3  dirty  compact  5.4 MB        12  <=0.40      200 B  /logs\n"
    )
    events = history.VERB.view.show([event(reason="a\x1b[2Jb\nc").model_dump()])
    assert "superseded 70" in events
    assert "a?[2Jb?c" in events


def test_who_unmutes_reads_what_was_given_back_and_no_table_of_what_is_muted() -> None:
    muted = models.MuteView(topic="orders", since_ms=0).model_dump()
    shown = mutes.UNMUTE.view.show([muted])
    assert shown.startswith("given back to the broker's cleaner: orders, muted since 19")


def test_status_has_human_units_and_tables_of_log_directories_and_running_jobs() -> None:
    log_dir = models.LogDirView(
        path="/logs", online=True, free_bytes=10**12, lock_owner_pid=7, broker_is_live=True
    )
    job = models.JobView(
        id="j1",
        trigger="request",
        state="running",
        logs=("orders-3",),
        phase="rewrite",
        bytes_done=1,
        bytes_total=4,
    )
    view = status_view(log_dirs=(log_dir,), running=(job,))
    text = daemon.STATUS.view.show(view.model_dump())
    assert "up 1h 1m" in text
    assert re.search(r"^/logs +yes +1\.0 TB +pid 7 +live$", text, re.MULTILINE)
    assert re.search(r"^j1 +running +request +rewrite +25% +orders-3$", text, re.MULTILINE)
