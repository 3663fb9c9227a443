"""Root becomes the owner of the log directories; in a child each time, for it is for good."""

import multiprocessing
import os
import stat
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from cleanerd.cli import privileges
from cleanerd.cli.configuration import load
from cleanerd.cli.privileges import become_owner
from cleanerd.errors import BadConfiguration, BadUsage

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
SOMEBODY, ANOTHER = 65534, 4242
_FORK = multiprocessing.get_context("fork")


@pytest.fixture
def dirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Makes log directories with a log, of these users; all can be reached, and cleanerd be read, by everybody."""
    monkeypatch.setattr(privileges, "_is_unreadable", lambda _: False)
    for path in (tmp_path, *list(tmp_path.parents)[:3]):
        path.chmod(0o755)

    def make(*uids: int) -> list[str]:
        made = []
        for number, uid in enumerate(uids):
            partition = tmp_path / f"logs{number}" / "t-0"
            partition.mkdir(parents=True)
            (partition / f"{0:020}.log").touch()
            for path in (partition.parent, partition, partition / f"{0:020}.log"):
                os.chown(path, uid, uid)
            made.append(str(partition.parent))
        return made

    return make


def _in_a_child(work: Callable[[], Any]) -> Any:
    """What it returns, or raises."""

    def run(answer: Connection) -> None:
        try:
            answer.send(work())
        except BaseException as error:  # noqa: BLE001
            answer.send(error)

    mine, theirs = _FORK.Pipe()
    child = _FORK.Process(target=run, args=(theirs,))
    child.start()
    found = mine.recv()
    child.join()
    if isinstance(found, BaseException):
        raise found
    return found


def _who(log_dirs: list[str], made: tuple[str, ...] = ()) -> tuple[Any, ...]:
    become_owner(log_dirs, made)
    return os.getresuid(), os.getresgid(), os.getgroups()


def test_root_becomes_the_owner_for_good(dirs: Callable[..., list[str]]) -> None:
    """All three ids, and no group of root's is left."""
    expected, made = ((ANOTHER,) * 3, (ANOTHER,) * 3, [ANOTHER]), dirs(ANOTHER, ANOTHER)
    assert _in_a_child(partial(_who, made)) == expected

    def back() -> None:
        os.setuid(0)

    def becomes() -> None:
        become_owner(made)
        back()

    with pytest.raises(OSError, match="not permitted"):
        _in_a_child(becomes)


def test_directories_of_root_are_cleaned_as_root(dirs: Callable[..., list[str]]) -> None:
    assert _in_a_child(partial(_who, dirs(0)))[0] == (0, 0, 0)


def test_directories_of_two_users_are_refused(dirs: Callable[..., list[str]]) -> None:
    with pytest.raises(BadUsage, match=r"belong to different users .*logs0: user nobody, .*logs1: user 4242"):
        _in_a_child(partial(_who, dirs(SOMEBODY, ANOTHER)))


def test_an_empty_mount_point_of_root_is_no_other_owner(
    dirs: Callable[..., list[str]], tmp_path: Path
) -> None:
    """A disk that is missing must not keep the others from being cleaned."""
    (tmp_path / "unmounted").mkdir()
    found = _in_a_child(partial(_who, [*dirs(ANOTHER), str(tmp_path / "unmounted"), str(tmp_path / "none")]))
    assert found[0] == (ANOTHER,) * 3


def test_a_link_of_somebody_else_names_no_owner(dirs: Callable[..., list[str]], tmp_path: Path) -> None:
    """Else the user of a directory has root go on as root in a directory of his choice."""
    os.symlink(dirs(0)[0], tmp_path / "link")
    os.lchown(tmp_path / "link", SOMEBODY, SOMEBODY)
    with pytest.raises(BadUsage, match=r"link: expected a directory, found a symbolic link .*user 65534"):
        _in_a_child(partial(_who, [str(tmp_path / "link")]))


def test_what_the_owner_needs_is_made_for_him(dirs: Callable[..., list[str]], tmp_path: Path) -> None:
    """The state directory and that of the control socket; what is there stays whose it is."""
    (tmp_path / "state").mkdir()
    needed = (str(tmp_path / "state"), str(tmp_path / "run"), str(tmp_path / "no" / "parent"))
    _in_a_child(partial(_who, dirs(ANOTHER), needed))
    assert (tmp_path / "state").stat().st_uid == 0
    made = (tmp_path / "run").stat()
    assert (made.st_uid, made.st_gid, stat.S_IMODE(made.st_mode)) == (ANOTHER, ANOTHER, 0o750)


def test_an_owner_who_cannot_read_cleanerd(
    dirs: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An installation below /root: root goes on, says so, and has all that it had."""
    monkeypatch.setattr(privileges, "_is_unreadable", lambda path: path.endswith("__init__.py"))
    groups = os.getgroups()
    assert _who(dirs(ANOTHER)) == ((0, 0, 0), (0, 0, 0), groups)
    assert "cleanerd/__init__.py: cleanerd goes on as root" in capsys.readouterr().err


def test_a_daemon_does_not_begin_with_what_only_root_may_read(
    dirs: Callable[..., list[str]], tmp_path: Path
) -> None:
    """It could not read it again: every reload would be refused, and nothing deleted from then on (architecture 2)."""
    config = tmp_path / "server.properties"
    config.write_text(f"log.dirs={dirs(ANOTHER)[0]}\ncleanerd.state.dir={tmp_path}/state\n")
    config.chmod(0o600)
    arguments = Namespace(config=str(config), set=[], topic_set=[], log_dir=[])

    def loaded() -> object:
        try:
            return load(arguments, is_daemon=True).log_dirs
        except BadConfiguration as error:
            return str(error)

    found = _in_a_child(loaded)
    assert "server.properties: expected a readable file, found: Permission denied" in found
    assert "let that user read it" in found
    os.chown(config, 0, ANOTHER)
    config.chmod(0o640)
    assert _in_a_child(loaded) == (str(tmp_path / "logs0"),)
