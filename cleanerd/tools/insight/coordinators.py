"""What the coordinators have stored: the newest record of each key of `__consumer_offsets` and `__transaction_state`,
decoded.

    for entry in read_coordinator("/data/kafka-logs/__consumer_offsets-7").entries:
        entry.record.key["group"], entry.record.value["offset"], ...

The newest records are found by kernels; only these are decoded one by one in Python.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cleanerd.errors import BadUsage
from cleanerd.format.errors import FormatError
from cleanerd.tools.insight.coordinator_records import (
    CONSUMER_OFFSETS,
    GROUPS,
    MEMBERS,
    OFFSET_COMMITS,
    TRANSACTION_STATE,
    TRANSACTION_STATES,
    CoordinatorRecord,
    parse_coordinator_record,
)

from .inspect import KEYS_MAX, committed_or_not, tally_log
from .records import read_columns


class CoordinatorEntry(NamedTuple):
    """The newest record of a key."""

    offset: int
    timestamp_ms: int
    record: CoordinatorRecord


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The newest record of each key, in offset order. `undecodable`: of a type or version that is not known."""

    entries: tuple[CoordinatorEntry, ...]
    undecodable: int


class ConsumerGroup(NamedTuple):
    """A group. `protocol`: classic, consumer, share or streams; `committed`: partitions with an offset; -1: none."""

    group: str
    protocol: str
    committed: int
    topics: int
    last_commit_ms: int
    generation: int
    members: int


class Transactional(NamedTuple):
    """A transactional id. `since_ms`: start of the transaction that is under way, -1 without one."""

    transactional_id: str
    producer_id: int
    state: str
    updated_ms: int
    since_ms: int
    partitions: int


def read_coordinator(partition_dir: str, *, keys_max: int = KEYS_MAX) -> Coordinator:
    """Read a partition of an internal topic.

    Raises: `BadUsage` for another topic; as `inspect_partition`.
    """
    view = committed_or_not(partition_dir)
    if view.topic not in (CONSUMER_OFFSETS, TRANSACTION_STATE):
        raise BadUsage(f"{partition_dir}: expected a partition of {CONSUMER_OFFSETS} or {TRANSACTION_STATE}")
    tally = tally_log(view, keys_max)
    offsets = np.sort(tally.newest()["offset"])
    entries, undecodable = [], 0
    for columns in read_columns(view, columns={"key", "value"}, only=offsets):
        assert columns.keys is not None
        assert columns.values is not None
        for row in range(len(columns)):
            try:
                record = parse_coordinator_record(
                    view.topic, columns.keys.item(row) or b"", columns.values.item(row)
                )
            except FormatError:
                undecodable += 1
                continue
            entries.append(
                CoordinatorEntry(int(columns.offsets[row]), int(columns.timestamps_ms[row]), record)
            )
    return Coordinator(tuple(entries), undecodable)


def groups(entries: Iterable[CoordinatorEntry]) -> list[ConsumerGroup]:
    """The groups that have an offset, a state or a member, those that committed last first."""
    commits: dict[str, dict[tuple[str, int], int]] = defaultdict(dict)
    states: dict[str, CoordinatorRecord] = {}
    members: Counter[str] = Counter()
    for entry in entries:
        kind, key, value = entry.record.type, entry.record.key, entry.record.value
        if value is None:
            continue
        name = key["group"] if "group" in key else key["groupId"]
        if kind in OFFSET_COMMITS:
            commits[name][key["topic"], key["partition"]] = value["commitTimestamp"]
        elif kind in GROUPS:
            states[name] = entry.record
            members[name] += len(value.get("members") or ())
        elif kind in MEMBERS:
            members[name] += 1
    names = commits.keys() | states.keys() | members.keys()
    found = [_group(name, commits[name], states.get(name), members[name]) for name in names]
    return sorted(found, key=lambda group: (-group.last_commit_ms, group.group))


def _group(
    name: str, commits: Mapping[tuple[str, int], int], state: CoordinatorRecord | None, members: int
) -> ConsumerGroup:
    value = (state.value if state is not None else None) or {}
    return ConsumerGroup(
        name,
        GROUPS[state.type] if state is not None else "",
        len(commits),
        len({topic for topic, _ in commits}),
        max(commits.values(), default=-1),
        value.get("generation", value.get("epoch", -1)),
        members,
    )


def transactionals(entries: Iterable[CoordinatorEntry]) -> list[Transactional]:
    """The transactional ids, those with a transaction under way first, the oldest of these first."""
    found = []
    for entry in entries:
        value = entry.record.value
        if value is None:
            continue
        status = value["transactionStatus"]
        state = TRANSACTION_STATES[status] if 0 <= status < len(TRANSACTION_STATES) else str(status)
        partitions = value["transactionPartitions"] or []
        is_open = state in ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
        found.append(
            Transactional(
                entry.record.key["transactionalId"],
                value["producerId"],
                state,
                value["transactionLastUpdateTimestampMs"],
                value["transactionStartTimestampMs"] if is_open else -1,
                sum(len(one["partitionIds"] or ()) for one in partitions),
            )
        )
    return sorted(found, key=lambda one: (one.since_ms < 0, one.since_ms, one.transactional_id))
