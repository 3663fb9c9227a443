"""Holds in the state of another daemon, found through the lock file of the log directory.

=================================================  ==========================================================
what `.cleanerd.lock` names (`storage.keeper`)     what binds
=================================================  ==========================================================
nothing                                            no hold: no daemon has worked there
a state that can be read                           its holds, until they end
a directory that is not there, or has another      its holds as the lock file has them: the state is lost, or on
state                                              another host, or only seen by the daemon. In a copy of the log
                                                   directory no hold, with a warning
anything else                                      everything: the log directory is left alone (`DirOffline`)
=================================================  ==========================================================
"""

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict

import structlog
from pydantic import TypeAdapter, ValidationError

from cleanerd.daemon.store import HOLD, Store, read_state, state_id
from cleanerd.daemon.values.holds import Hold
from cleanerd.daemon.work.states import PartitionStates
from cleanerd.env.clock import Clock
from cleanerd.errors import DirOffline, Fatal
from cleanerd.format.names import CLEANERD_LOCK, TopicPartition
from cleanerd.storage.keeper import Keeper, read_keeper, write_keeper
from cleanerd.storage.lock import LogDirLock

HISTORY = "history.sqlite"
STATE_LOCK = "history.lock"
"""Not the history, which may be replaced. Not `.cleanerd.lock`: it may be a log directory as well."""
_HOLD, _HOLDS = TypeAdapter(Hold), TypeAdapter(list[Hold])
_log = structlog.get_logger("cleanerd")


def kept_holds(state_dir: str, of_state: str | None = None) -> list[Hold] | None:
    """All holds in a state directory, None where there is none of that name, or another state than that with the id
    `of_state`. Raises DirOffline if they are not known.
    """
    path = os.path.join(state_dir, HISTORY)
    try:
        if _is_absent(state_dir):
            return None
        if _is_absent(path) and _is_absent(os.path.join(state_dir, STATE_LOCK)):
            raise DirOffline(
                f"{path}: expected the state of a cleanerd, found no file, and so the holds are not known; mount what "
                "belongs there, or remove the directory if no hold has to be kept"
            )
        found = read_state(path)
        if of_state not in (None, state_id(found)):
            return None
        return [_HOLD.validate_python(json.loads(text)) for (kind, _), text in found.items() if kind == HOLD]
    except Fatal as error:
        raise DirOffline(str(error)) from error
    except (ValueError, TypeError, ValidationError) as error:
        raise DirOffline(
            f"{path}: expected holds of this version, found one that cannot be read: {error}"
        ) from error
    except OSError as error:
        raise DirOffline(
            f"{error.filename or path}: cannot be read, and so the holds are not known: {error.strerror}"
        ) from error


def _is_unused(state_dir: str) -> bool:
    """Whether no daemon has kept anything there: one that works in a log directory names it there."""
    try:
        return all(_is_absent(os.path.join(state_dir, name)) for name in (HISTORY, STATE_LOCK))
    except OSError:
        return False


