"""What an interrupted commit left, finished or undone. Called with `.lock` held, before anything else is done to a log.

Idempotent, and safe to interrupt: it only repeats the steps of `commit`, or takes back steps 1 and 2 in reverse.

==========================================  =============================================================
found, with a manifest                      done
==========================================  =============================================================
`.log.cleanerd`                             never begun: left alone, it may still be committed
our `.log.cleaned` (the guard)              not committed: swaps unlinked, then the guard, then what is staged
our `.log.swap`, or none of the three       past the commit point: `finish`
a `.log.cleaned` or `.log.swap` not ours    a broker was here since: our leftovers are unlinked
==========================================  =============================================================

Without a manifest, staged files are garbage. Kafka's own leftovers are not ours: the log is skipped until its broker
has started; only the `.deleted` files of a directory without a broker are unlinked, which is all that can be left there.
"""

import os

from cleanerd.env.files import Files
from cleanerd.format.names import SEGMENT_KINDS, FileKind, SegmentFileName, Suffix, parse_segment_file

from .commit import finish
from .staged import StagedGroup, read_manifests, staged_names


def recover(files: Files, directory: str, *, is_kafka: bool) -> str | None:
    """Bring a partition directory into order; returns why the log must be skipped, or None. Raises CorruptFile, OSError."""
    groups = read_manifests(files, directory)
    for group in groups:
        _recover_group(files, directory, group)
    waiting = {group.base_offset for group in read_manifests(files, directory)}
    for text in staged_names(files.list_names(directory)):
        name = parse_segment_file(text)
        if name is None or name.base_offset not in waiting or name.kind is FileKind.PART:
            files.unlink(os.path.join(directory, text))
    return _foreign_leftovers(files, directory, is_kafka=is_kafka)


def _recover_group(files: Files, directory: str, group: StagedGroup) -> None:
    def path(kind: FileKind, suffix: Suffix) -> str:
        return os.path.join(directory, str(SegmentFileName(group.base_offset, kind, suffix)))

    guard, swap = path(FileKind.LOG, Suffix.CLEANED), path(FileKind.LOG, Suffix.SWAP)
    if files.exists(path(FileKind.LOG, Suffix.STAGED)):
        return
    for found in (guard, swap):
        if files.exists(found) and not _is_ours(files, found, group):
            files.unlink(os.path.join(directory, str(group.manifest)))
            return
    if not files.exists(guard):
        finish(files, directory, group)
        return
    for kind in SEGMENT_KINDS[1:]:
        if files.exists(path(kind, Suffix.SWAP)):
            files.unlink(path(kind, Suffix.SWAP))
    files.fsync_dir(directory)
    files.unlink(guard)
    files.unlink(os.path.join(directory, str(group.manifest)))
    files.fsync_dir(directory)


def _is_ours(files: Files, path: str, group: StagedGroup) -> bool:
    """Size and modification time tell our new segment from a broker's (the inode does not survive a restored copy)."""
    stat = files.stat(path)
    return (stat.size_bytes, stat.mtime_ns) == (group.sizes[FileKind.LOG], group.log_mtime_ns)


def _foreign_leftovers(files: Files, directory: str, *, is_kafka: bool) -> str | None:
    for text in files.list_names(directory):
        name = parse_segment_file(text)
        if name is None or name.suffix in (Suffix.LIVE, Suffix.STAGED):
            continue
        if name.suffix is Suffix.DELETED:
            if not is_kafka:
                files.unlink(os.path.join(directory, text))
            continue
        return (
            f"{directory}/{text} is left of an interrupted cleaning that is not cleanerd's; "
            "start the broker once, it finishes or undoes it"
        )
    return None
