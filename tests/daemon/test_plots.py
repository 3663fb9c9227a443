"""What the plots of the status page make of events."""

import pytest

from cleanerd.daemon.page import plots
from cleanerd.daemon.page.plots import Span
from tests.harness.daemon.views import HOUR_MS, NOW_MS, event

SPAN = Span(NOW_MS - 24 * HOUR_MS, NOW_MS)


def test_reclaimed_bytes_are_summed_in_columns() -> None:
    others = [{"outcome": "staged"}, {"outcome": "failed"}, {"kind": "commit"}, {"bytes_after": 9000}]
    plot = plots.reclaimed([event(), event(), *(event(**fields) for fields in others)], SPAN)
    assert plot is not None
    assert plot.summary == "12.0 kB in all"
    assert [mark.kind for mark in plot.marks] == ["committed", "staged"]
    assert plot.marks[1].y + plot.marks[1].height == pytest.approx(plot.marks[0].y, abs=0.2)
    assert plots.reclaimed([event(outcome="failed")], SPAN) is None


@pytest.mark.parametrize("seconds", [[0.004], [0.2, 3.0, 900.0], [5e6], [12.5, 12.5]])
def test_longer_cleanings_are_higher(seconds: list[float]) -> None:
    plot = plots.durations([event(seconds=value) for value in seconds], SPAN)
    assert plot is not None
    heights = [mark.y for mark in plot.marks]
    assert heights == sorted(heights, reverse=True)
    assert all(10 <= y <= 138 for y in [*heights, *(y for y, _ in plot.y_ticks)])