def _is_absent(path: str) -> bool:
    """Whether nothing has this name. Raises OSError where that cannot be known."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    return False


def _holds_of(keeper: Keeper, log_dir: str) -> tuple[str, list[Hold]] | None:
    """The holds of the last daemon in a log directory, with the place where they are kept; None in a copy elsewhere.

    Raises DirOffline.
    """
    holds = kept_holds(keeper.state_dir, keeper.state_id)
    if holds is not None:
        return keeper.state_dir, holds
    if keeper.is_copied:
        return None
    lock_file = f"{log_dir}/{CLEANERD_LOCK} (to be removed if its daemon is gone for good)"
    return lock_file, _named_holds(keeper, log_dir)


def _named_holds(keeper: Keeper, log_dir: str) -> list[Hold]:
    """The holds in the lock file. Raises DirOffline."""
    try:
        return _HOLDS.validate_json(keeper.holds)
    except ValidationError as error:
        raise DirOffline(
            f"{log_dir}/{CLEANERD_LOCK}: expected the holds of the daemon that keeps {keeper.state_dir}, which does not "
            f"exist here, found {keeper.holds[:80]!r}, and so they are not known; mount that directory, or remove the file "
            "while no cleanerd works there, if no hold has to be kept"
        ) from error


class HoldsOfDirectories:
    """Has log directories name this daemon's state and holds, and takes over those of the daemon that was there before."""

    def __init__(self, store: Store, states: PartitionStates, clock: Clock) -> None:
        self._store = store
        self._states = states
        self._clock = clock
        self._known = set[str]()  # ids, also of those that have ended

    def take_over(self, log_dir: str, lock: LogDirLock) -> None:
        """When the lock file of a log directory is had, before anything is done there.

        Raises DirOffline if holds are not known, or would not survive a restart.
        """
        keeper = read_keeper(log_dir)
        if keeper is not None and keeper.state_id != self._store.id:
            found = _holds_of(keeper, log_dir)
            if found is None:
                _log.warning("holds_not_found", log_dir=log_dir, state_dir=keeper.state_dir)
            else:
                self._take(found[1], log_dir, keeper)
        self.name(log_dir, lock)

    def name(self, log_dir: str, lock: LogDirLock) -> None:
        """Write the current holds to the lock file of a log directory; on a full disk that fails."""
        holds = self._states.holds()
        self._known |= {hold.id for hold in holds}
        try:
            as_json = json.dumps(list(map(asdict, holds)))
            write_keeper(log_dir, lock, self._store.directory, self._store.id, as_json)
        except DirOffline as error:
            _log.warning("holds_not_named", log_dir=log_dir, reason=str(error))

    def _take(self, holds: Iterable[Hold], log_dir: str, keeper: Keeper) -> None:
        known = self._known | {hold.id for hold in self._states.holds()}
        now_ms = self._clock.now_ms()
        for hold in holds:
            if hold.id in known or (hold.expires_ms is not None and hold.expires_ms <= now_ms):
                continue
            if not self._store.put(HOLD, hold.id, asdict(hold)):
                self._store.delete(HOLD, hold.id)
                raise DirOffline(
                    f"{log_dir}: the holds of the daemon that keeps {keeper.state_dir} cannot be taken over: the state "
                    "directory of this one cannot be written"
                )
            self._states.hold(hold, 0.0)
            _log.info(
                "hold_taken_over",
                log_dir=log_dir,
                state_dir=keeper.state_dir,
                hold=hold.id,
                pattern=hold.pattern,
            )


class HoldsOnDisk:
    """The holds that bind a one-shot. `state_dirs`: further ones beside those in lock files; `warn` gets warnings."""

    def __init__(self, clock: Clock, state_dirs: Iterable[str], warn: Callable[[str], object]) -> None:
        self._clock = clock
        self._state_dirs = tuple(state_dirs)
        self._warn = warn

    def of(self, log_dir: str) -> Callable[[TopicPartition], str | None]:
        """Why a log of this directory is held, None for one that is not. Raises DirOffline if that is not known."""
        keeper, now_ms = read_keeper(log_dir), self._clock.now_ms()
        kept = dict[str, list[Hold]]()
        if keeper is not None:
            of_keeper = _holds_of(keeper, log_dir)
            if of_keeper is None:
                self._warn(
                    f"{log_dir} is a copy: {keeper.state_dir}, the state of the daemon that had the holds of the original, "
                    "does not exist here; no log is held"
                )
            kept |= dict([of_keeper] if of_keeper else [])
        for state_dir in self._state_dirs:
            if state_dir not in kept and not _is_unused(state_dir):
                kept[state_dir] = kept_holds(state_dir) or []
        found = [
            (place, hold)
            for place, holds in kept.items()
            for hold in holds
            if hold.expires_ms is None or hold.expires_ms > now_ms
        ]

        def why_held(tp: TopicPartition) -> str | None:
            for place, hold in found:
                if hold.matches(tp):
                    reason = f" ({hold.reason})" if hold.reason else ""
                    return (
                        f"{hold.owner} paused {hold.pattern}{reason}: hold {hold.id} in {place}; "
                        f"`cleanerctl resume {hold.id}` ends it, while the daemon with that state runs"
                    )
            return None

        return why_held
