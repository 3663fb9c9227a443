"""The transition table of spec behaviour 2A, every cell of it."""

import pytest

from cleanerd.policy.lifecycle import (
    ABORTED,
    IN_PROGRESS,
    NONE,
    Call,
    CleaningState,
    IllegalTransition,
    Status,
    paused,
    transition,
)

ERROR = "error"
SKIPPED = None

TABLE = {  # written after the spec, cell by cell
    (NONE, Call.START): IN_PROGRESS,
    (NONE, Call.ABORT_AND_PAUSE): paused(1),
    (NONE, Call.RESUME): ERROR,
    (NONE, Call.DONE_CLEANING): ERROR,
    (NONE, Call.DONE_DELETING): ERROR,
    (NONE, Call.PAUSE_NON_COMPACTED): paused(1),
    (IN_PROGRESS, Call.START): SKIPPED,
    (IN_PROGRESS, Call.ABORT_AND_PAUSE): ABORTED,
    (IN_PROGRESS, Call.RESUME): ERROR,  # D13
    (IN_PROGRESS, Call.DONE_CLEANING): NONE,
    (IN_PROGRESS, Call.DONE_DELETING): NONE,
    (IN_PROGRESS, Call.PAUSE_NON_COMPACTED): SKIPPED,
    (ABORTED, Call.START): SKIPPED,
    (ABORTED, Call.ABORT_AND_PAUSE): ERROR,  # D12
    (ABORTED, Call.RESUME): ERROR,
    (ABORTED, Call.DONE_CLEANING): paused(1),
    (ABORTED, Call.DONE_DELETING): paused(1),
    (ABORTED, Call.PAUSE_NON_COMPACTED): SKIPPED,
    (paused(1), Call.START): SKIPPED,
    (paused(1), Call.ABORT_AND_PAUSE): paused(2),
    (paused(1), Call.RESUME): NONE,
    (paused(1), Call.DONE_CLEANING): ERROR,
    (paused(1), Call.DONE_DELETING): ERROR,
    (paused(1), Call.PAUSE_NON_COMPACTED): SKIPPED,
    (paused(7), Call.START): SKIPPED,
    (paused(7), Call.ABORT_AND_PAUSE): paused(8),
    (paused(7), Call.RESUME): paused(6),
    (paused(7), Call.DONE_CLEANING): ERROR,
    (paused(7), Call.DONE_DELETING): ERROR,
    (paused(7), Call.PAUSE_NON_COMPACTED): SKIPPED,
}


@pytest.mark.parametrize(
    ("state", "call", "expected"),
    [(state, call, expected) for (state, call), expected in TABLE.items()],
    ids=[f"{state}-{call.value}" for state, call in TABLE],
)
def test_2a(state: CleaningState, call: Call, expected: CleaningState | str | None) -> None:
    if expected == ERROR:
        with pytest.raises(IllegalTransition) as raised:
            transition(state, call)
        assert (raised.value.state, raised.value.call) == (state, call)
        assert str(raised.value) == f"partition: {call.value} is not allowed in state {state}"
    else:
        assert expected == transition(state, call)


def test_the_table_above_is_whole() -> None:
    """Each call in each status, with n = 1 and n > 1."""
    assert {(state.status, state.pauses > 1) for state, _ in TABLE} == {
        *((status, False) for status in Status),
        (Status.PAUSED, True),
    }
    assert len(TABLE) == len(Call) * 5
