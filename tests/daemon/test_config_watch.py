"""The watcher of configuration, with real files and real inotify: what happens to a file is seen, once."""

import errno
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from unittest import mock

import pytest

from cleanerd.daemon.configuration import watch
from cleanerd.daemon.configuration.reload import ReloadTrigger
from cleanerd.daemon.configuration.watch import ConfigWatcher
from cleanerd.daemon.work.topic_answers import ClusterChanges
from cleanerd.env.files import RealFiles
from cleanerd.format.batch import Record, encode_batch, iterate_batches
from cleanerd.format.names import CLUSTER_METADATA_TOPIC
from cleanerd.storage.metadata_tail import MetadataTail

LONG_S = 600.0
"""A pause between two looks that no test lives to see: what is seen, inotify told."""
WAIT_S = 10.0
POLICY = bytes.fromhex(
    "01 04 00 02 04 6d2d61 0f 636c65616e75702e706f6c696379 0f 636f6d706163742c64656c657465 00"
)
NO_OP = bytes((1, 20, 0, 0))


class Reloads:
    """Stands for the reloader; `answers` says for the first calls whether they were adopted."""

    def __init__(self) -> None:
        self.answers: list[bool] = []
        self.content: Callable[[], str] = lambda: ""
        self._calls: queue.Queue[tuple[ReloadTrigger, str]] = queue.Queue()

    def __call__(self, trigger: ReloadTrigger) -> bool:
        self._calls.put((trigger, self.content()))
        return self.answers.pop(0) if self.answers else True

    def next(self) -> tuple[ReloadTrigger, str]:
        return self._calls.get(timeout=WAIT_S)

    def none_left(self) -> bool:
        return self._calls.empty()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file stands still sooner."""
    monkeypatch.setattr(watch, "SETTLE_S", 0.05)
    monkeypatch.setattr(watch, "SHRUNK_SETTLE_S", 0.05)
    monkeypatch.setattr(watch, "POLL_WITHOUT_INOTIFY_S", 0.2)


@pytest.fixture
def reloads() -> Reloads:
    return Reloads()


def watcher_of(
    reload: Callable[[ReloadTrigger], bool], config_file: Path | None, *log_dirs: Path, **arguments: object
) -> ConfigWatcher:
    """One that follows the metadata log in these log directories."""
    tail = MetadataTail(RealFiles(), [f"{log_dir}/{CLUSTER_METADATA_TOPIC}-0" for log_dir in log_dirs])
    nobody, current = mock.Mock(), mock.Mock(has_metadata_log=True)
    changes = ClusterChanges(tail, nobody, nobody, lambda: current, partial(reload, ReloadTrigger.METADATA))
    return ConfigWatcher(
        str(config_file) if config_file else None,
        changes.take_in,
        partial(reload, ReloadTrigger.FILES),
        **{"poll_s": LONG_S, **arguments},  # type: ignore[arg-type]
    )


@contextmanager
def watching(
    reloads: Reloads, config_file: Path | None, *log_dirs: Path, **arguments: object
) -> Iterator[ConfigWatcher]:
    """A watcher that has done the reloads that it begins with."""
    watcher = watcher_of(reloads, config_file, *log_dirs, **arguments)
    watcher.start()
    try:
        if config_file:
            assert reloads.next()[0] is ReloadTrigger.FILES
        yield watcher
    finally:
        watcher.stop()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "etc" / "server.properties"
    (path.parent / "topics.d").mkdir(parents=True)
    path.write_text("a=1\n")
    return path


def rename_over(path: Path, text: str) -> None:
    (beside := path.with_name(f".{path.name}.swp")).write_text(text)
    beside.replace(path)


def move_away_and_write(path: Path, text: str) -> None:
    path.rename(path.with_name(f"{path.name}~"))
    path.write_text(text)


def delete_and_write(path: Path, text: str) -> None:
    path.unlink()
    path.write_text(text)


@pytest.mark.parametrize("write", [Path.write_text, rename_over, move_away_and_write, delete_and_write])
def test_every_way_of_writing_the_file_is_seen(
    config: Path, reloads: Reloads, write: Callable[[Path, str], object]
) -> None:
    """In place, renamed over it, backed up first: one reload each, also the second time."""
    reloads.content = config.read_text
    with watching(reloads, config):
        for text in ("a=2\n", "a=33\n"):
            write(config, text)
            assert reloads.next() == (ReloadTrigger.FILES, text)
    assert reloads.none_left()


def test_topic_files_that_come_change_and_go_are_seen(config: Path, reloads: Reloads) -> None:
    """So is the directory that they lie in."""
    directory = config.parent / "topics.d"
    topic_file = directory / "orders.properties"
    reloads.content = lambda: ",".join(sorted(os.listdir(directory))) if directory.exists() else "gone"
    with watching(reloads, config):
        topic_file.write_text("retention.ms=1\n")
        assert reloads.next()[1] == "orders.properties"
        rename_over(topic_file, "retention.ms=22\n")
        assert reloads.next()[1] == "orders.properties"
        topic_file.unlink()
        assert reloads.next()[1] == ""
        topic_file.write_text("retention.ms=1\n")
        assert reloads.next()[1] == "orders.properties"
        directory.rename(config.parent / "topics.off")
        assert reloads.next()[1] == "gone"
        directory.mkdir()
        (directory / "b.properties").write_text("retention.ms=1\n")
        assert reloads.next()[1] == "b.properties"
    assert reloads.none_left()


def test_what_is_not_configuration_is_no_reload(config: Path, reloads: Reloads) -> None:
    """Neighbours of the file, notes beside the topic files, a mere change of mode, being read."""
    reloads.content = config.read_text
    with watching(reloads, config):
        (config.parent / "other.properties").write_text("x")
        (config.parent / "topics.d" / "notes.txt").write_text("x")
        config.chmod(0o600)
        config.read_text()
        config.write_text("a=2\n")
        assert reloads.next() == (ReloadTrigger.FILES, "a=2\n")
    assert reloads.none_left()


def config_map(directory: Path, version: str, text: str) -> None:
    """What kubelet does: a directory of its own for each version, `..data` leads to it by one rename."""
    (directory / version / "topics.d").mkdir(parents=True)
    (directory / version / "server.properties").write_text(text)
    (directory / "..data_tmp").symlink_to(version)
    (directory / "..data_tmp").rename(directory / "..data")


def test_the_switch_of_a_config_map_is_seen(tmp_path: Path, reloads: Reloads) -> None:
    """The file's name is a link to a link; nothing happens to the name itself."""
    directory = tmp_path / "mount"
    config_map(directory, "..v1", "a=1\n")
    path = directory / "server.properties"
    path.symlink_to("..data/server.properties")
    (directory / "topics.d").symlink_to("..data/topics.d")
    reloads.content = path.read_text
    with watching(reloads, path):
        config_map(directory, "..v2", "a=2\n")
        assert reloads.next() == (ReloadTrigger.FILES, "a=2\n")
        config_map(directory, "..v3", "a=3\n")
        assert reloads.next() == (ReloadTrigger.FILES, "a=3\n")
        (directory / "..v3" / "topics.d" / "t.properties").write_text("retention.ms=1\n")
        assert reloads.next()[0] is ReloadTrigger.FILES


