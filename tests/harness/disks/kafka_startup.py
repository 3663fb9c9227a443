"""What a starting broker makes of a partition directory: spec disk D2, passes 1 to 4 and the opening (B8).

Written from the spec alone and shares nothing with cleanerd, not even file names: it judges cleanerd.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from cleanerd.env.files import Files

INDEXES = (".index", ".timeindex", ".txnindex")


@dataclass
class Startup:
    """What should make an operator frown."""

    zero_indexes: list[str] = field(default_factory=list)  # D4 hazards: created full of zeros, kept for ever
    rebuilt: list[str] = field(default_factory=list)  # `.log` whose `.index` was missing


def start(files: Files, directory: str, next_offset: Callable[[bytes, int], int]) -> Startup:
    """Load one partition as LogLoader does. `next_offset(content, base)` reads a `.log`."""
    report = Startup()
    swaps = _first_pass(files, directory)
    low, high = _range(files, directory, swaps, next_offset, report)
    for name in files.list_names(directory):
        prefix = name.partition(".")[0]
        if not name.endswith(".swap") and prefix.isdigit() and low <= int(prefix) < high:
            files.unlink(os.path.join(directory, name))
    for name in files.list_names(directory):
        if name.endswith(".swap"):
            files.rename(os.path.join(directory, name), os.path.join(directory, name.removesuffix(".swap")))
    _open(files, directory, report)
    return report


def _first_pass(files: Files, directory: str) -> list[str]:
    """Pass 1: throws temporary files away, returns the names of the valid swap files."""
    listed = files.list_names(directory)
    for name in listed:
        if name.endswith(".deleted") and not name.endswith(".checkpoint.deleted"):
            files.unlink(os.path.join(directory, name))
    cleaned = [name for name in listed if name.endswith(".cleaned")]
    swaps = [name for name in listed if name.endswith(".swap")]
    lowest = min((_offset(name) for name in cleaned), default=2**63)
    for name in swaps:
        if _offset(name) >= lowest:
            files.unlink(os.path.join(directory, name))
    for name in cleaned:
        files.unlink(os.path.join(directory, name))
    return [name for name in swaps if _offset(name) < lowest]


def _range(
    files: Files, directory: str, swaps: list[str], next_offset: Callable[[bytes, int], int], report: Startup
) -> tuple[int, int]:
    """Pass 2: one range for the whole partition. Looking into a swap log opens its index, and makes one if need be."""
    low, high = 2**63, -(2**63)
    for name in swaps:
        if not name.endswith(".log.swap"):
            continue
        index = os.path.join(directory, name.replace(".log.swap", ".index.swap"))
        if not files.exists(index):
            files.write(index, b"\0" * 80)
            report.zero_indexes.append(index)
        low = min(low, _offset(name))
        high = max(high, next_offset(files.read(os.path.join(directory, name)), _offset(name)))
    return low, high


def _open(files: Files, directory: str, report: Startup) -> None:
    """Pass 4: indexes without a log go, logs without an index get one."""
    listed = files.list_names(directory)
    for name in listed:
        stem, kind = os.path.splitext(name)
        path = os.path.join(directory, name)
        if kind in INDEXES and f"{stem}.log" not in listed:
            files.unlink(path)
        elif kind == ".log":
            if f"{stem}.index" not in listed:
                report.rebuilt.append(path)
            if f"{stem}.timeindex" not in listed:
                files.write(os.path.join(directory, f"{stem}.timeindex"), b"")


def _offset(name: str) -> int:
    return int(name.partition(".")[0])
