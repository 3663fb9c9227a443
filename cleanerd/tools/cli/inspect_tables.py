"""The findings of `inspect` as tables for people."""

import contextlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from cleanerd.cli import output
from cleanerd.cli.tables import Columns, write_table
from cleanerd.format.errors import FormatError
from cleanerd.tools.insight.coordinator_records import (
    CONSUMER_OFFSETS,
    TRANSACTION_STATE,
    parse_coordinator_key,
)
from cleanerd.units import instant, key_text, size

if TYPE_CHECKING:
    from cleanerd.tools.insight.coordinators import CoordinatorEntry
    from cleanerd.tools.insight.inspect import AgeBand, Estimate, Inspection

_DAYS_SHOWN = 14
_ROWS_SHOWN = 10
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def write_overview(logs: "Sequence[Inspection]") -> None:
    """A row for each log, and why the largest are as large as they are."""
    write_table(
        {
            "LOG": [f"{log.topic}-{log.partition}" for log in logs],
            "SIZE": [size(log.bytes) for log in logs],
            "RECORDS": [f"{log.records:,}" for log in logs],
            "KEYS": [estimate_text(log.keys) for log in logs],
            "NEWEST": [_bytes(log.live_bytes) for log in logs],
            "SUPERSEDED": [_bytes(log.superseded_bytes) for log in logs],
            "SHARE": [_share(log.superseded_bytes.value, log.bytes) for log in logs],
            "TOMBSTONES": [f"{log.live_tombstones:,}" for log in logs],
            "ABORTED": [size(log.aborted_bytes) if log.aborted_bytes else "" for log in logs],
            "NO KEY": [size(log.no_key_bytes) if log.no_key_bytes else "" for log in logs],
            "BYTES/BATCH": [f"{log.bytes // max(log.batches, 1):,}" for log in logs],
        }
    )


def estimate_text(found: "Estimate") -> str:
    """A count, with its error if it has one."""
    return f"{found.value:,}" + (f" ±{found.error:,}" if found.error else "")


def _bytes(found: "Estimate") -> str:
    return size(found.value) + (f" ±{size(found.error)}" if found.error else "")


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else ""


def write_details(log: "Inspection") -> None:
    """Everything about one log."""
    output.write("\n".join(["", *answers(log)]) + "\n")
    for columns in tables(log, _ROWS_SHOWN):
        output.write("\n")
        write_table(columns)
    for note in notes(log):
        output.write(f"\n{note}\n")


