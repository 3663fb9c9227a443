"""`python -m tests.bench`: Kafka's own cleaner, cleanerd and the floor, in turns on the same bytes.

Prints tables; writes `bench.json` and `bench.png` to the directory of `--output`. The first round of each side
warms it up and does not count. What Kafka and cleanerd leave is compared after every round.
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import psutil

from cleanerd.env.files import FileStat
from cleanerd.kernels.digest import digest_records
from cleanerd.pipeline.chunks import read_pieces, slices
from cleanerd.pipeline.values import Source
from tests.bench import report
from tests.bench.figures import FLOOR, OURS, Row
from tests.bench.kafka_side import Kafka
from tests.bench.processes import ProcessTree, busy_seconds
from tests.bench.sides import ROOT, WARM_UP, Cleanerd, Floor, Round, Side, archived, why_not_driven
from tests.bench.workloads import Built, Workload, build, chosen
from tests.harness.broker.releases import current_release

_QUICK_SCALE, _QUICK_ROUNDS = Fraction(1, 16), 2
_DEDUPE_BYTES = 128 << 20
_DEDUPE_BYTES_MIN = 8 << 20
_PAGE = ROOT / "etc" / "reference" / "performance.md"


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line. Exits with 2 for one that makes no sense."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description="Kafka's own cleaner and cleanerd, in turns on the same bytes.",
    )
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cleanerd-bench"
    add = parser.add_argument
    add("--workload", default="", metavar="W1,W3", help="only these (default: all)")
    add("--rounds", type=int, help="rounds that count (default: 3)")
    add("--quick", action="store_true", help="a sixteenth of every workload, in less than three minutes")
    add("--scale", type=Fraction, metavar="1/4", help="so much of every workload (default: all of it)")
    rival = parser.add_mutually_exclusive_group()
    rival.add_argument("--against", metavar="COMMIT", help="cleanerd as of this commit in the place of Kafka")
    rival.add_argument("--alone", action="store_true", help="cleanerd beside the floor only")
    add(
        "--cluster",
        type=int,
        default=0,
        metavar="N",
        help="in Kafka's place cleanerd, of that commit if one is named, "
        "on a standalone Spark with N workers of one core",
    )
    add("--cores", type=int, help="cores that everything runs on (default: all)")
    add("--seed", type=int, default=1)
    add(
        "--cache",
        type=Path,
        default=cache,
        metavar="DIR",
        help="workloads are kept here (default: %(default)s)",
    )
    add("--output", type=Path, default=Path.cwd(), metavar="DIR", help="for bench.json and bench.png")
    add("--reference", action="store_true", help="also write the tables and the picture to etc/reference")
    given = parser.parse_args(argv)
    try:
        given.workloads = chosen([name for name in given.workload.split(",") if name])
    except ValueError as error:
        parser.error(str(error))
    if given.quick:
        given.workloads = [one for one in given.workloads if one.name == one.data_name or given.workload]
    given.rounds = given.rounds or (_QUICK_ROUNDS if given.quick else 3)
    usual = _QUICK_SCALE if given.quick else 1
    given.scale = float(usual if given.scale is None else given.scale)
    if not 0 < given.scale <= 1:
        parser.error("--scale is above 0 and at most 1")
    return given


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(argv)
    if given.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.cores])
    if given.against:
        _check_drivable(given.against, given.cache)
    rows: list[Row] = []
    machine = describe(given)
    for workload in given.workloads:
        rows.append(_measure(workload, given))
        machine |= {"load average at the end": _load()}
        _write(rows, machine, given)
    print(report.whole(rows, machine))


def _check_drivable(commit: str, cache: Path) -> None:
    """Exits with 2 and the reason for a commit that there is not, or whose cleanerd this benchmark cannot drive."""
    try:
        reason = why_not_driven(archived(commit, cache))
    except subprocess.CalledProcessError as error:
        reason = str(error.stderr).strip()
    if reason is not None:
        print(f"--against {commit}: this benchmark cannot drive it: {reason}", file=sys.stderr)
        raise SystemExit(2)


def _load() -> str:
    return "{:.1f} {:.1f} {:.1f}".format(*os.getloadavg())


def _write(rows: Sequence[Row], machine: dict[str, str], given: argparse.Namespace) -> None:
    """After every workload: a run that is broken off leaves what it has."""
    given.output.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine, "rows": [row.document() for row in rows]}
    (given.output / "bench.json").write_text(json.dumps(document, indent=1) + "\n")
    pictures = [given.output / "bench.png", *([_PAGE.with_suffix(".svg")] if given.reference else [])]
    try:
        report.draw(rows, pictures)
    except ImportError:
        print("no picture without matplotlib: pip install '.[bench]'", file=sys.stderr)
    if given.reference:
        _PAGE.write_text(report.put_in(_PAGE.read_text(), report.summary(rows, machine)))


def _measure(workload: Workload, given: argparse.Namespace) -> Row:
    built = build(workload.scaled(given.scale), given.seed, given.cache)
    work = given.cache / f"work-{os.getpid()}"
    dedupe_bytes = max(int(_DEDUPE_BYTES * given.scale), _DEDUPE_BYTES_MIN)
    try:
        with contextlib.ExitStack() as stack:
            enter = stack.enter_context
            sides: list[Side] = []
            if given.against or given.cluster:
                tree = archived(given.against, given.cache) if given.against else ROOT
                name = tree.name[:7] if given.against else "cluster"
                sides.append(enter(Cleanerd(name, tree, built, work, dedupe_bytes, given.cluster)))
            elif not given.alone and not workload.is_command:
                sides.append(enter(Kafka(built, work, given.cache, given.rounds, dedupe_bytes)))
            ours = enter(Cleanerd(OURS, ROOT, built, work, dedupe_bytes))
            floor = enter(Floor(built, work))
            rounds = measured_rounds([*sides, ours], floor, built, given.rounds)
            several = [*(side for side in sides if isinstance(side, Cleanerd)), ours]
            extra = {side.name: _extra(side, given.rounds) for side in several}
            memory = {name: one.peak_bytes for name, one in extra.items()}
            return Row.of(built, rounds, cpu_phases=extra[OURS].phases, exact_memory_bytes=memory)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def measured_rounds(
    cleaners: Sequence[Side], floor: Floor, built: Built, count: int
) -> dict[str, list[Round]]:
    """Sides in turns; every other round in the opposite order. Raises RuntimeError when two do not leave the same."""
    memory_bytes = 2 * built.bytes
    for side in cleaners:
        side.prepare(WARM_UP)
        _warm_memory(memory_bytes)
        side.run(WARM_UP)
        side.drop(WARM_UP)
    rounds: dict[str, list[Round]] = defaultdict(list)
    for number in range(count):
        left: dict[str, Contents] = {}
        for side in cleaners if number % 2 == 0 else cleaners[::-1]:
            rounds[side.name].append(_timed(side, number, memory_bytes))
            left[side.name] = contents(side.cleaned(number))
            if side.name == OURS:
                floor.measure(side.cleaned(number))
            side.drop(number)
        rounds[FLOOR].append(_timed(floor, number, memory_bytes))
        floor.drop(number)
        if len(set(left.values())) > 1 or left[OURS].records != built.survivors:
            raise RuntimeError(
                f"{built.workload.name}: {built.survivors} records should be left, found {left}"
            )
        took = ", ".join(f"{name} {of[-1].seconds:.2f} s" for name, of in rounds.items())
        print(f"{built.workload.name} round {number + 1}: {took}", file=sys.stderr, flush=True)
    return {name: rounds[name] for name in [*(side.name for side in cleaners), FLOOR]}


def _timed(side: Side, number: int, memory_bytes: int) -> Round:
    side.prepare(number)
    _warm_memory(memory_bytes)
    tree = ProcessTree(os.getpid())
    began = busy_seconds() - tree.cpu_seconds()
    done = side.run(number)
    others = busy_seconds() - tree.cpu_seconds() - began
    return replace(done, others_cpu_s=max(others, 0.0) / done.seconds)


def _extra(side: Cleanerd, number: int) -> Round:
    """A round for what costs time to measure."""
    side.prepare(number)
    done = side.run(number, is_extra=True)
    side.drop(number)
    return done


def _warm_memory(size_bytes: int) -> None:
    """Touch free memory: where a page costs a virtual machine tens of microseconds at its first use, no side pays for that.

    Right before a round, because what is free for a few seconds may go back to the hypervisor.
    """
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    np.ones(min(size_bytes, free // 2), np.uint8)


def describe(given: argparse.Namespace) -> dict[str, str]:
    memory = psutil.virtual_memory()
    about = {
        "processor": f"{len(os.sched_getaffinity(0))} cores of {_processor()}",
        "memory": f"{memory.total / 2**30:.0f} GiB, {memory.available / 2**30:.0f} GiB available at the beginning",
        "system": f"Linux {platform.release().split('-')[0]}, Python {platform.python_version()}, {_java()}",
        "file system": _file_system(given.cache),
        "pages": "input in the page cache, of cold workloads on the disk; twice as much memory was touched before a round",
        "cleanerd": _git("rev-parse", "--short", "HEAD")
        + (" with changes" if _git("status", "--porcelain") else ""),
        "rounds": f"{given.rounds}, after a warm-up; seed {given.seed}; scale {Fraction(given.scale)}",
        "load average at the beginning": _load(),
    }
    rival = (
        "none"
        if given.alone
        else given.against or f"Kafka {current_release().version}, one cleaner thread, G1, 1 GiB heap"
    )
    return {**about, "beside": rival}


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine()
    )


def _java() -> str:
    said = subprocess.run(["java", "-version"], check=False, capture_output=True, text=True).stderr
    return said.splitlines()[0] if said else "no Java on the path"


def _file_system(path: Path) -> str:
    path.mkdir(parents=True, exist_ok=True)
    found = max(
        (part for part in psutil.disk_partitions(all=True) if path.resolve().is_relative_to(part.mountpoint)),
        key=lambda part: len(part.mountpoint),
    )
    return found.fstype


def _git(*command: str) -> str:
    done = subprocess.run(["git", *command], cwd=ROOT, check=False, capture_output=True, text=True)
    return done.stdout.strip()


@dataclass(frozen=True)
class Contents:
    """Records of some logs; `digest` is over offset, timestamp, key and value of each, in order."""

    records: int
    digest: int


def contents(directories: Iterable[Path]) -> Contents:
    """Of all live segments. CRCs are checked. Raises CorruptFile."""
    records = digest = 0
    for path in (path for directory in directories for path in sorted(directory.glob("*.log"))):
        stat = path.stat()
        source = Source(str(path), FileStat.of(stat), 0, stat.st_size, int(path.stem))
        for piece in read_pieces(source):
            for part in slices(piece):
                kept = np.zeros(len(part.records), np.uint8)
                digest = digest_records(digest, piece.raw, part.expanded, piece.batches, part.records, kept)
                records += len(part.records)
    return Contents(records, digest)


if __name__ == "__main__":
    main()
