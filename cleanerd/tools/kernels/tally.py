"""What is in a log, counted record by record in tables of fixed size: keys, what they waste, the hottest, days, the largest.

==========  =======================================================================================================
table       what it holds
==========  =======================================================================================================
keys        of each key its newest record. When full it becomes a sample: only keys whose fingerprint ends in `level`
            zero bits stay, and what is seen of them counts 2^level times (an unbiased estimate, of any key set)
hot,        the keys, and the beginnings of keys, with the most bytes. When full, the median is taken off every row, and
prefixes    those that have nothing left go (frequent items): a row is too small by what was taken off at most
days        by day of the timestamp: what was written, and what was superseded by it
largest     the largest records
==========  =======================================================================================================

Bytes of a record are its share of its batch as stored: header, attributes and compression are spread over the records by
their size, and the shares of a batch add up to the batch.
"""

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from cleanerd.errors import BadUsage
from cleanerd.format.head import CONTROL
from cleanerd.kernels.fingerprint import competes, siphash128
from cleanerd.kernels.horizons import delete_horizon
from cleanerd.kernels.native import INLINE, JIT, njit
from cleanerd.kernels.tables import Bytes, Table
from cleanerd.policy.winner import SET_LOAD

KEY = np.dtype(
    [
        ("low", "u8"),  # fingerprint; both words 0: an empty slot
        ("high", "u8"),
        ("offset", "i8"),  # of the newest record
        ("timestamp", "i8"),  # ms, of the newest record
        ("bytes", "i4"),  # of the newest record
        ("records", "i4"),
        ("day", "i4"),  # of the newest record
        ("is_tombstone", "i2"),  # the newest record
        ("is_expired", "i2"),  # it is a tombstone, and its delete horizon has passed
    ]
)
TOP = np.dtype(
    [
        ("low", "u8"),
        ("high", "u8"),
        ("bytes", "i8"),  # of all its records, less what was taken off
        ("records", "i8"),  # since the row is there
        ("newest_bytes", "i8"),  # hot: of its newest record
        ("wasted_bytes", "i8"),  # prefixes: superseded
        ("name_length", "i8"),  # of the key; the first bytes of it are kept
    ]
)
DAY = np.dtype(
    [
        ("records", "i8"),
        ("bytes", "i8"),
        ("keys", "i8"),  # written that day; one that comes back to a day counts again
        ("superseded_records", "i8"),  # by a record of that day
        ("superseded_bytes", "i8"),
    ]
)
LARGE = np.dtype(
    [("bytes", "i8"), ("expanded_bytes", "i8"), ("offset", "i8"), ("timestamp", "i8"), ("name_length", "i8")]
)

NAME_BYTES = 64
"""So much of a key is kept."""
DAYS = 1 << 16
"""From 1970 on; row 0 is also for records without a timestamp, the last one for all later ones."""
GROUPS = 16
"""Keys are dealt into so many groups: how much these differ shows how good an estimate is."""
DAY_MS = 86_400_000
_LARGEST = 10
_HOT_SLOTS = 1 << 15
_PREFIX_SLOTS = 1 << 12
_PREFIX_SEARCH_BYTES = 32
_PREFIX_DEFAULT_BYTES = 4
_U = np.uint64


class Total(IntEnum):
    """Cells of `Tally.totals`."""

    RECORDS = 0
    BYTES = 1
    EXPANDED_BYTES = 2
    TOMBSTONES = 3
    NO_KEY = 4
    NO_KEY_BYTES = 5
    MARKERS = 6
    MARKER_BYTES = 7
    ABORTED = 8
    ABORTED_BYTES = 9


_RECORDS, _BYTES, _EXPANDED, _TOMBSTONES, _NO_KEY, _NO_KEY_BYTES, _MARKERS, _MARKER_BYTES, _ABORTED, _ABORTED_BYTES = (
    int(total) for total in Total
)  # fmt: skip
_KEYS_FILLED, _HOT_FILLED, _PREFIXES_FILLED, _LEVEL, _PREFIX_LENGTH, _NOW_MS = range(6)