def answers(log: "Inspection") -> list[str]:
    """Answers: why the log is so large, which keys, since when, what would help."""
    name, superseded = f"{log.topic}-{log.partition}", log.superseded_bytes
    if not log.records:
        return [f"{name} is empty."]
    lines = [
        f"{name} is {size(log.bytes)}: {_share(superseded.value, log.bytes)} is superseded ({_bytes(superseded)}), "
        f"{_share(log.live_bytes.value, log.bytes)} is the newest record of a key."
    ]
    if log.sampled_keys < 1:
        lines.append(
            f"  Keys are a sample of 1 in {round(1 / log.sampled_keys)}; --keys-max makes it larger."
        )
    wasteful = max(log.prefixes, key=lambda one: one.superseded_bytes, default=None)
    if superseded.value and wasteful is not None:
        lines.append(
            f"  The largest part of that: keys {key_text(wasteful.prefix)}..., {size(wasteful.superseded_bytes)} superseded "
            f"in {wasteful.records:,} records."
        )
        first = min((one.day for one in log.days if one.superseded_bytes), default=-1)
        lines.append(f"  Superseded since {date(first)}." if first >= 0 else "")
    helps = [f"a cleaning (at most {_bytes(superseded)})"] if superseded.value else []
    if log.no_key_bytes:
        helps.append(f"a cleaning also removes records without a key ({size(log.no_key_bytes)})")
    recoded = next((one for one in log.alternatives if one.is_of_topic), None)
    if recoded is not None and recoded.saved_bytes > 0:
        helps.append(
            f"cleanerd.compression=topic ({recoded.codec}: about {size(recoded.saved_bytes)} once every batch has been "
            "rewritten)"
        )
    others = (one for one in log.alternatives if not one.is_of_topic)
    best = next((one for one in others if one.saved_bytes > log.bytes // 20), None)
    if best is not None:
        helps.append(f"{best.codec} in batches of {size(best.batch_bytes)} ({size(best.saved_bytes)})")
    lines.append(f"  What would help: {', '.join(helps)}." if helps else "  Nothing to save.")
    return [line for line in lines if line]


def write_coordinator(topic: str, entries: "Sequence[CoordinatorEntry]") -> None:
    """The groups of `__consumer_offsets`, the transactions of `__transaction_state`."""
    from cleanerd.tools.insight.coordinators import groups, transactionals  # noqa: PLC0415 - loads the compiled loops

    if topic == CONSUMER_OFFSETS and entries:
        found = groups(entries)
        columns = {
            "GROUP": [one.group for one in found],
            "PROTOCOL": [one.protocol for one in found],
            "COMMITTED": [f"{one.committed} partitions of {one.topics} topics" for one in found],
            "LAST COMMIT": [_instant(one.last_commit_ms) for one in found],
            "GENERATION": [str(one.generation) if one.generation >= 0 else "" for one in found],
            "MEMBERS": [str(one.members) for one in found],
        }
    elif topic == TRANSACTION_STATE and entries:
        ids = transactionals(entries)
        columns = {
            "TRANSACTIONAL ID": [one.transactional_id for one in ids],
            "STATE": [one.state for one in ids],
            "OPEN SINCE": [_instant(one.since_ms) for one in ids],
            "UPDATED": [_instant(one.updated_ms) for one in ids],
            "PARTITIONS": [str(one.partitions) for one in ids],
            "PRODUCER ID": [str(one.producer_id) for one in ids],
        }
    else:
        return
    output.write("\n")
    write_table(columns)


def _instant(time_ms: int) -> str:
    return instant(time_ms) if time_ms >= 0 else ""


def _name(topic: str, key: bytes, length: int) -> str:
    """A key for people; one of an internal topic decoded."""
    if topic in (CONSUMER_OFFSETS, TRANSACTION_STATE) and length <= len(key):
        with contextlib.suppress(FormatError):
            kind, fields = parse_coordinator_key(topic, key)
            return " ".join([f"type {kind}:", *map(str, fields.values())])
    return key_text(key, length)


def tables(log: "Inspection", keys_max: int | None = None) -> list[Columns]:
    """Everything that is counted in a log; of the keys with the most bytes at most so many."""
    hot, prefixes = log.hot_keys[:keys_max], log.prefixes[:keys_max]
    days, largest, codecs, others = log.days[-_DAYS_SHOWN:], log.largest, log.codecs, log.alternatives
    keys: list[Columns] = [
        {
            "HOT KEY": [_name(log.topic, one.key, one.key_length) for one in hot],
            "RECORDS": [f"{one.records:,}" for one in hot],
            "SIZE": [size(one.bytes) for one in hot],
            "SUPERSEDED": [size(one.superseded_bytes) for one in hot],
        },
        {
            "KEYS LIKE": [f"{key_text(one.prefix)}..." for one in prefixes],
            "RECORDS": [f"{one.records:,}" for one in prefixes],
            "SIZE": [size(one.bytes) for one in prefixes],
            "SUPERSEDED": [size(one.superseded_bytes) for one in prefixes],
        },
    ]
    return [
        *(keys if hot else []),
        {
            "AGE": [f"< {band.below_days} d" if band.below_days else "older" for band in log.superseded_ages],
            "SUPERSEDED SINCE": _bands(log.superseded_ages),
            "TOMBSTONES": _bands(log.tombstone_ages),
        },
        {
            "DAY": [date(one.day) for one in days],
            "RECORDS": [f"{one.records:,}" for one in days],
            "SIZE": [size(one.bytes) for one in days],
            "KEYS": [f"{one.keys:,}" for one in days],
            "SUPERSEDED": [size(one.superseded_bytes) for one in days],
        },
        {
            "LARGEST AT OFFSET": [str(one.offset) for one in largest],
            "KEY": [
                "(none)" if one.key is None else _name(log.topic, one.key, len(one.key)) for one in largest
            ],
            "RECORD": [size(one.expanded_bytes) for one in largest],
            "STORED": [size(one.bytes) for one in largest],
            "TIME": [_instant(one.timestamp_ms) for one in largest],
        },
        {
            "CODEC": [one.codec for one in codecs],
            "BATCHES": [f"{one.batches:,}" for one in codecs],
            "RECORDS/BATCH": [f"{one.records / one.batches:.1f}" for one in codecs],
            "BYTES/BATCH": [f"{one.bytes / one.batches:,.0f}" for one in codecs],
            "STORED": [size(one.bytes) for one in codecs],
            "RECORDS": [size(one.expanded_bytes) for one in codecs],
        },
        {
            "WITH CODEC": [one.codec + " (of the topic)" * one.is_of_topic for one in others],
            "BATCHES OF": [size(one.batch_bytes) for one in others],
            "SIZE": [f"about {size(one.size_bytes)}" for one in others],
            "SAVES": [size(one.saved_bytes) if one.saved_bytes > 0 else "-" for one in others],
        },
    ]


def _bands(bands: "Sequence[AgeBand]") -> list[str]:
    return [f"{size(band.bytes)} in {band.records:,}" if band.records else "-" for band in bands]


def notes(log: "Inspection") -> Iterator[str]:
    """What the tables do not show."""
    if log.hot_keys_error_bytes:
        more = size(log.hot_keys_error_bytes)
        yield f"hot keys: each may have {more} more, and so may a key that is not listed"
    if log.commits or log.aborts:
        yield (
            f"transactions: {log.commits:,} committed, {log.aborts:,} aborted with {log.aborted_records:,} records "
            f"({size(log.aborted_bytes)}, {_share(log.aborted_bytes, log.bytes)}); markers {size(log.marker_bytes)}"
        )


def date(day: int) -> str:
    """A day since 1970 (UTC), -1 for none."""
    return (_EPOCH + timedelta(days=day)).strftime("%Y-%m-%d") if day >= 0 else "(no time)"
