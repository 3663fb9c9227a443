"""What inotify is asked to tell: names that come and go, never appends; and that nothing depends on it."""

import errno
import itertools
import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cleanerd.daemon.api.verbs import status
from cleanerd.daemon.inventory import watch
from cleanerd.daemon.inventory.watch import LogDirWatcher
from cleanerd.format import names
from cleanerd.format.names import FileKind, Suffix
from tests.harness.daemon.inventories import file_name, write_checkpoint, write_log
from tests.harness.daemon.world import World

WAIT_S = 10.0


class Heard:
    """Remembers calls, and waits for them."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []
        self._came = threading.Condition()
        self._markers = itertools.count()

    def changed(self, log_dir: str, name: str | None) -> None:
        with self._came:
            self.calls.append((Path(log_dir).name, str(name)))
            self._came.notify_all()

    def wait_for(self, *call: str) -> None:
        with self._came:
            assert self._came.wait_for(lambda: call in self.calls, WAIT_S), f"{call} not in {self.calls}"

    def of(self, act: Callable[[], object]) -> set[tuple[str, ...]]:
        """All that is heard of an action in the first log directory: events of one directory keep their order."""
        with self._came:
            self.calls.clear()
        act()
        marker = self.root / f"marker-{next(self._markers)}"
        marker.mkdir()
        self.wait_for("one", marker.name)
        return set(self.calls) - {("one", marker.name)}

    root: Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two log directories, with the log a-0 in the first, which is returned."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    write_log(tmp_path / "one" / "a-0", {0: 100, 10: 50})
    return tmp_path / "one"


@contextmanager
def watching(*log_dirs: Path) -> Iterator[tuple[LogDirWatcher, Heard]]:
    heard = Heard()
    watcher = LogDirWatcher(list(map(str, log_dirs)), heard.changed)
    watcher.start()
    yield watcher, heard
    watcher.stop()


@pytest.fixture
def heard(root: Path) -> Iterator[Heard]:
    """Watches both."""
    with watching(root, root.parent / "two") as (watcher, found):
        found.root = root
        assert watcher.problems() == {}
        yield found


def test_appending_is_not_heard(heard: Heard) -> None:
    """Neither of records nor of index entries, nor that a file was opened and closed."""

    def append() -> None:
        for _ in range(100):
            for kind in (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
                with (heard.root / "a-0" / file_name(10, kind)).open("ab") as file:
                    file.write(b"more")

    assert heard.of(append) == set()


@pytest.mark.parametrize(
    "name",
    [
        file_name(0, FileKind.PART, Suffix.STAGED),
        file_name(0, FileKind.LOG, Suffix.STAGED),
        file_name(20, FileKind.PRODUCER_SNAPSHOT),
        file_name(20, FileKind.OFFSET_INDEX),
        "leader-epoch-checkpoint.tmp",
        "foreign",
    ],
)
def test_files_that_make_no_difference_are_not_heard(heard: Heard, name: str) -> None:
    """A cleaning makes many of them."""
    assert heard.of((heard.root / "a-0" / name).touch) == set()


def test_rolls_staged_results_exchanges_and_deletions_are_heard(heard: Heard) -> None:
    directory = heard.root / "a-0"
    for act in (
        (directory / file_name(20)).touch,
        (directory / file_name(0, FileKind.MANIFEST, Suffix.STAGED)).touch,
        (directory / file_name(0, FileKind.LOG, Suffix.CLEANED)).touch,
        lambda: (directory / file_name(0, FileKind.LOG, Suffix.CLEANED)).rename(
            directory / file_name(0, FileKind.LOG, Suffix.SWAP)
        ),
        lambda: (directory / file_name(0)).rename(directory / file_name(0, suffix=Suffix.DELETED)),
        (directory / file_name(10)).unlink,
    ):
        heard.of(lambda: None)
        act()
        heard.wait_for("one", "a-0")


def test_partition_directories_that_come_and_go_are_heard_and_so_is_what_is_in_them(heard: Heard) -> None:
    write_log(heard.root / "b-0", {0: 100})
    heard.wait_for("one", "b-0")
    heard.of(lambda: None)
    (heard.root / "b-0" / file_name(10)).touch()
    heard.wait_for("one", "b-0")
    heard.of(lambda: None)
    (heard.root / "b-0").rename(heard.root / "b-0.0123456789abcdef0123456789abcdef-delete")
    heard.wait_for("one", "b-0")
    heard.of(lambda: None)
    shutil.rmtree(heard.root / "a-0")
    heard.wait_for("one", "a-0")


def test_lock_that_comes_and_goes_is_heard(heard: Heard) -> None:
    """A broker removes it when it stops (spec disk A3)."""
    for act in ((heard.root / names.LOCK).touch, (heard.root / names.LOCK).unlink):
        assert heard.of(act) == {("one", names.LOCK)}


@pytest.mark.parametrize(
    ("name", "is_heard"),
    [
        (names.CLEANER_OFFSET_CHECKPOINT, True),
        (names.RECOVERY_POINT_CHECKPOINT, True),
        (names.LOG_START_CHECKPOINT, True),
        (names.REPLICATION_CHECKPOINT, False),
    ],
)
def test_checkpoints_that_are_written_are_heard(heard: Heard, name: str, is_heard: bool) -> None:
    """But for the one that every broker writes every 5 s."""
    found = heard.of(lambda: write_checkpoint(heard.root, name, {"a-0": 5}))
    assert found == ({("one", name)} if is_heard else set())


def test_lost_events_mean_that_everything_has_to_be_looked_at(heard: Heard) -> None:
    """What watchdog says when the kernel's queue was full."""
    found = heard.of(
        lambda: logging.getLogger("watchdog.observers.inotify_c").warning("Inotify queue overflowed")
    )
    assert found == {("one", "None"), ("two", "None")}


