"""Decisions, pure: frozen values in, frozen values out. No clock, no files, no bytes. And what cleaning is, on one page.

The log
    A partition of a Kafka topic is a *log*: records in a row, each with an offset that never changes. On disk it is a
    directory `<topic>-<partition>` of *segments*, files named after the first offset they may hold, their *base
    offset*. Only the last one, the *active segment*, is written to. When it is full or old enough it is closed, and a
    new one begins (a *roll*). Records are stored in *batches* as producers sent them; a batch is compressed and
    checksummed as a whole.

Two ways to keep a log from growing for ever
    *Retention* (`cleanup.policy=delete`) deletes whole segments from the front: those that are too old, that are more
    than `retention.bytes` allows, or that lie below the *log start offset*. It never looks at records.
    *Compaction* (`compact`) keeps, for every key, at least the newest record. Replaying a compacted log ends with the
    same table as replaying the whole one; that is the promise, and all of the rest serves it. A topic may ask for
    both.

What compaction may take
    A record is *superseded* when a newer one of its key lies in the section that is cleaned. Offsets, order and the
    bounds of batches stay: a cleaned log has gaps, and a reader who comes back to an offset that is gone continues at
    the next one. A record without a key supersedes nothing, and nothing supersedes it; a compacted topic has no use for
    it.

::

    log start            first dirty          first uncleanable           log end
        |----- clean ---------|----- cleanable -------|---- uncleanable ------|
          cleaned before        the dirty section,     active segment, recent
                                that may be cleaned    or undecided records

The clean and the dirty section
    The *first dirty offset* is where the last cleaning ended; `cleaner-offset-checkpoint` remembers it. Below it each
    key occurs at most once. So only keys of the *dirty section* can supersede, and a cleaning remembers only those; but
    what they supersede may lie anywhere below, so it reads the log from its beginning. That is why a log is cleaned only
    when enough of it is dirty: `min.cleanable.dirty.ratio` is the share
    of dirty bytes from which the reading pays.

The end of the cleanable range
    The *first uncleanable offset* is the lowest of several bounds, rounded down to the base of a segment
    (`cleanable`): the active segment, because it is written to; the *last stable offset* (LSO), because the outcome of
    records behind it is open: they are not replicated yet (the *high watermark*), or their transaction has not ended;
    and the first segment younger than `min.compaction.lag.ms`, for readers who want to see every
    record for that long. `max.compaction.lag.ms` is a promise in the other direction: what is older makes its log
    due, whatever the ratio.

The round and its offset map
    One cleaning of one log is a *round*. Kafka fills an *offset map* with the newest offset of every key of the dirty
    section, then copies the log and leaves out each record whose key has a higher offset in the map. When the map is
    full the round ends there, and the rest takes further rounds. Here a round always reaches the end of the range:
    what does not fit the memory is divided by key, and a set of fingerprints, walked from the newest record to the
    oldest, takes the place of the map.

Deletion
    A producer deletes a key by writing a record with a null value, a *tombstone*. It supersedes all older records of
    its key, but it must not go with them: a reader who has seen the value and comes back later has to learn that it
    is gone. So the first round that meets a tombstone leaves it and stamps its batch with a *delete horizon*,
    `delete.retention.ms` after that round; a round after the horizon drops it. A reader who gets from the beginning
    to the end of the log within `delete.retention.ms` thus sees every deletion. The clock starts at the first
    cleaning and not at the write: until then the deleted values are still there to be read.

Transactions
    A transaction ends with a *marker*, COMMIT or ABORT, a control record in a batch of its own. Data of an aborted
    transaction is dropped at once and supersedes nothing; the transaction index (`.txnindex`) of the segment with the
    marker lists such transactions. A marker is still needed while data of its transaction is in the
    log: an ABORT that went first would make its data count as committed. Once the data is gone the marker gets a
    delete horizon, as a tombstone does, and goes after it.

Producers
    An idempotent producer numbers its batches, and the broker knows the last number from the log. So the last batch
    of each active producer stays, if need be as a bare header without records; so does the last batch of the round,
    because readers and a starting broker learn from it where the segment ends.

Grouping
    Segments shrink, and many small files cost a broker memory and open files. So neighbours are put into *groups*
    that fit `segment.bytes`, `segment.index.bytes`, and offsets that can be counted in 31 bits from the base
    (`grouping`). A group becomes one new segment with the base offset of its first source.

The swap
    The new segment takes the place of its sources in a *swap*, a sequence of renames (`.cleaned`, `.swap`,
    `.deleted`) from every point of which a start of the broker leads to the old files or the new ones. Tombstones
    order the swaps of a log: one that drops a tombstone must not be on disk before the one that drops the older
    values, or a value would return from the dead. `commit_plan` decides whether a swap still fits the log, `recovery_plan`
    what to do with an interrupted one.

Who works on a log
    Truncation, deletion and a changed policy have to keep the cleaner away from a log, and two cleanings must not
    meet. So each log has a state: none, in progress, aborted (asked to stop, not stopped yet), or paused n times
    (`lifecycle`).

The numbers in parentheses, here and everywhere, are rules of etc/reference/cleaner-behaviour.md.
"""
