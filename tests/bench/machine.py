"""On what a run was made."""

import argparse
import os
import platform
import subprocess
from fractions import Fraction
from pathlib import Path

import psutil

from tests.bench.sides import ROOT
from tests.broker.releases import current_release


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
        "load average at the beginning": "{:.1f} {:.1f} {:.1f}".format(*os.getloadavg()),
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
