"""The comparison as a picture: a bar for each side of each workload."""

from collections.abc import Sequence
from pathlib import Path

from tests.bench.figures import FLOOR, OURS, Row


def draw(rows: Sequence[Row], paths: Sequence[Path]) -> None:
    """Write the picture, in the format of each path's suffix (.png, .svg). Raises ImportError without matplotlib."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams.update({"svg.hashsalt": "cleanerd", "svg.fonttype": "none"})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.7 * len(rows)), layout="constrained")
    rival = next((row.rival for row in rows if row.rival), None)
    sides = [side for side in (rival, OURS, FLOOR) if side]
    colours = dict(zip(sides, ["#8c8c8c", "#1f77b4", "#d9d9d9"][-len(sides) :], strict=True))
    height = 0.8 / len(sides)
    for j, side in enumerate(sides):
        there = [(i, row.median(side)) for i, row in enumerate(rows) if side in row.sides]
        places = [i + (j - (len(sides) - 1) / 2) * height for i, _ in there]
        bars = axes.barh(places, [s for _, s in there], height, label=side, color=colours[side])
        axes.bar_label(bars, [_label(rows[i], side, rival) for i, _ in there], padding=3, fontsize=8)
    axes.set_yticks(range(len(rows)), [f"{row.name}\n{row.title}" for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.margins(x=0.2)
    axes.set_xlabel("seconds, median of the rounds, logarithmic")
    figure.legend(loc="outside lower center", ncols=len(sides))
    for path in paths:
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=120, metadata=metadata)
    pyplot.close(figure)


def _label(row: Row, side: str, rival: str | None) -> str:
    seconds = f"{row.median(side):.2f} s"
    if side == OURS and rival in row.sides:
        return f"{seconds}, {row.ratio(rival):.1f} times as fast"
    return seconds
