"""Which of our errors an OSError is; errors that cross process borders."""

import errno
import os
import pickle
from pathlib import Path

import pytest

from cleanerd.errors import CleanerdError, LogUncleanable, SourceChanged, guarded
from cleanerd.format.errors import FormatError


@pytest.mark.parametrize(
    ("where", "missing", "error"),
    [
        ("logs/a-0", "logs/a-0/0.log", SourceChanged),
        ("logs/a-0/0.log", "logs/a-0/0.log", SourceChanged),
        ("logs/gone-0", "logs/gone-0", SourceChanged),
        ("logs/gone-0", "logs/gone-0/0.log", SourceChanged),
        ("logs", "logs/gone-0/0.log", SourceChanged),
        ("logs/a-0", "tmp/spark", LogUncleanable),
        ("logs", "logs2/a-0", LogUncleanable),
        ("logs/gone-0", "tmp/spark", LogUncleanable),
    ],
)
def test_7_12_only_what_is_gone_from_where_the_log_lies_has_changed(
    where: str, missing: str, error: type[CleanerdError], tmp_path: Path
) -> None:
    """A temporary directory or a program that is missing is no truncation, deletion or exchange of the log."""
    (tmp_path / "logs" / "a-0").mkdir(parents=True)
    found = guarded(lambda: os.stat(tmp_path / missing), str(tmp_path / where))
    assert type(found) is error
    assert str(tmp_path / missing) in str(found)


def test_an_error_of_an_open_descriptor_is_about_the_log(tmp_path: Path) -> None:
    """It names no file."""

    def fail() -> None:
        raise OSError(errno.ENOENT, "stale")

    assert str(guarded(fail, f"{tmp_path}/a-0")) == f"{tmp_path}/a-0: stale"
    assert isinstance(guarded(fail, f"{tmp_path}/a-0"), SourceChanged)


def test_a_format_error_keeps_position_expected_and_found() -> None:
    error = pickle.loads(pickle.dumps(FormatError(7, "a", "b")))
    assert (error.position, error.expected, error.found) == (7, "a", "b")
    assert str(error) == "at byte 7: expected a, found b"
