"""History and durable state: what is kept, what is dropped, and that no state of the file stops the daemon."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from structlog.testing import capture_logs

from cleanerd.daemon import store
from cleanerd.daemon.store import HOLD, HistoryUnreadable, Store
from cleanerd.daemon.values.holds import Hold
from cleanerd.daemon.values.models import HistoryEvent
from cleanerd.errors import Fatal
from cleanerd.format.names import TopicPartition
from tests.harness.daemon import views

SIZE = 1 << 20
ORDERS = TopicPartition("orders", 0)


def event(time_ms: int = 1, **fields: object) -> HistoryEvent:
    return views.event(time_ms=time_ms, **fields)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "history.db")


@pytest.fixture
def told() -> Iterator[list[dict[str, Any]]]:
    """Lines that are logged."""
    with capture_logs() as lines:
        yield lines  # type: ignore[misc]


def events_of(lines: list[dict[str, Any]]) -> list[str]:
    return [line["event"] for line in lines]


def times(
    history: Store, pattern: str | None = None, limit: int = 100, since_ms: int | None = None
) -> list[int]:
    return [found.time_ms for found in history.events(pattern, limit, since_ms)]


def test_events_come_back_whole_and_the_last_one_first(path: str) -> None:
    """Also in another process, that is, after opening the file again."""
    history, first = Store(path), event(5, partition=3, job_id="j1", removed={"expired": 2})
    second = HistoryEvent(time_ms=6, kind="reload", outcome="accepted")
    history.record(first)
    history.record(second)
    assert history.events(None, 10, None) == (second, first)
    history.close()
    assert Store(path).events(None, 10, None) == (second, first)


def test_events_are_chosen_by_pattern_time_and_number(path: str) -> None:
    """Patterns as everywhere; an event of the daemon belongs to no log."""
    history = Store(path)
    logs = (("orders", 0), ("orders", 1), ("orders-1", 0), (None, None))
    for time_ms, (topic, partition) in enumerate(logs, 1):
        history.record(event(time_ms, topic=topic, partition=partition))
    assert times(history) == [4, 3, 2, 1]
    assert times(history, limit=2) == [4, 3]
    assert times(history, since_ms=2) == [4, 3, 2]
    assert times(history, "orders-1") == [2]
    assert times(history, "orders") == [2, 1]
    assert times(history, "*", limit=1) == [3]
    assert times(history, "'; DROP TABLE events; --") == []


def test_state_survives_a_restart(path: str) -> None:
    history = Store(path)
    assert history.put(HOLD, "h1", {"pattern": "orders"})
    for key, value in (("h1", {"failures": 1}), ("h1", {"failures": 2}), ("h2", {})):
        assert history.put("log", key, value)
    assert history.delete("log", "h2")
    assert history.delete("log", "never-there")
    for found in (history, Store(path)):
        assert found.all(HOLD, dict) == {"h1": {"pattern": "orders"}}
        assert found.all("log", dict) == {"h1": {"failures": 2}}


def test_a_hold_survives_kill_9_at_once(path: str) -> None:
    """Nothing is left for an orderly end to write; the process kills itself right after `put` has answered True."""
    child = (
        "import os, sys; from cleanerd.daemon.store import HOLD, Store\n"
        "assert Store(sys.argv[1]).put(HOLD, 'h1', {'pattern': 'orders'})\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", child, path], check=False).returncode == -9
    assert Store(path).all(HOLD, dict) == {"h1": {"pattern": "orders"}}


def test_only_holds_pay_for_stable_storage(path: str) -> None:
    """synchronous=FULL (2) for a hold and its deletion, NORMAL (1) for events and other state."""
    history = Store(path)
    for action, expected in (
        (lambda: history.put(HOLD, "h", {}), 2),
        (lambda: history.record(event()), 1),
        (lambda: history.delete(HOLD, "h"), 2),
        (lambda: history.put("log", "l", {}), 1),
    ):
        action()
        assert history._connection is not None
        assert history._connection.execute("PRAGMA synchronous").fetchone()[0] == expected


def test_prune_drops_what_is_too_old(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older than the limit, not as old as it; state stays."""
    monkeypatch.setattr(store, "MAX_AGE_MS", 100)
    history = Store(path)
    history.put("log", "a", {"x": 1})
    for time_ms in (899, 900, 901):
        history.record(event(time_ms))
    history.prune(1000, SIZE)
    assert times(history) == [901, 900]
    assert history.all("log", dict)["a"] == {"x": 1}


def test_prune_keeps_the_file_within_its_size(path: str) -> None:
    """The oldest go, and the space goes back to the file system."""
    history = Store(path)
    for time_ms in range(1000):
        history.record(event(time_ms, reason="x" * 3000))
    assert os.path.getsize(path) + os.path.getsize(path + "-wal") > 2 * SIZE
    history.prune(1000, SIZE)
    kept = times(history, limit=1000)
    assert kept == list(range(999, 999 - len(kept), -1))
    assert 0.7 * SIZE < os.path.getsize(path) <= SIZE
    assert os.path.getsize(path + "-wal") == 0
    history.record(event(1000))
    assert times(history, limit=1) == [1000]


