"""Which record of a key stays: the one with the highest offset, "last offset wins" (rules 3.9, 4.19). The only such rule.

Kernels and plans do not compare offsets; they rely on three things that follow from it:

order     Offsets rise from record to record, batch to batch and chunk to chunk. Every step checks that in what it reads
          (`kernels.scan.first_bad_order`, `kernels.records`, `pipeline.whole_log`), so the place of a record shows whether
          it is newer, and no offset has to be kept or sent.
walk      Candidates are asked `newest_first`: of each key the first one met wins, and all others are superseded. So a set of
          fingerprints is enough (`kernels.newest`), and blocks of a bucket may be combined anywhere as long as each
          stands for consecutive records.
sections  Only the dirty section supersedes (`may_supersede`): below it each key stands once at most. All of it is newer than
          the clean section. So the map-side plan resolves the dirty chunks first, and the clean ones only look up.

Another rule, the newest timestamp for one, would give up all three: a value beside each fingerprint, compared at each probe;
clean records in the same contest as dirty ones; and no map-side plan as it is.
"""

from collections.abc import Iterator, Sequence
from typing import TypeVar

_T = TypeVar("_T")

FINGERPRINT_BYTES = 16
"""Bytes of a fingerprint, which stands for a key."""
SET_LOAD = 0.6
"""How full a set of fingerprints gets at most: linear probing stays short, and the budget counts the empty slots."""
KEY_BYTES = FINGERPRINT_BYTES + FINGERPRINT_BYTES / SET_LOAD
"""Bytes of the dedupe buffer per key: its fingerprint, and its share of the set of fingerprints."""


def supersedes(offset: int, other_offset: int) -> bool:
    """Whether a record at `offset` wins against one of the same key at `other_offset`."""
    return offset > other_offset


def may_supersede(offset: int, first_dirty_offset: int) -> bool:
    """Whether a record at `offset` takes part as more than a candidate to go: only the dirty section does."""
    return offset >= first_dirty_offset


def newest_first(in_offset_order: Sequence[_T]) -> Iterator[_T]:
    """The order in which records, blocks or chunks given in offset order are asked."""
    return reversed(in_offset_order)
