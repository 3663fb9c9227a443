"""A busy day as a table and as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

NAMES = {"kafka": "Kafka's cleaner", "swap": "cleanerd, swaps"}
COLOURS = {"kafka": "#8c8c8c", "swap": "#d98200"}
SMOOTH_S = 15
MB = 1e6


def table(found: Sequence[dict[str, Any]]) -> str:
    """In Markdown."""
    names = [NAMES[one["mode"]] for one in found]
    rows = [
        ("disk used, mean / most, MB", lambda s: f"{s['disk_mean_bytes'] / MB:.0f} / {s['disk_max_bytes'] / MB:.0f}"),
        ("CPU of the brokers, cores", lambda s: f"{s['brokers_cores']:.2f}"),
        ("CPU of cleanerd, cores", lambda s: f"{s['cleanerd_cores']:.2f}" if s["cleanerd_cores"] else "-"),
        ("memory of a cleanerd at most, MiB", lambda s: str(s["memory_max_bytes"] >> 20 or "-")),
        ("produce p50, ms", lambda s: f"{s['p50_ms']:.1f}"),
        ("produce p99, ms", lambda s: f"{s['p99_ms']:.1f}"),
        ("the same by round, least / median / most, ms", lambda s: " / ".join(f"{p:.0f}" for p in s["p99_of_rounds_ms"])),
        ("produce p99.9, ms", lambda s: f"{s['p999_ms']:.0f}"),
        ("longest, ms", lambda s: f"{s['max_ms']:.0f}"),
        ("errors of clients", lambda s: str(s["errors"] + s["consumer_errors"])),
        ("wrong keys", lambda s: f"{s['wrong_keys']} of {s['keys']}"),
        ("CPU of others on the machine, cores", lambda s: f"{s['others_cores']:.2f}"),
    ]  # fmt: skip
    lines = ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    lines += [
        f"| {name} | " + " | ".join(tell(one["summary"]) for one in found) + " |" for name, tell in rows
    ]
    return "\n".join(lines) + "\n"


def draw(found: Sequence[dict[str, Any]], path: Path) -> None:
    """Disk, CPU and latency over time. Raises ImportError without matplotlib."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    figure, (disk, cpu, latency) = pyplot.subplots(3, 1, figsize=(8, 8), sharex=True, layout="constrained")
    for one in found:
        rows, colour = one["rows"], COLOURS[one["mode"]]
        minutes = [row["seconds"] / 60 for row in rows]
        disk.plot(minutes, [row["disk_bytes"] / MB for row in rows], color=colour, label=NAMES[one["mode"]])
        for name, style in (("brokers", "-"), ("cleanerd", ":")):
            if rows[-1][f"{name}_cpu_s"]:
                cpu.plot(minutes, cores(rows, f"{name}_cpu_s"), style, color=colour)
        latency.plot(minutes, [row["p99_ms"] for row in rows], color=colour)
        latency.plot(minutes, [row["p50_ms"] for row in rows], color=colour, linewidth=0.6)
    disk.set_ylabel("disk used by three brokers, MB")
    cpu.set_ylabel("CPU, cores\nline: brokers, dots: cleanerd")
    latency.set_ylabel("produce, ms, of the last 10 s\nthick: p99, thin: p50")
    latency.set_yscale("log")
    latency.set_xlabel("minutes")
    for axes in (disk, cpu):
        axes.set_ylim(bottom=0)
    for axes in (disk, cpu, latency):
        axes.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=len(found))
    figure.savefig(path, dpi=80, pil_kwargs={"optimize": True})
    pyplot.close(figure)


def cores(rows: Sequence[dict[str, Any]], name: str) -> list[float]:
    """Used by the second, over the seconds before."""
    found = []
    for number, row in enumerate(rows):
        before = rows[max(number - SMOOTH_S, 0)]
        seconds = row["seconds"] - before["seconds"]
        found.append((row[name] - before[name]) / seconds if seconds else 0.0)
    return found
