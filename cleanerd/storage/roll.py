"""Start an empty segment at the end of a log whose segments all go (rule 6.6). Called with `.lock` held.

====  ==============================================================  =================================================
step  what is done (each ends with an fsync of the directory)         what a crash after it leaves, and Kafka makes of it
====  ==============================================================  =================================================
0     nothing is renamed: what a killed process did may not be on     the log as it was
      disk yet
1     `.snapshot|.index|.timeindex|.log.cleanerd` are written with    the log as it was: Kafka ignores these names, and
      the owner of the old active segment, and synced                 `recover` sweeps them
2     a `.txnindex` under the new base is unlinked; then all but the  the log as it was: Kafka deletes indexes without a
      `.log` -> live                                                  `.log`; a snapshot at the log end is what it writes
                                                                      itself when it closes a log (spec disk B7)
3     `.log.cleanerd` -> `.log`                                       the log with an empty active segment, as after a roll
====  ==============================================================  =================================================

The segments before it may go only after step 3: a log without any starts over at its log start checkpoint, which is mostly
0, and would hand out its old offsets once more (spec disk D3).

(A) The files are staged first because a file under a live name that the broker cannot open for reading and writing takes
    the directory offline.
(B) The indexes are on disk before the `.log` is: a `.log` without them is recovered at the next start (spec disk B8), which
    is harmless, but a `.txnindex` of an earlier segment of that base would hide what is written now.
"""

from collections.abc import Sequence

from cleanerd.errors import SourceChanged
from cleanerd.format.names import FileKind, SegmentFileName, Suffix
from cleanerd.format.producer_snapshot import ProducerEntry, render_producer_snapshot

from .partition_dir import PartitionDir

_COMPANIONS = (FileKind.PRODUCER_SNAPSHOT, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX)


def roll_segment(
    partition: PartitionDir, base_offset: int, producers: Sequence[ProducerEntry], *, like: str
) -> None:
    """Steps 0 to 3. `producers`: their state at `base_offset`, the log end. `like`: path of the old active `.log`.

    Requires: the old active segment is complete and takes no more appends. Raises SourceChanged if there is a segment at
    `base_offset`; OSError: the log is as it was, or rolled.
    """
    log = SegmentFileName(base_offset, FileKind.LOG)
    if partition.exists(log):
        raise SourceChanged(f"{partition.path}/{log}: is there already")
    partition.sync()
    for kind in (*_COMPANIONS, FileKind.LOG):
        content = render_producer_snapshot(producers) if kind is FileKind.PRODUCER_SNAPSHOT else b""
        partition.write_like(SegmentFileName(base_offset, kind, Suffix.STAGED), content, like)  # (A)
    partition.sync()
    partition.unlink_if_there(SegmentFileName(base_offset, FileKind.TXN_INDEX))  # a stale one
    for kinds in (_COMPANIONS, (FileKind.LOG,)):  # (B)
        for kind in kinds:
            name = SegmentFileName(base_offset, kind)
            partition.rename(name.with_suffix(Suffix.STAGED), name)
        partition.sync()