@njit(**INLINE)
def _slot(table, low, high):
    """Slot of a fingerprint, or of the empty one where it belongs."""
    slots = _U(len(table))
    at = np.int64(((low >> _U(32)) * slots) >> _U(32))
    while (table[at].low != low or table[at].high != high) and (table[at].low | table[at].high) != _U(0):
        at += 1
        if at == len(table):
            at = np.int64(0)
    return at


@njit(**JIT)
def _fingerprint(buffer, start, length, k0, k1):
    low, high = siphash128(buffer, start, length, k0, k1)
    if low == _U(0) and high == _U(0):
        low = _U(1)
    return low, high


@njit(**INLINE)
def _is_separator(byte):
    return (
        (byte == 45)
        | (byte == 46)
        | (byte == 47)
        | (byte == 58)
        | (byte == 95)
        | (byte == 124)
        | (byte == 35)
    )


@njit(**JIT)
def _prefix_length(buffer, start, length, fixed):
    """Up to the first of `-./:_|#`, that included; without one, or with `fixed` bytes asked for, so many bytes."""
    if fixed > 0:
        return min(np.int64(length), fixed)
    for j in range(1, int(min(length, _PREFIX_SEARCH_BYTES))):
        if _is_separator(buffer[start + j]):
            return np.int64(j + 1)
    return min(np.int64(length), _PREFIX_DEFAULT_BYTES)


@njit(**JIT)
def _keep_name(names, row, buffer, start, length):
    for j in range(int(min(length, NAME_BYTES))):
        names[row, j] = buffer[start + j]


@njit(**JIT)
def _add_top(table, names, low, high, buffer, start, length, size):
    """Count a record of `size` bytes in the row of a name; (row, whether it is new)."""
    at = _slot(table, low, high)
    row = table[at]
    is_new = (row.low | row.high) == _U(0)
    if is_new:
        row.low = low
        row.high = high
        row.name_length = length
        _keep_name(names, at, buffer, start, length)
    row.bytes += size
    row.records += 1
    return at, is_new


@njit(**JIT)
def _add_large(largest, names, record, size, expanded_size, buffer):
    least = 0
    for j in range(1, len(largest)):
        if largest[j].expanded_bytes < largest[least].expanded_bytes:
            least = j
    row = largest[least]
    if expanded_size <= row.expanded_bytes:
        return
    row.bytes = size
    row.expanded_bytes = expanded_size
    row.offset = record.offset
    row.timestamp = record.timestamp
    row.name_length = record.key_length
    _keep_name(names, least, buffer, record.key_start, record.key_length)


