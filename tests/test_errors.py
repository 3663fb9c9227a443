"""Which of our errors an OSError is; errors that cross process borders."""

import errno
import os
import pickle
from pathlib import Path

import pytest

from cleanerd.errors import (
    Aborted,
    BadUsage,
    CleanerdError,
    CorruptFile,
    Fatal,
    LogUncleanable,
    NoSpace,
    Retryable,
    SourceChanged,
    each_log,
    portable,
)
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
    with each_log(str(tmp_path / where)) as log:
        os.stat(tmp_path / missing)
    assert type(log.error) is error
    assert str(tmp_path / missing) in str(log.error)


def test_an_error_of_an_open_descriptor_is_about_the_log(tmp_path: Path) -> None:
    """It names no file."""
    with each_log(f"{tmp_path}/a-0") as log:
        raise OSError(errno.ENOENT, "stale")
    assert str(log.error) == f"{tmp_path}/a-0: stale"
    assert isinstance(log.error, SourceChanged)


def test_a_format_error_keeps_position_expected_and_found() -> None:
    error = pickle.loads(pickle.dumps(FormatError(7, "a", "b")))
    assert (error.position, error.expected, error.found) == (7, "a", "b")
    assert str(error) == "at byte 7: expected a, found b"


class Foreign(Exception):
    """As of a compiled library: no name leads to its class."""

    __qualname__ = "nowhere.Foreign"


def test_what_a_library_raised_crosses_a_process_border_as_its_text() -> None:
    """Architecture 4: the error of a task is its answer, with file and byte."""
    errors = (
        FormatError(3, "a member", Foreign("bad block")),
        CorruptFile("a.log", 3, "records", Foreign("bad block")),
    )
    for error in errors:
        again = pickle.loads(pickle.dumps(error))
        assert str(again) == str(error)
        assert again.found == "bad block"
    assert CorruptFile("a.log", 3, "magic 2", 9).found == 9


@pytest.mark.parametrize(
    ("kind", "arrives_as"),
    [
        (SourceChanged, SourceChanged),
        (NoSpace, NoSpace),
        (Retryable, Retryable),
        (Aborted, Aborted),
        (BadUsage, Fatal),
        (LogUncleanable, LogUncleanable),
    ],
)
def test_an_error_that_cannot_be_pickled_keeps_its_kind_and_its_text(
    kind: type[CleanerdError], arrives_as: type[CleanerdError]
) -> None:
    """Whoever handles it asks for the kind."""

    class Odd(kind):  # type: ignore[misc, valid-type]
        """Of no module."""

    error = portable(Odd("a.log: is odd"))
    assert type(error) is arrives_as
    assert str(pickle.loads(pickle.dumps(error))) == "a.log: is odd"
    same = kind("as it is")
    assert portable(same) is same