def test_prune_with_a_limit_that_nothing_can_meet(path: str) -> None:
    history = Store(path)
    history.put(HOLD, "h", {})
    history.record(event())
    history.prune(1, 1)
    assert times(history) == []
    assert history.all(HOLD, dict) == {"h": {}}


@pytest.mark.parametrize("damage", ["not a database", "empty", "cut", "schema"])
def test_a_damaged_file_is_moved_aside_at_start(path: str, damage: str, told: list[dict[str, Any]]) -> None:
    history = Store(path)
    for number in range(200):
        history.record(event(number, reason="y" * 200))
    history.close()
    content = Path(path).read_bytes()
    overwritten = {
        "not a database": b"precious" * 1000,
        "empty": b"",
        "cut": content[: len(content) // 2 // 4096 * 4096],
        "schema": content[:100] + b"\xff" * 3996 + content[4096:],
    }[damage]
    Path(path).write_bytes(overwritten)
    again = Store(path)
    again.record(event(7))
    assert again.put(HOLD, "h", {})
    assert times(again) == [7]
    if damage != "empty":  # which SQLite takes for a new one
        assert "history_damaged" in events_of(told)
        assert Path(path + ".damaged").read_bytes() == overwritten
    assert Store(path).all(HOLD, dict) == {"h": {}}


def test_holds_are_saved_from_a_file_whose_events_are_damaged(path: str) -> None:
    """Damage to one page costs the events, not what pauses rest on."""
    history = Store(path)
    history.put(HOLD, "h", {"pattern": "orders"})
    for number in range(500):
        history.record(event(number, reason="y" * 500))
    history.close()
    with open(path, "r+b") as file:  # a page in the middle, which holds events
        file.seek(os.path.getsize(path) // 2 // 4096 * 4096)
        file.write(b"\xff" * 4096)
    again = Store(path)
    assert again.all(HOLD, dict) == {"h": {"pattern": "orders"}}
    assert times(again) == []
    again.close()
    assert Store(path).all(HOLD, dict) == {"h": {"pattern": "orders"}}


def test_a_file_that_is_damaged_while_it_is_used(path: str, told: list[dict[str, Any]]) -> None:
    """The next event goes to a new file, with all state, which memory has."""
    history = Store(path)
    history.put(HOLD, "h", {"pattern": "orders"})
    history.prune(1, SIZE)  # leaves nothing in the write-ahead log
    with open(path, "r+b") as file:
        file.write(b"\xff" * os.path.getsize(path))
    for suffix in ("-wal", "-shm"):
        Path(path + suffix).unlink(missing_ok=True)
    history._disconnect()
    history.record(event(9))
    assert "history_damaged" in events_of(told)
    history.close()
    again = Store(path)
    assert (times(again), again.all(HOLD, dict)) == ([9], {"h": {"pattern": "orders"}})


def test_a_file_that_is_removed_gets_all_state_again(path: str, told: list[dict[str, Any]]) -> None:
    """What is held and muted; and a hold is not reported as durable that went where no start finds it."""
    history = Store(path)
    assert history.put(HOLD, "before", {"pattern": "orders"})

    def remove() -> None:
        for suffix in ("", "-wal", "-shm"):
            Path(path + suffix).unlink(missing_ok=True)
        with pytest.raises(HistoryUnreadable):
            history.events(None, 1, None)
        assert not os.path.exists(path)  # reading makes none

    remove()
    history.save()
    assert set(Store(path).all(HOLD, dict)) == {"before"}
    remove()
    assert history.put(HOLD, "after", {"pattern": "payments"})
    assert set(Store(path).all(HOLD, dict)) == {"before", "after"}
    remove()
    history.record(event(7))
    assert times(Store(path)) == [7]
    remove()
    history.close()
    assert set(Store(path).all(HOLD, dict)) == {"before", "after"}
    assert events_of(told).count("history_gone") == 4


def test_a_file_that_is_exchanged_gets_all_state_too(path: str) -> None:
    history, other = Store(path), Store(f"{path}.other")
    assert history.put(HOLD, "here", {})
    assert other.put(HOLD, "there", {})
    other.close()
    os.replace(f"{path}.other", path)
    history.save()
    assert set(Store(path).all(HOLD, dict)) == {"here", "there"}


def test_a_directory_that_cannot_be_used_costs_rows_only(tmp_path: Path, told: list[dict[str, Any]]) -> None:
    """State is kept in memory and said not to be durable; both work as soon as the directory does."""
    path = tmp_path / "state" / "history.db"
    history = Store(str(path))
    for _ in range(3):
        history.record(event())
    assert not history.put(HOLD, "h", {"pattern": "orders"})
    assert not history.delete("log", "x")
    assert history.lost_events == 3
    with pytest.raises(HistoryUnreadable, match=f"^{path}: the history cannot be read: "):
        history.events(None, 1, None)
    assert history.all(HOLD, dict) == {"h": {"pattern": "orders"}}
    assert events_of(told) == ["history_unwritable", "history_unreadable"]
    path.parent.mkdir()
    history.prune(1, SIZE)
    history.record(event(4))
    assert times(history) == [4]
    assert Store(str(path)).all(HOLD, dict) == {"h": {"pattern": "orders"}}
    assert [one["lost_events"] for one in told if one["event"] == "history_writable"] == [3]


def test_holds_count_although_nothing_can_be_written(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a start with a full state directory, too: a log that is held must not be cleaned for that."""
    before = Store(path)
    assert before.put(HOLD, "h", {"pattern": "orders"})
    before.close()
    schema = store._SCHEMA
    monkeypatch.setattr(store, "_SCHEMA", "CREATE TABLE state (no room for it)")
    history = Store(path)
    assert history.all(HOLD, dict) == {"h": {"pattern": "orders"}}
    assert not history.put(HOLD, "new", {})
    monkeypatch.setattr(store, "_SCHEMA", schema)
    history.prune(1, SIZE)
    history.close()
    assert set(Store(path).all(HOLD, dict)) == {"h", "new"}


def test_a_daemon_that_cannot_know_its_holds_does_not_start(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(path).write_text("no database")
    monkeypatch.setattr(store, "_SCHEMA", "CREATE TABLE state (no room for it)")
    monkeypatch.setattr(store, "_is_damage", lambda _: False)  # nor can it be moved aside
    with pytest.raises(Fatal, match="the holds are not known"):
        Store(path)


@pytest.mark.fault("the history cannot be written")
def test_a_full_disk_costs_the_row_only(path: str) -> None:
    """SQLITE_FULL, which a limit on the number of pages brings about; afterwards everything works again."""
    history = Store(path)
    history.put("log", "before", {})

    def fill() -> None:
        assert history._connection is not None
        history._connection.execute("PRAGMA max_page_count = 1")

    fill()
    history.record(event(1, reason="z" * 100_000))
    assert history.lost_events == 1  # a new connection has the usual limit: space was made
    history.record(event(2))
    assert times(history) == [2]
    fill()
    assert not history.put(HOLD, "h", {"long": "z" * 100_000})
    assert history.put("log", "small", {})
    assert set(Store(path).all(HOLD, dict)) == {"h"}


def test_a_locked_file_costs_the_row_only(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who has the file open for writing does not block the daemon for long."""
    monkeypatch.setattr("cleanerd.daemon.store._BUSY_TIMEOUT_S", 0.01)
    history = Store(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    history.record(event(1))
    assert history.lost_events == 1
    other.execute("COMMIT")
    other.close()
    history.record(event(2))
    assert times(history) == [2]


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        pytest.param(
            'INSERT INTO events (time_ms, event) VALUES (2, \'{"kind": "unheard of"}\');'
            "INSERT INTO state VALUES ('log', 'x', '[1]'), ('log', 'y', '{')",
            [1],
            id="of another version",
        ),
        pytest.param(f"INSERT INTO state VALUES ('log', 'z', '{'[' * 100_000}')", [1], id="without an end"),
        pytest.param(
            "ALTER TABLE state RENAME TO old; CREATE TABLE state AS SELECT * FROM old; DROP TABLE old;"
            "INSERT INTO state VALUES ('log', 'b', NULL), ('log', 'c', 5), ('log', 'd', x'ff'), (1, 2, 3)",
            [1],
            id="of another type",
        ),
    ],
)
def test_rows_that_are_none_of_this_version_are_passed_over(path: str, rows: str, found: list[int]) -> None:
    """They hide no others. SQLite keeps no column to its type, and a page that is damaged may hold any."""
    history = Store(path)
    history.record(event(1))
    assert history.put("log", "a", {"x": 1})
    history.close()
    with sqlite3.connect(path) as other:
        other.executescript(rows)
    other.close()
    again = Store(path)
    assert (times(again), again.all("log", dict)) == (found, {"a": {"x": 1}})
    assert again.put(HOLD, "h", {"pattern": "a"})


def test_state_that_is_none_of_this_version_is_told_and_left_out(
    path: str, told: list[dict[str, Any]]
) -> None:
    """What another version wrote, or damage that is JSON all the same, keeps no daemon from starting. It is looked at each
    second.
    """
    history = Store(path)
    good = {"id": "a", "pattern": "t", "owner": "me", "reason": "", "created_ms": 1}
    for key, fields in (("a", good), ("b", {**good, "pattern": 5}), ("c", {"id": "c"})):
        assert history.put(HOLD, key, fields)
    for _ in range(2):
        assert list(history.all(HOLD, TypeAdapter(Hold).validate_python)) == ["a"]
    assert [(one["event"], one["state"]) for one in told] == [
        ("history_state_unreadable", "hold b"),
        ("history_state_unreadable", "hold c"),
    ]


def test_many_threads_write_and_read(path: str) -> None:
    history = Store(path)

    def work(partition: int) -> None:
        for time_ms in range(50):
            history.record(event(time_ms, topic="t", partition=partition))
            history.put("log", f"t-{partition}", {"at": time_ms})
            history.events(f"t-{partition}", 5, None)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert history.lost_events == 0
    assert len(times(history, limit=1000)) == 200
    assert history.all("log", dict) == {f"t-{partition}": {"at": 49} for partition in range(4)}
