"""History and small durable state in one SQLite file: what happened, and what has to survive a restart.

=======  ==========================================  =================================================================
table    rows                                        written
=======  ==========================================  =================================================================
events   one `HistoryEvent` as JSON, with its time,  with synchronous=NORMAL: a power failure may cost the last rows,
         topic and partition to search by            never the file
         directory; 0: of all logs) at an instant
state    (kind, key) -> JSON object                  the same, but with synchronous=FULL for all but failures
=======  ==========================================  =================================================================

State is kept in memory too, which is what readers get. The daemon never stops because of this file: a damaged one is moved
aside (`<name>.damaged`, the last one only), its state is saved as far as it can be read, and a new one is started; so is
one that was removed or exchanged, with the state that memory has. Where nothing can be written, as on a full disk, events
are lost and counted, and state is written as soon as that works again: within a second, for `save` is called so often.
But a daemon does not start where there is such a file and its state cannot be read: holds would count as lifted.
"""

import contextlib
import json
import math
import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import uuid4

import structlog
from pydantic import ValidationError

from cleanerd.daemon.values.models import HistoryEvent, HistoryEventKind
from cleanerd.daemon.values.patterns import matches
from cleanerd.errors import CleanerdError, Fatal

HOLD = "hold"
MUTE = "mute"
MOVING = "moving"
ANSWER, ANSWERED = "answer", "answered"
_ID = ("id", "")
_DURABLE = {_ID[0], HOLD, MUTE, MOVING, ANSWER, ANSWERED}
"""Kinds of state that are on stable storage when `put` or `delete` answers True."""

_SCHEMA = """
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA journal_mode = WAL;
PRAGMA journal_size_limit = 4194304;
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY, time_ms INTEGER NOT NULL, topic TEXT, partition INTEGER, event TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS events_by_time ON events (time_ms);
CREATE TABLE IF NOT EXISTS state (
    kind TEXT, key TEXT, value TEXT NOT NULL, PRIMARY KEY (kind, key)) WITHOUT ROWID;
"""
_BUSY_TIMEOUT_S = 2.0
_PRUNE_TO = 0.9  # of the limit, so that there is something to do once in a while and not every time
_log = structlog.get_logger("cleanerd")

_T = TypeVar("_T")
_Key = tuple[str, str]
_Action = Callable[[sqlite3.Connection], object]
MAX_AGE_MS = 30 * 86_400_000
MAX_BYTES = 67_108_864
"""Of the file: more than 100,000 events. The oldest go first."""


class HistoryUnreadable(CleanerdError):
    """The history cannot be read from its file."""


