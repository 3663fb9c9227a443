"""A run as text, Markdown tables that read well in a terminal too, and as a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench.figures import FLOOR, OURS, Row

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
"""What `--reference` writes stands between these lines of the page."""


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first two are figures, to the right."""
    widths = [max(len(row[i]) for row in (head, *lines)) for i in range(len(head))]

    def render(row: Sequence[str]) -> str:
        cells = [
            cell.ljust(w) if i < 2 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        return f"| {' | '.join(cells)} |"

    rule = ["-" * w if i < 2 else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    return "\n".join([render(head), render(rule), *map(render, lines)])


def comparison(rows: Sequence[Row]) -> str:
    """Seconds beside each other: medians, the ratio, and its range over the rounds."""
    rival = next((row.rival for row in rows if row.rival), None)
    head = [
        "",
        "workload",
        rival or "-",
        OURS,
        FLOOR,
        "ratio",
        "rounds",
        f"{OURS}/{FLOOR}",
        "MB/s",
        "M records/s",
    ]
    lines = []
    for row in rows:
        ours, floor = row.median(OURS), row.median(FLOOR)
        theirs, ratio, spread = "-", "-", "-"
        if row.rival:
            low, high = row.ratio_range(row.rival)
            theirs, ratio = f"{row.median(row.rival):.2f} s", f"{row.ratio(row.rival):.2f}"
            spread = f"{low:.2f}-{high:.2f}"
        rates = [f"{row.bytes / 1e6 / ours:.0f}", f"{row.records / 1e6 / ours:.2f}"]
        lines.append(
            [
                row.name,
                row.title,
                theirs,
                f"{ours:.2f} s",
                f"{floor:.2f} s",
                ratio,
                spread,
                f"{ours / floor:.1f}",
                *rates,
            ]
        )
    return table(head, lines)


def costs(rows: Sequence[Row]) -> str:
    """CPU seconds per GiB of log, and peak memory of all processes."""
    rival = next((row.rival for row in rows if row.rival), None)
    sides = [side for side in (rival, OURS) if side]
    head = [
        "",
        "workload",
        *(f"{s} CPU s" for s in sides),
        *(f"{s} CPU s/GiB" for s in sides),
        *(f"{s} MiB" for s in sides),
    ]
    lines = []
    for row in rows:
        there = [side if side in row.sides else None for side in sides]
        cpu = [None if side is None else row.median(side, lambda one: one.cpu_s) for side in there]
        memory = [None if side is None else row.peak_bytes(side) for side in there]
        lines.append([
            row.name, row.title,
            *(_number(one, ".1f") for one in cpu),
            *(_number(None if one is None else one / (row.bytes / 2**30), ".1f") for one in cpu),
            *(_number(None if one is None else one / 2**20, ".0f") for one in memory),
        ])  # fmt: skip
    return table(head, lines)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def phases(rows: Sequence[Row]) -> str:
    """Of each phase of cleanerd: seconds / CPU seconds of all processes."""
    told = [row for row in rows if row.phase_medians()]
    names = list(dict.fromkeys(name for row in told for name in row.phase_medians() if name != "other"))
    lines = []
    for row in told:
        wall = row.phase_medians()
        cells = [_pair(wall.get(name), row.cpu_phases.get(name)) for name in names]
        lines.append([row.name, row.title, *cells, f"{wall['other']:.2f}"])
    return table(["", "workload", *names, "other"], lines)


def _pair(wall: float | None, cpu: float | None) -> str:
    return "-" if wall is None else f"{wall:.2f} / {_number(cpu, '.2f')}"


def summary(rows: Sequence[Row], machine: Mapping[str, str]) -> str:
    """What the page of figures has."""
    about = "\n".join(f"- {name}: {value}" for name, value in machine.items())
    loud = ", ".join(f"{row.name} {row.others_cpu:.1f}" for row in rows)
    parts = [
        "CPU seconds and peak memory of all processes (cleanerd: pages that several share counted once):",
        costs(rows),
        "Time:",
        comparison(rows),
        f"Cores that other processes of the machine kept busy meanwhile, on average: {loud}.",
        f"The machine and the run:\n\n{about}",
    ]
    return "\n\n".join(parts)


def whole(rows: Sequence[Row], machine: Mapping[str, str]) -> str:
    """`summary`, and where the time went."""
    parts = [
        summary(rows, machine),
        "Phases of cleanerd, seconds / CPU seconds of all processes (several logs: sum over jobs and logs, which overlap):",
        phases(rows),
    ]
    return "\n\n".join(parts)


def put_in(page: str, text: str) -> str:
    """The page with `text` as what was measured. Raises ValueError for a page without a place for it."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


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
