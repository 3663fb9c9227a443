"""What tasks and driver say to each other comes through as it was said."""

import pytest

from cleanerd.spark_runtime.messages import (
    GO_ON,
    MESSAGE_BYTES,
    STOP,
    Message,
    Moved,
    PartMissing,
    PartSize,
    PartStart,
    Phase,
    ReportAnswer,
    pack_answer,
    pack_message,
    unpack_answer,
    unpack_message,
)

_LARGE = (1 << 63) - 1


@pytest.mark.parametrize(
    "message",
    [
        *(Moved(7, phase, _LARGE, 2, 3) for phase in Phase),
        PartSize(1, 2, 3, _LARGE),
        PartMissing(1, 2, 3),
        PartStart(1, 2, 3),
    ],
    ids=str,
)
def test_a_message_keeps_its_kind_and_its_fields(message: Message) -> None:
    """NamedTuples of different kinds may be equal: the kind counts."""
    data = pack_message(message)
    found = unpack_message(data)
    assert (len(data), type(found), found) == (MESSAGE_BYTES, type(message), message)
    if isinstance(found, Moved):
        assert isinstance(found.phase, Phase)


@pytest.mark.parametrize("answer", [GO_ON, STOP, ReportAnswer(1), ReportAnswer(_LARGE)], ids=str)
def test_an_answer_is_to_stop_or_a_number(answer: ReportAnswer) -> None:
    assert unpack_answer(pack_answer(answer)) == answer
    assert GO_ON != STOP