class Store:
    """The file at `path`: events, as many as `prune` leaves, and state.

    Every method may be called from any thread; writers take turns. None raises because of the file, but `events`
    HistoryUnreadable; the making of this raises Fatal when there is state that cannot be read. `id`: of its state, for good.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.directory = os.path.dirname(os.path.abspath(path))
        self._lock = threading.Lock()  # guards all that follows
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None  # of the file that this is a connection to
        self._state: dict[_Key, str] = {}
        self._refused: dict[_Key, str] = {}  # what `all` left out and logged: it is called each second
        self._unsaved: set[_Key] = set()  # keys whose value, or absence, is in memory only
        self._is_failing = False
        self.lost_events = 0  # that could not be written since the start
        with self._lock:
            if not self._attempt(_check):
                self._load_read_only()
            self.id = state_id(self._state) or uuid4().hex
            self._state[_ID] = json.dumps({"id": self.id})
            self._unsaved.add(_ID)
            self._save()

    def record(self, event: HistoryEvent) -> None:
        """Remember an event."""
        row = (event.time_ms, event.topic, event.partition, event.model_dump_json(exclude_defaults=True))
        insert = "INSERT INTO events (time_ms, topic, partition, event) VALUES (?, ?, ?, ?)"
        with self._lock:
            if not self._write("NORMAL", lambda connection: connection.execute(insert, row)):
                self.lost_events += 1
            self._save()  # there is something to save if the file had to be replaced

    def events(
        self,
        pattern: str | None,
        limit: int,
        since_ms: int | None,
        kinds: Collection[HistoryEventKind] | None = None,
    ) -> tuple[HistoryEvent, ...]:
        """The last `limit` events since `since_ms`, newest first: those of logs that match, and of these kinds."""
        which = "" if pattern is None else "AND topic IS NOT NULL AND log_matches(topic, partition)"
        if kinds is not None:
            which += f" AND json_extract(event, '$.kind') IN ({', '.join('?' * len(kinds))})"
        query = f"SELECT event FROM events WHERE time_ms >= ? {which} ORDER BY id DESC LIMIT ?"  # noqa: S608 - fixed text
        rows = self._read(query, (since_ms or 0, *(kinds or ()), limit), pattern)
        return tuple(event for (text,) in rows if (event := _parsed(text)) is not None)

    def all(self, kind: str, make: Callable[[dict[str, Any]], _T]) -> dict[str, _T]:
        """All state of a kind by key. What `make` refuses (ValueError, TypeError, KeyError) is left out, and logged once."""
        with self._lock:
            texts = {key: text for (of_kind, key), text in self._state.items() if of_kind == kind}
        found = {}
        for key, text in texts.items():
            try:
                found[key] = make(json.loads(text))
            except (ValueError, TypeError, KeyError, OverflowError) as error:
                # Damaged, or written by another version.
                if self._refused.get((kind, key)) != text:
                    self._refused[kind, key] = text
                    _log.error(
                        "history_state_unreadable", path=self._path, state=f"{kind} {key}", reason=str(error)
                    )
        return found

    def put(self, kind: str, key: str, value: Mapping[str, Any]) -> bool:
        """Set state; False while a restart would lose it."""
        text = json.dumps(dict(value))
        with self._lock:
            self._state[kind, key] = text
            self._unsaved.add((kind, key))
            return self._save()

    def delete(self, kind: str, key: str) -> bool:
        """Drop state, if there is any; False while a restart would bring it back."""
        with self._lock:
            self._state.pop((kind, key), None)
            self._unsaved.add((kind, key))
            return self._save()

    def save(self) -> bool:
        """Write the state that is not in the file: it could not be written, or the file has gone. Whether none is left."""
        with self._lock:
            return self._save()

    def prune(self, now_ms: int, max_bytes: int) -> None:
        """Drop events older than `MAX_AGE_MS`, and the oldest until the file takes up to about `max_bytes`; give
        their space back, save state that is not saved yet.
        """
        with self._lock:
            self._save()
            if self._write("NORMAL", lambda connection: _drop(connection, now_ms, max_bytes)):
                self._attempt(_shrink)

    def close(self) -> None:
        """Save unsaved state and close the file."""
        with self._lock:
            self._save()
            self._disconnect()

    def _read(
        self, query: str, values: Collection[object], pattern: str | None = None
    ) -> list[tuple[Any, ...]]:
        """Run a query on a connection of its own: a long search keeps no writer waiting. Raises HistoryUnreadable."""
        uri = f"file:{quote(self._path)}?mode=rw"  # and no new file where there is none
        try:
            with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_TIMEOUT_S)) as connection:
                connection.create_function("log_matches", 2, lambda t, p: matches(pattern, t, p))
                return connection.execute(query, tuple(values)).fetchall()
        except sqlite3.Error as error:
            _log.error("history_unreadable", path=self._path, reason=str(error))
            raise HistoryUnreadable(f"{self._path}: the history cannot be read: {error}") from error

    def _save(self) -> bool:
        self._leave_if_gone()
        if not self._unsaved:
            return True
        is_durable = any(kind in _DURABLE for kind, _ in self._unsaved)
        if not self._write("FULL" if is_durable else "NORMAL", self._write_state):
            return False
        self._unsaved.clear()
        return True

    def _write_state(self, connection: sqlite3.Connection) -> None:
        for kind, key in self._unsaved:
            text = self._state.get((kind, key))
            if text is None:
                connection.execute("DELETE FROM state WHERE kind = ? AND key = ?", (kind, key))
            else:
                connection.execute("INSERT OR REPLACE INTO state VALUES (?, ?, ?)", (kind, key, text))

    def _write(self, synchronous: str, action: _Action) -> bool:
        """Do something in a transaction; whether it is committed."""

        def transaction(connection: sqlite3.Connection) -> None:
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                action(connection)

        return self._attempt(transaction)

    def _attempt(self, action: _Action) -> bool:
        """Do something with the file, with a new one if this one is damaged; whether it is done."""
        try:
            self._attempt_once(action)
        except sqlite3.Error as error:
            if not self._is_failing:
                _log.error("history_unwritable", path=self._path, reason=str(error))
            self._is_failing = True
            self._disconnect()
            return False
        if self._is_failing:
            _log.warning("history_writable", path=self._path, lost_events=self.lost_events)
        self._is_failing = False
        return True

    def _attempt_once(self, action: _Action) -> None:
        try:
            action(self._connected())
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            self._set_aside(error)
            action(self._connected())

    def _leave_if_gone(self) -> None:
        """Drop the connection if the file was removed or replaced: what is written to the old one is lost."""
        if self._connection is not None and _identity(self._path) != self._identity:
            _log.error("history_gone", path=self._path)
            self._disconnect()
            self._unsaved |= self._state.keys()
            # SQLite would take these for those of the file that lies there now
            for suffix in ("-wal", "-shm"):
                with contextlib.suppress(OSError):
                    os.unlink(self._path + suffix)

    def _connected(self) -> sqlite3.Connection:
        self._leave_if_gone()
        if self._connection is None:
            connection = sqlite3.connect(
                self._path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            try:
                connection.executescript(_SCHEMA)
                self._load_state(connection)
            except sqlite3.Error:
                connection.close()
                raise
            self._connection, self._identity = connection, _identity(self._path)
        return self._connection

    def _load_read_only(self) -> None:
        """Load the state from a file that cannot be written, so that its holds stay in force."""
        for key, text in read_state(self._path).items():
            self._take(key, text)

    def _load_state(self, connection: sqlite3.Connection) -> None:
        for key, text in _state_in(connection).items():
            self._take(key, text)

    def _take(self, key: _Key, text: str) -> None:
        """Adopt a value of the file, unless memory has one for its key, which is newer."""
        if key not in self._unsaved and _is_object(text):
            self._state.setdefault(key, text)

    def _set_aside(self, damage: sqlite3.Error) -> None:
        """Make room for a new file, which will get all state that memory or the damaged one has."""
        moved_to = f"{self._path}.damaged"
        _log.error("history_damaged", path=self._path, moved_to=moved_to, reason=str(damage))
        self._disconnect()
        try:
            with contextlib.closing(sqlite3.connect(self._path)) as connection:
                self._load_state(connection)
        except sqlite3.Error as error:
            _log.error("history_state_lost", path=self._path, reason=str(error))
        self._unsaved |= self._state.keys()
        try:
            _rename_all(self._path, moved_to)
        except OSError as error:
            raise sqlite3.OperationalError(f"cannot be moved aside: {error}") from error

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None


def read_state(path: str) -> dict[_Key, str]:
    """The state in a file, as (kind, key) -> JSON, without writing to it; none where there is no file. Raises Fatal."""
    reasons = list[str]()
    try:
        if _size_bytes(path) == 0:
            return {}
        has_log = _size_bytes(f"{path}-wal") > 0
    except OSError as error:
        has_log, reasons = True, [str(error)]
    for way in ("mode=ro",) if has_log else ("mode=ro", "mode=ro&immutable=1"):
        uri = f"file:{quote(path)}?{way}"
        try:
            with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_TIMEOUT_S)) as connection:
                if _number(connection, "SELECT count(*) FROM sqlite_master WHERE name = 'state'"):
                    return _state_in(connection)
                return {}
        except sqlite3.Error as error:
            reasons.append(str(error))
    raise Fatal(
        f"{path}: cannot be read, and so the holds are not known: {reasons[-1]}; "
        "repair it, or move it away: the copies of its holds in `.cleanerd.lock` of the log directories stay in force"
    )


def state_id(state: Mapping[tuple[str, str], str]) -> str | None:
    """An identity of this state, to tell it from another one at the same path; None without one."""
    text = state.get(_ID)
    return json.loads(text).get("id") if text is not None and _is_object(text) else None


def _state_in(connection: sqlite3.Connection) -> dict[_Key, str]:
    return {(kind, key): text for kind, key, text in connection.execute("SELECT kind, key, value FROM state")}


def _size_bytes(path: str) -> int:
    """0 without a file. Raises OSError if that cannot be known."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _identity(path: str) -> tuple[int, int] | None:
    """Device and inode of the file at `path`; None if there is none, or it cannot be looked at."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _number(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(query).fetchone()[0])


def _used_bytes(connection: sqlite3.Connection) -> int:
    pages = _number(connection, "PRAGMA page_count") - _number(connection, "PRAGMA freelist_count")
    return pages * _number(connection, "PRAGMA page_size")


def _check(connection: sqlite3.Connection) -> None:
    """Look at the whole file once."""
    found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        damage = sqlite3.DatabaseError(found)
        damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise damage


def _is_damage(error: sqlite3.Error) -> bool:
    primary_code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return primary_code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def _drop(connection: sqlite3.Connection, now_ms: int, max_bytes: int) -> None:
    connection.execute("DELETE FROM events WHERE time_ms < ?", (now_ms - MAX_AGE_MS,))
    while (used_bytes := _used_bytes(connection)) > max_bytes:
        count = _number(connection, "SELECT count(*) FROM events")
        if count == 0:
            return
        surplus = math.ceil(count * (1 - _PRUNE_TO * max_bytes / used_bytes))
        oldest = "SELECT id FROM events ORDER BY id LIMIT ?"
        connection.execute(f"DELETE FROM events WHERE id IN ({oldest})", (surplus,))  # noqa: S608 - fixed text


def _shrink(connection: sqlite3.Connection) -> None:
    """Give free pages and the write-ahead log back to the file system."""
    # execute() would free a single page: it takes one step
    connection.executescript("PRAGMA incremental_vacuum")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _rename_all(path: str, target: str) -> None:
    for suffix in ("", "-wal"):
        with contextlib.suppress(FileNotFoundError):
            os.replace(path + suffix, target + suffix)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{path}-shm")


def _parsed(text: str) -> HistoryEvent | None:
    try:
        return HistoryEvent.model_validate_json(text)
    except ValidationError:  # written by another version
        return None


def _is_object(text: object) -> bool:
    """Whether a row is state; a damaged file may hold values of any type."""
    try:
        return isinstance(text, str) and isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
