"""Rules about what a sample of keys shows."""

from cleanerd.units import counted, size, utc

from .facts import BrokerFacts, Finding, Limits, LogFacts, Sample, finding, place_of

_SLOT_BYTES = 24
"""Of a key in the dedupe buffer of Kafka's cleaner: MD5 and offset."""
_BUFFER_MAX_BYTES = 2**31 - 1
"""Of a thread, however large the buffer is (rule 3.1)."""


def superseded(broker: BrokerFacts, log: LogFacts, sample: Sample, limits: Limits) -> Finding | None:
    """Most of a log can go: now that it was cleaned before, or with its first cleaning."""
    whole = log.snapshot.size_bytes
    freed = sample.superseded_bytes
    if freed < limits.least_bytes or freed <= whole / 2:
        return None
    found = f"{size(freed)} ± {size(sample.error_bytes)} of {size(whole)} are superseded in closed segments"
    roll = sample.after_roll_bytes
    more = f", {size(roll)} more after a roll" if roll else ""
    clean = broker.command("clean", log, " --force")
    if log.snapshot.checkpoint is None:
        remedy = f"it needs room for what is kept, and reads all: {broker.command('clean', log, ' --dry-run')}, then {clean}"
        return finding("first_cleaning", place_of(log), f"{found}{more}; it was never cleaned", remedy, freed)
    return finding("superseded", place_of(log), f"{found}{more}", clean, freed)


def tombstones_overdue(broker: BrokerFacts, log: LogFacts, sample: Sample, _: Limits) -> Finding | None:
    """Tombstones that Kafka's cleaner leaves until there is something new to clean."""
    if not sample.overdue_tombstones:
        return None
    return finding(
        "tombstones_overdue",
        place_of(log),
        f"{counted(sample.overdue_tombstones, 'tombstone')}; the first might have gone at {utc(sample.overdue_ms)}",
        f"Kafka's cleaner takes them only with new dirty records; {broker.command('clean', log)} takes them now, unless "
        "replicas are away",
    )


def dedupe_buffer(broker: BrokerFacts, log: LogFacts, sample: Sample, _: Limits) -> Finding | None:
    """A log that Kafka's cleaner cleans in several rounds, each of which reads all of it."""
    config = broker.config
    per_thread = min(config.dedupe_buffer_size_bytes // config.log_cleaner_threads, _BUFFER_MAX_BYTES)
    keys_max, most_keys = (
        int(buffer // _SLOT_BYTES * config.io_buffer_load_factor)
        for buffer in (per_thread, _BUFFER_MAX_BYTES)
    )
    if sample.keys <= keys_max or log.snapshot.checkpoint is not None:
        return None
    rounds = -(-sample.keys // keys_max)
    in_one_pass = f"in one pass: {broker.command('clean', log)}"
    if sample.keys <= most_keys:
        in_one_pass = f"set log.cleaner.dedupe.buffer.size to {rounds} times as much; or {in_one_pass}"
    return finding(
        "dedupe_buffer",
        place_of(log),
        f"about {sample.keys:,} keys; log.cleaner.dedupe.buffer.size has room for {keys_max:,} per thread: {rounds} rounds "
        f"over {size(log.snapshot.size_bytes)}",
        in_one_pass,
    )


def no_keys(_: BrokerFacts, log: LogFacts, sample: Sample, __: Limits) -> Finding | None:
    """Records that compaction removes because they have no key."""
    if not sample.no_key_records:
        return None
    return finding(
        "no_keys",
        place_of(log, offset=sample.no_key_offset),
        f"{sample.no_key_records:,} of {sample.records:,} records have no key, the first at offset {sample.no_key_offset}",
        "if they are wanted, set cleanup.policy=delete before the next cleaning; else have the producer set a key",
    )
