"""Where things are kept that can be made again."""

import os
from pathlib import Path

import pytest

from cleanerd.env.cache import cache_directory, why_untrusted


@pytest.mark.parametrize(
    ("environment", "directory"),
    [
        ({"CACHE_DIRECTORY": "/var/cache/cleanerd:/other", "XDG_CACHE_HOME": "/x"}, "/var/cache/cleanerd"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/cleanerd"),
        ({"XDG_CACHE_HOME": "x"}, os.path.expanduser("~/.cache/cleanerd")),
        ({}, os.path.expanduser("~/.cache/cleanerd")),
    ],
)
def test_cache_directory(environment: dict[str, str], directory: str) -> None:
    assert cache_directory(environment) == directory


@pytest.mark.parametrize("name", ["meta.properties", ".lock", "__cluster_metadata-0"])
def test_a_home_that_is_a_log_directory_has_no_cache_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """No broker starts beside `.cache`: each directory there has to be that of a log (spec disk A1)."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory({}) == str(tmp_path / ".cache" / "cleanerd")
    (tmp_path / name).touch()
    assert not cache_directory({}).startswith(str(tmp_path))


def make_private(place: Path) -> Path:
    """A directory as it should be, with something in it."""
    (place / "below").mkdir(parents=True)
    (place / "below" / "kernel.nbc").write_bytes(b"code")
    return place


def test_a_directory_of_this_user_is_trusted(tmp_path: Path) -> None:
    """Also one that only its owner can enter, whatever the modes in it; and one that was not there, but is now: else another
    user could make it between this answer and the first file (rule B.9).
    """
    assert why_untrusted(str(make_private(tmp_path / "a"))) is None
    (tmp_path / "none").mkdir(mode=0o1777)
    assert why_untrusted(str(tmp_path / "none" / "yet")) is None
    assert (tmp_path / "none" / "yet").is_dir()
    (tmp_path / "a" / "below" / "kernel.nbc").chmod(0o666)
    (tmp_path / "a").chmod(0o700)
    assert why_untrusted(str(tmp_path / "a")) is None


@pytest.mark.parametrize("place", ["", "below", "below/kernel.nbc"])
def test_what_others_can_write_is_not_trusted(tmp_path: Path, place: str) -> None:
    """The directory, what lies in it, and what it lies in; a sticky directory above is no matter."""
    directory = make_private(tmp_path / "a")
    (directory / place).chmod(0o777)
    assert why_untrusted(str(directory)) == f"every user may write to {directory / place}".rstrip("/")
    directory.chmod(0o1777)
    assert why_untrusted(str(directory)) is not None


def test_a_directory_below_one_that_others_can_write(tmp_path: Path) -> None:
    """They could put another one in its place, unless it is sticky."""
    directory = make_private(tmp_path / "open" / "a")
    (tmp_path / "open").chmod(0o777)
    assert why_untrusted(str(directory)) == f"every user may write to {tmp_path / 'open'}"
    (tmp_path / "open").chmod(0o1777)
    assert why_untrusted(str(directory)) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
@pytest.mark.parametrize("place", ["", "below", "below/kernel.nbc"])
def test_what_belongs_to_another_user_is_not_trusted(tmp_path: Path, place: str) -> None:
    directory = make_private(tmp_path / "a")
    os.chown(directory / place, 65534, 65534)
    assert why_untrusted(str(directory)) == f"{directory / place} belongs to user 65534".replace("/ ", " ")
