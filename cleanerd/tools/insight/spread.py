"""The same key on several partitions of a topic, as after partitions were added.

Compaction cannot help: it looks at each partition alone, so the old value stays for ever, and a consumer of the whole
topic may take it for the newer one. A producer has to write the repair: `SpreadKey.steps` is what. Keys of which a
partition has only a tombstone left do not count.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cleanerd.kernels.tables import Table

from .inspect import KEYS_MAX, Estimate, committed_or_not, count_estimate, new_key, tally_log
from .records import LogRange, read_columns

_PLAN_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Copy:
    """The newest record of a key in a partition."""

    partition: int
    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class SpreadKey:
    """A key with its copies, the newest by timestamp first. `home`: where it belongs."""

    key: bytes
    home: int
    copies: tuple[Copy, ...]

    def steps(self) -> Iterator[dict[str, object]]:
        """What to write, in this order: the newest value where it belongs, then tombstones over all others."""
        newest = self.copies[0]
        if newest.partition != self.home:
            yield {"write": "copy", "partition": self.home, "of": newest.partition, "offset": newest.offset}
        for copy in self.copies:
            if copy.partition != self.home:
                yield {"write": "tombstone", "partition": copy.partition}


@dataclass(frozen=True, slots=True)
class Spread:
    """What was found. `bytes`: of the copies that are not the newest; `listed`: up to 100,000 of the keys."""

    keys: Estimate
    bytes: int
    listed: tuple[SpreadKey, ...]


def find_spread(directories: Mapping[int, str], *, keys_max: int = KEYS_MAX) -> Spread:
    """Look at the partitions of a topic, by number. With more keys than `keys_max` in one, at a sample of keys.

    Where all partitions from 0 on are given, a key belongs where Kafka's default partitioner puts it if it is there at
    all, else where it is newest. Raises as `inspect.inspect_partition`.
    """
    hash_key, views, tables, level = new_key(), {}, [], 0
    for partition, directory in sorted(directories.items()):
        views[partition] = committed_or_not(directory)
        tally = tally_log(views[partition], keys_max, hash_key)
        rows, level = tally.newest(), max(level, tally.level)
        tables.append((partition, rows[rows["is_tombstone"] == 0]))
    partitions = np.concatenate([np.full(len(rows), partition) for partition, rows in tables])
    rows = np.concatenate([rows for _, rows in tables])
    kept = rows["high"] & np.uint64((1 << level) - 1) == 0
    rows, partitions, groups = _repeated(rows[kept], partitions[kept])
    keys = int(groups[-1]) + 1 if len(groups) else 0
    newest = np.zeros(len(rows), np.bool_)
    order = np.lexsort((partitions, rows["timestamp"], groups))
    newest[order] = np.append(np.diff(groups[order]) > 0, True)[: len(rows)]
    listed = groups < _PLAN_MAX
    found = _copies(views, rows[listed], partitions[listed], groups[listed])
    total = len(views) if list(views) == list(range(len(views))) else 0
    return Spread(
        keys=count_estimate(keys, level),
        bytes=int(rows["bytes"][~newest].sum()) << level,
        listed=tuple(SpreadKey(key, _home(key, copies, total), tuple(copies)) for key, copies in found),
    )


def _repeated(
    rows: Table, partitions: npt.NDArray[np.int64]
) -> tuple[Table, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The rows whose fingerprint occurs more than once, those alike together, and a number for each fingerprint."""
    order = np.lexsort((rows["low"], rows["high"]))
    rows, partitions = rows[order], partitions[order]
    same = (rows["low"][1:] == rows["low"][:-1]) & (rows["high"][1:] == rows["high"][:-1])
    repeated = np.append(same, False) | np.insert(same, 0, False) if len(rows) else np.zeros(0, np.bool_)
    starts = np.insert(~same, 0, True)[repeated] if len(rows) else repeated
    return rows[repeated], partitions[repeated], np.cumsum(starts) - 1


def _copies(
    views: Mapping[int, LogRange],
    rows: Table,
    partitions: npt.NDArray[np.int64],
    groups: npt.NDArray[np.int64],
) -> list[tuple[bytes, list[Copy]]]:
    """Key and copies of each group; only the records in question are taken out of the logs."""
    keys: dict[int, bytes] = {}
    copies: dict[int, list[Copy]] = {}
    for partition, view in views.items():
        mine = partitions == partition
        group_of = dict(zip(rows["offset"][mine].tolist(), groups[mine].tolist(), strict=True))
        for columns in read_columns(view, columns={"key"}, only=np.sort(rows["offset"][mine])):
            assert columns.keys is not None
            for row, (offset, time_ms) in enumerate(
                zip(columns.offsets.tolist(), columns.timestamps_ms.tolist(), strict=True)
            ):
                group = group_of[offset]
                keys[group] = columns.keys.item(row) or b""
                copies.setdefault(group, []).append(Copy(partition, offset, time_ms))
    return [
        (keys[group], sorted(found, key=lambda copy: (-copy.timestamp_ms, -copy.partition)))
        for group, found in sorted(copies.items())
        if len(found) > 1
    ]


def _home(key: bytes, copies: list[Copy], partitions: int) -> int:
    if partitions:
        default = default_partition(key, partitions)
        if any(copy.partition == default for copy in copies):
            return default
    return copies[0].partition


def default_partition(key: bytes, partitions: int) -> int:
    """Where Kafka's default partitioner puts a key."""
    from kafka.partitioner.default import murmur2  # noqa: PLC0415 - brings the whole client along

    return int(murmur2(key) & 0x7FFFFFFF) % partitions
