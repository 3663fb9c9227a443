"""Cleanings of small logs in as many rounds as large ones take."""

import contextlib
from collections.abc import Iterator, Sequence
from unittest import mock

from cleanerd.cleaning import round_size
from cleanerd.cleaning.rounds import LogUnderWay
from cleanerd.pipeline import one_pass


@contextlib.contextmanager
def small_rounds() -> Iterator[list[Sequence[int]]]:
    """Each group is a round; yields the groups of each that follows a first one.

    Clean chunks of groups that are known to change are read once, however small they are.
    """
    begun: list[Sequence[int]] = []
    next_round = LogUnderWay.next_round

    def counting(log: LogUnderWay) -> LogUnderWay:
        assert log.indexed is not None
        begun.append(sorted(log.indexed.later_groups))
        return next_round(log)

    with contextlib.ExitStack() as stack:
        for name in ("_BYTES_PER_CORE", "_BYTES_PER_KEY_BYTE"):
            stack.enter_context(mock.patch.object(round_size, name, 0))
        stack.enter_context(mock.patch.object(one_pass, "_WORTH_A_LOOK_BYTES", 0))
        stack.enter_context(mock.patch.object(LogUnderWay, "next_round", counting))
        yield begun