def test_what_watchdog_says_of_a_watch_that_ends_is_no_lost_event(heard: Heard) -> None:
    """Every observer of the process logs it, also that of the configuration, which stops first."""
    text = "InotifyEmitter.queue_events() called when the thread is inactive"
    assert heard.of(lambda: logging.getLogger("watchdog.observers.inotify").error(text)) == set()


def test_log_directory_that_is_exchanged_is_watched_again(root: Path) -> None:
    with watching(root) as (watcher, heard):
        shutil.rmtree(root)
        heard.wait_for("one", "None")
        watcher.follow()
        assert watcher.problems() == {str(root): "only scans: No such file or directory"}
        root.mkdir()
        write_log(root / "c-0", {0: 1})
        watcher.follow()
        assert watcher.problems() == {}
        (root / "c-0" / file_name(10)).touch()
        heard.wait_for("one", "c-0")


def test_without_inotify_there_are_scans_and_a_reason(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left() -> None:
        raise OSError(errno.EMFILE, "inotify instance limit reached")

    monkeypatch.setattr(watch, "Observer", none_left)
    with watching(root) as (watcher, _):
        watcher.follow()
        assert watcher.problems() == {str(root): "only scans: inotify instance limit reached"}


def test_directories_beyond_the_limit_of_the_kernel_are_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Watchdog says nothing when it gets no watch for a directory inside."""
    counts = iter([7, 8])
    monkeypatch.setattr(watch, "_kernel_watches", lambda: next(counts))
    with watching(root) as (watcher, heard):
        (problem,) = watcher.problems().values()
    assert problem == "only scans for 1 of 2 directories: fs.inotify.max_user_watches may be too low"
    assert heard.calls == []


def test_one_watch_for_each_directory(root: Path) -> None:
    """And one inotify instance and four threads for all of them together."""
    for number in range(20):
        (root / f"many-{number}").mkdir()
    before, threads = watch._kernel_watches(), threading.active_count()
    with watching(root):
        assert watch._kernel_watches() - before == 22
        assert threading.active_count() - threads <= 4
    assert watch._kernel_watches() == before


def test_the_status_says_where_events_are_missing_as_long_as_they_are(world: World) -> None:
    watcher = world.daemon.scanner.watcher
    shutil.rmtree(world.b)
    watcher.start()
    try:
        warnings = status.status(world.control).warnings
        assert warnings[-1] == f"{world.b}: only scans: No such file or directory"
        world.b.mkdir()
        watcher.follow()
        assert not [text for text in status.status(world.control).warnings if "scans" in text]
    finally:
        watcher.stop()