def test_the_switch_of_a_linked_directory_is_seen(tmp_path: Path, reloads: Reloads) -> None:
    """A link on the way to the file, relative or absolute, as release tools have it."""
    for version in "12":
        (tmp_path / f"release-{version}").mkdir()
        (tmp_path / f"release-{version}" / "server.properties").write_text(f"a={version}\n")
    (tmp_path / "current").symlink_to("release-1")
    (tmp_path / "etc").symlink_to(tmp_path / "current")
    path = tmp_path / "etc" / "server.properties"
    reloads.content = path.read_text
    with watching(reloads, path):
        (tmp_path / "next").symlink_to("release-2")
        (tmp_path / "next").rename(tmp_path / "current")
        assert reloads.next() == (ReloadTrigger.FILES, "a=2\n")


def test_a_change_since_the_configuration_was_read_is_seen(
    config: Path, tmp_path: Path, reloads: Reloads
) -> None:
    """Nobody knows of one: the first look is a reload, of files and of a metadata log."""
    log_dir = tmp_path / "logs"
    append(log_dir, NO_OP)
    with watching(reloads, config, Path("/nowhere"), log_dir):
        assert reloads.next()[0] is ReloadTrigger.METADATA
    assert reloads.none_left()


def test_a_file_is_believed_when_it_stands_still(
    config: Path, reloads: Reloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a topic file would say that the topic has no policy: a slow writer is waited for."""
    monkeypatch.setattr(watch, "SETTLE_S", 0.3)
    reloads.content = config.read_text
    with watching(reloads, config), config.open("w") as file:
        lines = [f"key{number}=1\n" for number in range(8)]  # it is looked at more than once meanwhile
        for line in lines:
            file.write(line)
            file.flush()
            threading.Event().wait(0.1)
        assert reloads.next() == (ReloadTrigger.FILES, "".join(lines))
    assert reloads.none_left()


def test_a_file_that_became_smaller_is_waited_for_longer(
    config: Path, reloads: Reloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is emptied and written anew may say nothing, or half of it, for longer than a file is written (rule A.2)."""
    topic, whole = config.parent / "topics.d" / "t.properties", "retention.ms=1\ncleanup.policy=compact\n"
    topic.write_text(whole)
    reloads.content = topic.read_text
    monkeypatch.setattr(watch, "SHRUNK_SETTLE_S", 0.6)
    with watching(reloads, config):
        topic.write_text("")
        threading.Event().wait(0.3)
        topic.write_text("retention.ms=1\n")
        threading.Event().wait(0.3)
        topic.write_text(f"{whole}#\n")
        assert reloads.next() == (ReloadTrigger.FILES, f"{whole}#\n")
        reloads.answers = [False]
        topic.unlink()
        reloads.content = lambda: ""
        assert reloads.next() == (ReloadTrigger.FILES, "")
        reloads.content = topic.read_text
        topic.write_text("retention.ms=1\n")
        threading.Event().wait(0.3)
        topic.write_text(whole)
        assert reloads.next() == (ReloadTrigger.FILES, whole), "smaller than what was adopted"
    assert reloads.none_left()


def test_without_inotify_changes_are_still_seen(config: Path, reloads: Reloads) -> None:
    """All instances of the user are taken: looking more often takes its place."""
    none_left = OSError(errno.EMFILE, "inotify instance limit reached")
    with watching(reloads, config, observer=mock.Mock(side_effect=none_left)):
        config.write_text("a=22\n")
        assert reloads.next()[0] is ReloadTrigger.FILES
        (config.parent / "topics.d" / "t.properties").write_text("retention.ms=1\n")
        assert reloads.next()[0] is ReloadTrigger.FILES


def test_a_file_that_is_not_there_yet_is_waited_for(tmp_path: Path, reloads: Reloads) -> None:
    """Nor are the directories that it will lie in."""
    path = tmp_path / "a" / "b" / "server.properties"
    with watching(reloads, path):
        path.parent.mkdir(parents=True)
        path.write_text("a=1\n")
        assert reloads.next()[0] is ReloadTrigger.FILES
        path.write_text("a=22\n")
        assert reloads.next()[0] is ReloadTrigger.FILES


def append(log_dir: Path, frame: bytes) -> None:
    path = log_dir / "__cluster_metadata-0" / f"{0:020d}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.read_bytes() if path.exists() else b""
    offset = sum(1 for _ in iterate_batches(written))
    with path.open("ab") as file:
        file.write(encode_batch([Record(offset, 1000, None, frame)], base_offset=offset))


def test_the_metadata_log_is_followed(tmp_path: Path, reloads: Reloads) -> None:
    """Records that matter, not those that a controller writes all the time."""
    append(tmp_path, POLICY)
    with watching(reloads, None, tmp_path, poll_s=0.02):
        assert reloads.next()[0] is ReloadTrigger.METADATA, "what came before the watcher is not known"
        for _ in range(5):
            append(tmp_path, NO_OP)
        append(tmp_path, POLICY)
        assert reloads.next()[0] is ReloadTrigger.METADATA
    assert reloads.none_left()


def test_a_refused_metadata_log_is_tried_again(tmp_path: Path, reloads: Reloads) -> None:
    """A disk had an error while it was read: what topics are must not stay unknown for ever. The pauses grow."""
    append(tmp_path, POLICY)
    reloads.answers = [False, False, False, True]
    reloads.content = lambda: str(time.monotonic())
    with watching(reloads, None, tmp_path, poll_s=0.02):
        triggers, at_s = zip(*(reloads.next() for _ in range(4)), strict=True)
        assert set(triggers) == {ReloadTrigger.METADATA}
        pauses_s = [float(later) - float(before) for before, later in pairwise(at_s)]
        assert all(pause_s >= least_s for pause_s, least_s in zip(pauses_s, (0.02, 0.04, 0.08), strict=True))
        append(tmp_path, POLICY)
        assert reloads.next()[0] is ReloadTrigger.METADATA
    assert reloads.none_left()


def test_stop_does_not_wait_for_the_next_look(config: Path, reloads: Reloads) -> None:
    """However long that is off; and twice is no mistake."""
    with watching(reloads, config) as watcher:
        start_s = time.monotonic()
        watcher.stop()
        assert time.monotonic() - start_s < 2
        watcher.stop()


def test_a_watcher_that_was_never_started_stops(config: Path, reloads: Reloads) -> None:
    """A daemon may fail between the two."""
    watcher_of(reloads, config).stop()