@njit(**INLINE)
def _day(timestamp):
    return min(max(timestamp // DAY_MS, 0), DAYS - 1)


@njit(**JIT)
def _add_key(keys, prefixes, prefix, days, waste, counters, low, high, record, size, day, horizon):
    """Let a record be the newest of its key, which supersedes the one before."""
    level = counters[_LEVEL]
    if high & ((_U(1) << _U(level)) - _U(1)):
        return
    row = keys[_slot(keys, low, high)]
    weight = np.int64(1) << level
    if (row.low | row.high) == _U(0):
        row.low = low
        row.high = high
        row.records = 0
        row.day = -1
        counters[_KEYS_FILLED] += 1
    else:
        lost = row.bytes * weight
        group = np.int64((high >> _U(40)) & _U(GROUPS - 1))
        waste[group, 0] += weight
        waste[group, 1] += lost
        days[day].superseded_records += weight
        days[day].superseded_bytes += lost
        prefixes[prefix].wasted_bytes += lost
    if row.day != day:
        days[day].keys += weight
        row.day = day
    row.offset = record.offset
    row.timestamp = record.timestamp
    row.bytes = size
    row.records += 1
    row.is_tombstone = record.value_is_null
    row.is_expired = (record.value_is_null != 0) & (horizon >= 0) & (horizon <= counters[_NOW_MS])


@njit(**JIT)
def _is_full(table, filled):
    return filled >= np.int64(len(table) * SET_LOAD)


@njit(**JIT)
def _tally(
    raw, expanded, batches, records, first, aborted, k0, k1, keys, hot, hot_names, prefixes, prefix_names, days,
    largest, largest_names, totals, waste, counters,
):  # fmt: skip
    for i in range(first, len(records)):
        if (
            _is_full(keys, counters[_KEYS_FILLED])
            or _is_full(hot, counters[_HOT_FILLED])
            or _is_full(prefixes, counters[_PREFIXES_FILLED])
        ):
            return i
        record = records[i]
        batch = batches[record.batch]
        buffer = expanded if batch.expanded else raw
        start = batch.payload_start
        if i > 0 and records[i - 1].batch == record.batch:
            start = records[i - 1].end
        payload = batch.payload_end - batch.payload_start
        share_before = (start - batch.payload_start) * batch.size // payload
        size = (record.end - batch.payload_start) * batch.size // payload - share_before
        day = _day(record.timestamp)
        totals[_RECORDS] += 1
        totals[_BYTES] += size
        totals[_EXPANDED] += record.end - start
        days[day].records += 1
        days[day].bytes += size
        if not batch.attributes & CONTROL:
            _add_large(largest, largest_names, record, size, record.end - start, buffer)
        if not competes(record, batch, aborted[record.batch]):
            cell = _MARKERS if batch.attributes & CONTROL else _ABORTED if aborted[record.batch] else _NO_KEY
            totals[cell] += 1
            totals[cell + 1] += size
            continue
        totals[_TOMBSTONES] += record.value_is_null
        start, length = np.int64(record.key_start), np.int64(record.key_length)
        low, high = _fingerprint(buffer, start, length, k0, k1)
        at, is_new = _add_top(hot, hot_names, low, high, buffer, start, length, size)
        hot[at].newest_bytes = size
        counters[_HOT_FILLED] += is_new
        length = _prefix_length(buffer, start, length, counters[_PREFIX_LENGTH])
        prefix_low, prefix_high = _fingerprint(buffer, start, length, k0, k1)
        prefix, is_new = _add_top(
            prefixes, prefix_names, prefix_low, prefix_high, buffer, start, length, size
        )
        counters[_PREFIXES_FILLED] += is_new
        horizon = delete_horizon(batch)
        _add_key(keys, prefixes, prefix, days, waste, counters, low, high, record, size, day, horizon)
    return len(records)


@njit(**JIT)
def _refill(rows, table):
    for i in range(len(rows)):
        table[_slot(table, rows[i].low, rows[i].high)] = rows[i]


@njit(**JIT)
def _refill_top(rows, names, kept, table, table_names):
    for i in range(len(kept)):
        row = rows[kept[i]]
        at = _slot(table, row.low, row.high)
        table[at] = row
        for j in range(NAME_BYTES):
            table_names[at, j] = names[kept[i], j]


def _names(rows: int) -> Bytes:
    return np.zeros((rows, NAME_BYTES), np.uint8)


@dataclass(slots=True)
class TopTable:
    """Names with the most bytes. `error_bytes`: what a row is too small by at most, and a name without a row has at most."""

    rows: Table
    names: Bytes = field(init=False)
    error_bytes: int = 0

    def __post_init__(self) -> None:
        self.names = _names(len(self.rows))

    def purge(self) -> int:
        """Make room; returns how many rows are left."""
        taken = int(np.median(self.rows["bytes"][self.rows["records"] > 0])) + 1
        rows, names = self.rows, self.names
        kept = np.flatnonzero(rows["bytes"] > taken)
        rows["bytes"][kept] -= taken
        self.rows, self.names = np.zeros(len(rows), TOP), _names(len(rows))
        _refill_top(rows, names, kept, self.rows, self.names)
        self.error_bytes += taken
        return len(kept)

    def largest(self, count: int, by: npt.NDArray[np.int64]) -> list[int]:
        """The filled rows with the largest `by`, the largest first, those alike by name."""
        filled = np.flatnonzero(self.rows["records"] > 0)
        least = np.sort(by[filled])[-count:][:1]
        chosen = filled[by[filled] >= least]
        return sorted(chosen.tolist(), key=lambda row: (-by[row], self.name(row)))[:count]

    def name(self, row: int) -> bytes:
        """The first bytes of a name."""
        return self.names[row, : min(int(self.rows["name_length"][row]), NAME_BYTES)].tobytes()


class Tally:
    """Counts of one log. `keys_max`: from here on the keys are a sample. `prefix_bytes`: 0, up to a separator.

    `now_ms`: a tombstone whose delete horizon is not later is expired.
    """

    def __init__(self, keys_max: int, key: tuple[int, int], prefix_bytes: int = 0, now_ms: int = -1) -> None:
        self._key = key
        slots = int(keys_max / SET_LOAD) + 2
        try:
            self.keys = np.zeros(slots, KEY)
        except (MemoryError, ValueError):
            raise BadUsage(f"there is no room for {keys_max} keys: {slots * KEY.itemsize} bytes") from None
        self.hot = TopTable(np.zeros(_HOT_SLOTS, TOP))
        self.prefixes = TopTable(np.zeros(_PREFIX_SLOTS, TOP))
        self.days = np.zeros(DAYS, DAY)
        self.largest = np.zeros(_LARGEST, LARGE)
        self.largest_names = _names(_LARGEST)
        self.totals = np.zeros(len(Total), np.int64)
        self.waste = np.zeros((GROUPS, 2), np.int64)
        self._counters = np.zeros(6, np.int64)
        self._counters[_PREFIX_LENGTH] = prefix_bytes
        self._counters[_NOW_MS] = now_ms

    @property
    def level(self) -> int:
        """One in 2^level keys is looked at."""
        return int(self._counters[_LEVEL])

    def add(
        self, raw: Bytes, expanded: Bytes, batches: Table, records: Table, aborted: npt.NDArray[np.bool_]
    ) -> None:
        """Count records in offset order; `aborted` has one entry per batch row."""
        at = 0
        while at < len(records):
            at = _tally(
                raw, expanded, batches, records, at, aborted, _U(self._key[0]), _U(self._key[1]), self.keys,
                self.hot.rows, self.hot.names, self.prefixes.rows, self.prefixes.names, self.days, self.largest,
                self.largest_names, self.totals, self.waste, self._counters,
            )  # fmt: skip
            if at < len(records):
                self._make_room()

    def _make_room(self) -> None:
        counters = self._counters
        if _is_full(self.hot.rows, counters[_HOT_FILLED]):
            counters[_HOT_FILLED] = self.hot.purge()
        if _is_full(self.prefixes.rows, counters[_PREFIXES_FILLED]):
            counters[_PREFIXES_FILLED] = self.prefixes.purge()
        while _is_full(self.keys, counters[_KEYS_FILLED]):
            counters[_LEVEL] += 1
            rows = self.newest()
            rows = rows[rows["high"] & _U((1 << self.level) - 1) == 0]
            self.keys = np.zeros(len(self.keys), KEY)
            _refill(rows, self.keys)
            counters[_KEYS_FILLED] = len(rows)

    def large_name(self, row: int) -> bytes | None:
        """The first bytes of the key of one of the largest records, None without a key."""
        length = int(self.largest["name_length"][row])
        return None if length < 0 else self.largest_names[row, : min(length, NAME_BYTES)].tobytes()

    def newest(self) -> Table:
        """The row of each key, or of each key of the sample."""
        rows: Table = self.keys[(self.keys["low"] | self.keys["high"]) != 0]
        return rows
