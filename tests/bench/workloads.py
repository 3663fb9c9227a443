"""The workloads W1 to W9, and their logs on disk: made from a seed once, then kept.

A variant has the bytes of the workload before the hyphen. `W1-noindex` has no `.index` files, as on a restored volume; a
broker rebuilds them when it starts. `W1-cold` is read from the disk. `W5-memory` and `W6-threads` give more to Kafka,
`W9-buffer` less.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from pathlib import Path

import numpy as np

from cleanerd.format.codecs import Codec
from tests.harness.logs.synthetic import Shape, write_log

VERSION = 1
"""Of the bytes that a seed makes: raised with every change of them, or old ones would be found in a cache."""
_META = "workload.json"
_NO_INDEX, _COLD = "-noindex", "-cold"


@dataclass(frozen=True)
class Workload:
    """`logs` equal logs of `records` records each, the first `shape.distinct_records` of which are cleaned already.

    `is_command`: what is measured is one run of the command, from its start to its end. `kafka`: settings of the broker
    that is measured beside it.
    """

    name: str
    title: str
    records: int
    shape: Shape
    logs: int = 1
    is_command: bool = False
    kafka: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_index(self) -> bool:
        return not self.name.endswith(_NO_INDEX)

    @property
    def is_cold(self) -> bool:
        """Whether a round finds the log on the disk, not in the page cache."""
        return self.name.endswith(_COLD)

    @property
    def data_name(self) -> str:
        """Name of the workload with the same bytes that is no variant."""
        return self.name.partition("-")[0]

    def variant(self, suffix: str, title: str, kafka: Mapping[str, str] | None = None) -> "Workload":
        return replace(self, name=self.name + suffix, title=f"{self.title}, {title}", kafka=kafka or {})

    def scaled(self, scale: float) -> "Workload":
        """The same with fewer records and keys; of many logs, fewer logs; that of a command stays what it is."""
        if self.is_command or scale == 1:
            return self
        title = f"{Fraction(scale).limit_denominator(9999)} of: {self.title}"
        if self.logs > 1:
            return replace(self, title=title, logs=max(int(self.logs * scale), 1))
        shape = replace(
            self.shape,
            keys=int(self.shape.keys * scale),
            distinct_records=self._whole_batches(self.shape.distinct_records * scale),
            segment_bytes=max(int(self.shape.segment_bytes * scale), 1 << 20),
        )
        return replace(self, title=title, records=self._whole_batches(self.records * scale), shape=shape)

    def _whole_batches(self, records: float) -> int:
        return int(records) // self.shape.records_per_batch * self.shape.records_per_batch


def _small(keys: int, *, codec: Codec = Codec.NONE, random_bytes: int = 0, distinct: int = 0) -> Shape:
    """128 records of 16 byte keys and 100 byte values in a batch."""
    return Shape(keys=keys, key_bytes=16, codec=codec, random_bytes=random_bytes, distinct_records=distinct)


_CLEAN = 8_400_000 // 128 * 128

_ALL = (
    Workload("W1", "1 GiB, 8.5 M records of 100 B, 2 M keys", 8_480_000, _small(2_000_000)),
    Workload(
        "W2",
        "1 GiB, 1.04 M records of 1 kB, 16 in a batch, 500 k keys",
        1_040_000,
        Shape(keys=500_000, key_bytes=16, value_bytes=1000, records_per_batch=16),
    ),
    Workload(
        "W3", "lz4, 8.05 M records of 100 B", 8_050_000, _small(2_000_000, codec=Codec.LZ4, random_bytes=30)
    ),
    Workload(
        "W4", "zstd, 10.5 M records of 100 B", 10_500_000, _small(2_000_000, codec=Codec.ZSTD, random_bytes=24)
    ),
    Workload("W5", "2.4 GiB, 20.5 M records, 16 M keys", 20_500_000, _small(16_000_000)),
    Workload("W6", "300 logs of 4 MiB", 33_000, _small(8_000), logs=300),
    Workload(
        "W7",
        "1 GiB cleaned before and 115 MB dirty",
        _CLEAN + 920_000,
        _small(40_000_000, distinct=_CLEAN),
    ),
    Workload(
        "W8", "cold start of the command, one log of 2 MB", 16_000, _small(4_000), is_command=True
    ),
    Workload(
        "W9", "1,000 logs of 16 kB", 128, Shape(keys=32, key_bytes=16, records_per_batch=16), logs=1000
    ),
)  # fmt: skip

_MORE_MEMORY = {"log.cleaner.dedupe.buffer.size": str(512 << 20)}
"""Beside which a broker of 1 GiB of heap takes as much memory as cleanerd."""
_LESS_MEMORY = {"log.cleaner.dedupe.buffer.size": str(8 << 20)}
"""Kafka clears the whole buffer before each cleaning."""
_VARIANTS: Mapping[str, Sequence[tuple[str, str, Mapping[str, str]]]] = {
    "W1": ((_NO_INDEX, "no .index", {}), (_COLD, "read from the disk", {})),
    "W2": ((_COLD, "read from the disk", {}),),
    "W3": ((_NO_INDEX, "no .index", {}),),
    "W4": ((_NO_INDEX, "no .index", {}),),
    "W5": (("-memory", "Kafka with a dedupe buffer of 512 MiB", _MORE_MEMORY),),
    "W6": (("-threads", "Kafka with two cleaner threads", {"log.cleaner.threads": "2"}),),
    "W7": ((_COLD, "read from the disk", {}),),
    "W9": (("-buffer", "Kafka with a dedupe buffer of 8 MiB", _LESS_MEMORY),),
}
WORKLOADS = {
    workload.name: workload
    for one in _ALL
    for workload in (one, *(one.variant(*how) for how in _VARIANTS.get(one.name, ())))
}


@dataclass(frozen=True)
class BuiltLog:
    """What is known of a log. `survivors`: records that a cleaning keeps; `clean_end`: the checkpoint, 0 none."""

    records: int
    survivors: int
    clean_end: int
    end: int
    bytes: int


@dataclass(frozen=True)
class Built:
    """A workload on disk: log i lies in `directory/i`."""

    workload: Workload
    directory: Path
    logs: tuple[BuiltLog, ...]

    @property
    def bytes(self) -> int:
        return sum(log.bytes for log in self.logs)

    @property
    def records(self) -> int:
        return sum(log.records for log in self.logs)

    @property
    def survivors(self) -> int:
        return sum(log.survivors for log in self.logs)

    def log_files(self) -> list[Path]:
        """The `.log` files that are not empty, in order."""
        found = [
            path for i in range(len(self.logs)) for path in sorted((self.directory / str(i)).glob("*.log"))
        ]
        return [path for path in found if path.stat().st_size]

    def copy(self, log: int, target: Path) -> None:
        """A fresh copy of a log, its blocks shared with the original where the file system can, and synced."""
        target.mkdir(parents=True)
        for path in sorted((self.directory / str(log)).iterdir()):
            if path.suffix == ".index" and not self.workload.has_index and path.stat().st_size:
                continue
            copy_file(path, target / path.name)


def copy_file(source: Path, target: Path) -> None:
    """Content and times; on the disk when this returns, so that no later sync has to wait for it."""
    with source.open("rb") as reader, target.open("wb") as writer:
        left = os.fstat(reader.fileno()).st_size
        while left:
            left -= os.copy_file_range(reader.fileno(), writer.fileno(), left)
        os.fsync(writer.fileno())
    shutil.copystat(source, target)


def build(workload: Workload, seed: int, cache: Path) -> Built:
    """The workload, made unless a run before this one has made it. The same seed makes the same bytes."""
    content = asdict(replace(workload, name=workload.data_name, title="", kafka={}))
    directory = cache / f"v{VERSION}-seed{seed}" / f"{workload.data_name}-{workload.logs}x{workload.records}"
    expected = json.loads(json.dumps(content))
    if directory.exists():
        meta = json.loads((directory / _META).read_text())
        if meta["workload"] == expected:
            return Built(workload, directory, tuple(BuiltLog(**log) for log in meta["logs"]))
        shutil.rmtree(directory)
    unfinished = directory.with_name(f"{directory.name}.{os.getpid()}")
    shutil.rmtree(unfinished, ignore_errors=True)
    logs = [_build_log(workload, seed + i, unfinished / str(i)) for i in range(workload.logs)]
    meta = {"workload": expected, "logs": [asdict(log) for log in logs]}
    (unfinished / _META).write_text(json.dumps(meta))
    unfinished.rename(directory)
    return Built(workload, directory, tuple(logs))


def _build_log(workload: Workload, seed: int, directory: Path) -> BuiltLog:
    keys = write_log(directory, workload.records, workload.shape, seed)
    size = sum(path.stat().st_size for path in directory.glob("*.log"))
    is_met = np.zeros(workload.shape.keys, np.bool_)
    is_met[keys] = True
    survivors = int(np.count_nonzero(is_met))
    return BuiltLog(len(keys), survivors, workload.shape.distinct_records, len(keys), size)


def chosen(names: Sequence[str]) -> list[Workload]:
    """The workloads of these names, all for none. Raises ValueError for a name that there is not."""
    unknown = sorted(set(names) - WORKLOADS.keys())
    if unknown:
        raise ValueError(f"no workload {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    return [workload for name, workload in WORKLOADS.items() if name in names or not names]
