"""When to reload: watches the config file, its topic files and the metadata log.

What decides is a fingerprint of the files (identity, size, time of change, through all symbolic links), taken
every few seconds; inotify only makes that quick. So nothing is missed where events are: full queues, network
file systems, links to elsewhere, no inotify left (then the fingerprint is taken more often). Editors that
write beside and rename, files that come and go, and the switch of a Kubernetes ConfigMap's `..data` are all
the same: a directory had an event, a fingerprint is another.

A file is only believed when it stands still for `SETTLE_S`, one that became smaller for `SHRUNK_SETTLE_S`: a half-written
topic file would mean that the topic has no policy.
"""

import os
import threading
from collections import deque
from collections.abc import Callable

from watchdog import events
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver, ObservedWatch

from cleanerd.config.sources import Identity, identities, topic_directory
from cleanerd.env.clock import Clock, SystemClock
from cleanerd.env.files import inode_of

SETTLE_S = 0.2
SHRUNK_SETTLE_S = 5.0
"""For a file that is smaller than before: one that is emptied and written anew may lack a policy meanwhile."""
POLL_S = 5.0
"""How often everything is looked at, and at most how often the metadata log is."""
POLL_WITHOUT_INOTIFY_S = 1.0
RETRY_MAX_S = 300.0
"""Longest pause between attempts to adopt a metadata log that was refused."""

_EVENTS: list[type[events.FileSystemEvent]] = [  # not opening and reading: the watcher does that itself
    *(events.FileCreatedEvent, events.FileModifiedEvent, events.FileClosedEvent, events.FileMovedEvent),
    *(events.FileDeletedEvent, events.DirCreatedEvent, events.DirMovedEvent, events.DirDeletedEvent),
]
_LINKS_MAX = 40
_Fingerprint = tuple[Identity, ...]


class ConfigWatcher:
    """Calls `reload` when the files have changed, which says whether they were adopted, and `refresh` every few seconds.

    Begins with both, as far as there are files: what happened since the configuration was read is not known. `refresh` takes
    in what the cluster has configured since the last call, False while it cannot: then it is called again, with growing
    pauses. Both run in the watcher's own thread and must not raise.
    """

    def __init__(
        self,
        config_file: str | None,
        refresh: Callable[[], bool],
        reload: Callable[[], bool],
        *,
        clock: Clock | None = None,
        poll_s: float = POLL_S,
        observer: Callable[[], BaseObserver] = Observer,
    ) -> None:
        self._config_file = config_file
        self._refresh = refresh
        self._reload = reload
        self._clock = clock or SystemClock()
        self._poll_s = poll_s
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._observer = observer
        self._seen: _Fingerprint = ()
        self._sizes: dict[str, int] = {}  # of the files as they were adopted
        self._metadata_due_s = self._clock.monotonic_s()
        self._retry_s = 0.0  # pause before the next attempt; 0: the last one was adopted
        self._thread = threading.Thread(target=self._run, name="config-watcher", daemon=True)

    def start(self) -> None:
        """Begin watching."""
        self._watches = _Watches(self._observer, self._wake)
        self._watches.follow(_watch_points(self._config_file))
        self._thread.start()

    def stop(self) -> None:
        """End watching; waits for a reload in progress."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._look_at_files()
            self._look_at_metadata()
            pause_s = self._poll_s if self._watches.is_complete else POLL_WITHOUT_INOTIFY_S
            if self._wake.wait(min(pause_s, self._poll_s)):
                self._stopping.wait(SETTLE_S)  # a burst of events is one
            self._wake.clear()
            self._watches.follow(_watch_points(self._config_file))  # before looking: no gap between
        self._watches.close()

    def _look_at_files(self) -> None:
        found = self._fingerprint()
        if found == self._seen:
            return
        while not self._stopping.wait(SHRUNK_SETTLE_S if self._is_shrunk(found) else SETTLE_S):
            before, found = found, self._fingerprint()
            if before == found:
                self._seen = found
                if self._reload():
                    self._sizes = {path: size for path, _, _, size, _ in found}
                return

    def _is_shrunk(self, found: _Fingerprint) -> bool:
        """Whether a file is smaller than it was when its content was adopted."""
        return any(0 <= size < self._sizes.get(path, 0) for path, _, _, size, _ in found)

    def _look_at_metadata(self) -> None:
        if self._stopping.is_set() or self._clock.monotonic_s() < self._metadata_due_s:
            return
        is_adopted = self._refresh()
        self._retry_s = 0.0 if is_adopted else min(max(2 * self._retry_s, self._poll_s), RETRY_MAX_S)
        self._metadata_due_s = self._clock.monotonic_s() + max(self._retry_s, self._poll_s)

    def _fingerprint(self) -> _Fingerprint:
        return identities(self._config_file)


class _Watches:
    """Directories that inotify watches, as far as it can."""

    def __init__(self, observer: Callable[[], BaseObserver], wake: threading.Event) -> None:
        self._handler = _Waker(wake)
        self._watches: dict[tuple[str, int], ObservedWatch] = {}
        self._observer: BaseObserver | None = None
        self.is_complete = False
        try:
            self._observer = observer()
            self._observer.start()
        except OSError:  # no inotify instance left
            self._observer = None

    def follow(self, directories: set[str]) -> None:
        """Watch exactly these directories; `is_complete` tells whether all of them could be watched."""
        if self._observer is None:
            return
        wanted = {(directory, inode_of(directory)) for directory in directories}
        for gone in self._watches.keys() - wanted:
            self._observer.unschedule(self._watches.pop(gone))
        for key in sorted(wanted - self._watches.keys()):
            try:
                watch = self._observer.schedule(self._handler, key[0], event_filter=_EVENTS)
            except OSError:  # no inotify watch left, or the directory is gone
                continue
            self._watches[key] = watch
        self.is_complete = self._watches.keys() == wanted

    def close(self) -> None:
        if self._observer is not None:
            self._observer.stop()
            self._observer.join()


class _Waker(events.FileSystemEventHandler):
    """Any event is only a reason to look."""

    def __init__(self, wake: threading.Event) -> None:
        self._wake = wake

    def on_any_event(self, event: events.FileSystemEvent) -> None:  # noqa: ARG002 - watchdog's signature
        self._wake.set()


def _watch_points(config_file: str | None) -> set[str]:
    """Directories whose entries decide where the configuration's paths lead."""
    if config_file is None:
        return set()
    any_topic_file = os.path.join(topic_directory(config_file), "any")
    return _points_of(os.path.abspath(config_file)) | _points_of(any_topic_file)


def _points_of(path: str) -> set[str]:
    """Directories of the links on the way, and of the last entry: or of the first that is not there."""
    points: set[str] = set()
    current, rest, links = "/", deque(path.split("/")), 0
    while rest:
        name = rest.popleft()
        entry = os.path.normpath(os.path.join(current, name))
        if os.path.islink(entry) and links < _LINKS_MAX:
            links += 1
            points.add(current)
            target = os.readlink(entry)
            current = "/" if os.path.isabs(target) else current
            rest.extendleft(reversed(target.split("/")))
        elif not any(rest) or not os.path.isdir(entry):
            return points | {current}
        else:
            current = entry
    return points | {current}
