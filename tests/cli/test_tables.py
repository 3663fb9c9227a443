"""The one table printer: plain in a pipe, drawn on a terminal."""

import re

import pytest

from cleanerd.cli.tables import coloured, fitted, table

REASON = "/data/a-12/00000000000000000000.log: a batch with a wrong CRC at byte 77"
COLUMNS = {
    "LOG": ["orders-0", "a\x1b[2J-12"],
    "OUTCOME": ["committed", "failed"],
    "NOTHING": ["", ""],
    "SIZE": ["5.4 MB", "1 B"],
    "REASON": ["", REASON],
}
LINES = [
    "LOG       OUTCOME      SIZE  REASON",
    "orders-0  committed  5.4 MB",
    f"a?[2J-12  failed        1 B  {REASON}",
]


def test_a_pipe_gets_whole_cells_that_line_up() -> None:
    """Numbers to the right, no empty columns, nothing that a terminal would obey, no colour."""
    assert table(COLUMNS).splitlines() == LINES
    assert coloured("failed") == "failed"
    assert table({"LOG": []}) == ""


@pytest.mark.usefixtures("terminal")
def test_a_terminal_folds_what_it_has_no_room_for() -> None:
    """Nothing is lost."""
    drawn = re.sub(r"\x1b\[\d*m", "", table(COLUMNS)).splitlines()
    assert max(map(len, drawn)) <= 40
    column = drawn[0].index("REASON")
    assert "".join(line[column:] for line in drawn[2:]).replace(" ", "") == REASON.replace(" ", "")


@pytest.mark.usefixtures("terminal")
def test_words_that_name_a_state_are_coloured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wide table has the lines of a pipe."""
    assert coloured("failed") == "\x1b[31mfailed\x1b[0m"
    with fitted(False):
        wide = table(COLUMNS)
        assert "\x1b[31mfailed" in wide
        assert re.sub(r"\x1b\[\d*m", "", wide).splitlines() == LINES
        monkeypatch.setenv("NO_COLOR", "1")
        assert table(COLUMNS).splitlines() == LINES
        assert coloured("failed") == "failed"
