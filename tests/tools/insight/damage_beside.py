"""Damage to what lies beside the records: epochs, checkpoints, names and kinds of files, states of a directory.

As in `damage`, each returns (path of the finding, byte or -1).
"""

import os
from pathlib import Path
from uuid import UUID

from cleanerd.format.names import FileKind
from cleanerd.format.partition_metadata import render_partition_metadata
from tests.tools.insight.damage import ID, Damage, Written, forget_end, overwrite, starts
from tests.tools.insight.logdirs import segment

checkpoint_partition = Written(
    "checkpoint_partition", "cleaner-offset-checkpoint", b"0\n2\ncleaned 0 32\nelsewhere 7 5\n"
)
interrupted_cleaning = Written("interrupted_cleaning", f"plain-0/{0:020d}.log.cleaned")
waiting_swap = Written("waiting_swap", f"plain-0/{0:020d}.log.swap")
staged_useless = Written("staged_useless", f"plain-0/{0:020d}.log.cleanerd")
WRITTEN = (
    Written("epochs", "plain-0/leader-epoch-checkpoint", b"0\n2\n0 0\n", 2),
    Written("epochs_missing", "plain-0/leader-epoch-checkpoint", None),
    Written("epoch_order", "plain-0/leader-epoch-checkpoint", b"0\n1\n5 0\n"),
    Written("epoch_beyond_end", "plain-0/leader-epoch-checkpoint", b"0\n2\n0 0\n7 99\n"),
    Written("checkpoint", "recovery-point-offset-checkpoint", b"1\n0\n", 0),
    Written("checkpoint_beyond_end", "cleaner-offset-checkpoint", b"0\n1\ncleaned 0 35\n"),
    Written("log_start_beyond_end", "log-start-offset-checkpoint", b"0\n1\nplain 0 17\n"),
    Written("foreign_directory", "lost+found/"),
    Written("foreign_file", "plain-0/notes.txt"),
    Written("misnamed_file", "plain-0/backup.log"),
    Written("offset_too_large", "plain-0/99999999999999999999.log", code="misnamed_file"),
    Written("short_name", "plain-0/17.log"),
    Written("meta_properties", "meta.properties", b"version=7\n", 0),
    Written(
        "partition_metadata",
        "plain-0/partition.metadata",
        b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
        21,
    ),
    Written("partition_metadata_missing", "plain-0/partition.metadata", None),
    Written("deleted_file", f"plain-0/{0:020d}.log.deleted"),
    Written("delete_directory", f"gone-0.{ID}-delete/"),
    Written("stray_directory", f"gone-0.{ID}-stray/"),
    Written("future_directory", f"moving-0.{ID}-future/"),
    Written("truncation", "plain-0/cleanerd-generation", b"abc truncating"),
)


def epochs_that_fall(log_dir: Path) -> tuple[Path, int]:
    """The epoch of a batch is outside of its CRC."""
    log = segment(log_dir / "plain-0", 0)
    path = log_dir / "plain-0" / "leader-epoch-checkpoint"
    path.write_bytes(b"0\n1\n3 0\n")
    for position in starts(log)[:-1]:
        overwrite(log, position + 12, (3).to_bytes(4))
    return log, -1


def topic_id(log_dir: Path) -> tuple[Path, int]:
    second = log_dir / "plain-1"
    second.mkdir()
    segment(second, 0).touch()
    for kind in (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
        segment(second, 0, kind).touch()
    (second / "leader-epoch-checkpoint").write_bytes(b"0\n0\n")
    (second / "partition.metadata").write_bytes(render_partition_metadata(UUID(int=77)))
    return second / "partition.metadata", -1


def unreadable(log_dir: Path) -> tuple[Path, int]:
    """A link to nothing cannot be read, even by root."""
    log = segment(log_dir / "plain-0", 0)
    log.unlink()
    log.symlink_to(log_dir / "nowhere")
    forget_end(log_dir, "plain")
    return log, -1


def not_regular(log_dir: Path) -> tuple[Path, int]:
    """Nothing ever writes to it: opening it would wait for ever."""
    index = segment(log_dir / "plain-0", 0, FileKind.TIME_INDEX)
    index.unlink()
    os.mkfifo(index)
    return index, -1


def fifo_as_log(log_dir: Path) -> tuple[Path, int]:
    log = segment(log_dir / "plain-0", 0)
    log.unlink()
    os.mkfifo(log)
    forget_end(log_dir, "plain")
    return log, -1


def fifo_as_checkpoint(log_dir: Path) -> tuple[Path, int]:
    path = log_dir / "log-start-offset-checkpoint"
    path.unlink()
    os.mkfifo(path)
    return path, -1


DAMAGES: dict[Damage, str] = {
    **{
        damage: damage.code or damage.name
        for damage in (*WRITTEN, checkpoint_partition, interrupted_cleaning, waiting_swap, staged_useless)
    },
    epochs_that_fall: "epoch_order",
    topic_id: "topic_id",
    unreadable: "unreadable",
    not_regular: "not_regular",
    fifo_as_log: "not_regular",
    fifo_as_checkpoint: "not_regular",
}
