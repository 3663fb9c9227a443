"""Damage to what lies beside the records: epochs, checkpoints, names and kinds of files, states of a directory.

As in `damage`, each returns (path of the finding, byte or -1).
"""

import os
from pathlib import Path
from uuid import UUID

from cleanerd.format.names import FileKind
from cleanerd.format.partition_metadata import render_partition_metadata
from tests.tools.insight.damage import ID, Damage, forget_end, overwrite, starts
from tests.tools.insight.logdirs import segment


def epochs(log_dir: Path) -> tuple[Path, int]:
    path = log_dir / "plain-0" / "leader-epoch-checkpoint"
    path.write_bytes(b"0\n2\n0 0\n")
    return path, 2


def epochs_missing(log_dir: Path) -> tuple[Path, int]:
    path = log_dir / "plain-0" / "leader-epoch-checkpoint"
    path.unlink()
    return path, -1


def epoch_order(log_dir: Path) -> tuple[Path, int]:
    path = log_dir / "plain-0" / "leader-epoch-checkpoint"
    path.write_bytes(b"0\n1\n5 0\n")
    return path, -1


def epochs_that_fall(log_dir: Path) -> tuple[Path, int]:
    """The epoch of a batch is outside of its CRC."""
    log = segment(log_dir / "plain-0", 0)
    path = log_dir / "plain-0" / "leader-epoch-checkpoint"
    path.write_bytes(b"0\n1\n3 0\n")
    for position in starts(log)[:-1]:
        overwrite(log, position + 12, (3).to_bytes(4))
    return log, -1


def epoch_beyond_end(log_dir: Path) -> tuple[Path, int]:
    path = log_dir / "plain-0" / "leader-epoch-checkpoint"
    path.write_bytes(b"0\n2\n0 0\n7 99\n")
    return path, -1


def checkpoint(log_dir: Path) -> tuple[Path, int]:
    path = log_dir / "recovery-point-offset-checkpoint"
    path.write_bytes(b"1\n0\n")
    return path, 0


def checkpoint_partition(log_dir: Path) -> tuple[Path, int]:
    path = log_dir / "cleaner-offset-checkpoint"
    path.write_bytes(b"0\n2\ncleaned 0 32\nelsewhere 7 5\n")
    return path, -1


def checkpoint_beyond_end(log_dir: Path) -> tuple[Path, int]:
    path = log_dir / "cleaner-offset-checkpoint"
    path.write_bytes(b"0\n1\ncleaned 0 35\n")
    return path, -1


def log_start_beyond_end(log_dir: Path) -> tuple[Path, int]:
    path = log_dir / "log-start-offset-checkpoint"
    path.write_bytes(b"0\n1\nplain 0 17\n")
    return path, -1


def foreign_directory(log_dir: Path) -> tuple[Path, int]:
    (log_dir / "lost+found").mkdir()
    return log_dir / "lost+found", -1


def foreign_file(log_dir: Path) -> tuple[Path, int]:
    path = log_dir / "plain-0" / "notes.txt"
    path.touch()
    return path, -1


def misnamed_file(log_dir: Path) -> tuple[Path, int]:
    path = log_dir / "plain-0" / "backup.log"
    path.touch()
    return path, -1


def short_name(log_dir: Path) -> tuple[Path, int]:
    path = log_dir / "plain-0" / "17.log"
    path.touch()
    return path, -1


def meta_properties(log_dir: Path) -> tuple[Path, int]:
    path = log_dir / "meta.properties"
    path.write_text("version=7\n")
    return path, 0


def partition_metadata(log_dir: Path) -> tuple[Path, int]:
    path = log_dir / "plain-0" / "partition.metadata"
    path.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA")
    return path, 21


def partition_metadata_missing(log_dir: Path) -> tuple[Path, int]:
    path = log_dir / "plain-0" / "partition.metadata"
    path.unlink()
    return path, -1


def topic_id(log_dir: Path) -> tuple[Path, int]:
    second = log_dir / "plain-1"
    second.mkdir()
    segment(second, 0).touch()
    for kind in (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
        segment(second, 0, kind).touch()
    (second / "leader-epoch-checkpoint").write_bytes(b"0\n0\n")
    (second / "partition.metadata").write_bytes(render_partition_metadata(UUID(int=77)))
    return second / "partition.metadata", -1


def interrupted_cleaning(log_dir: Path) -> tuple[Path, int]:
    path = log_dir / "plain-0" / f"{0:020d}.log.cleaned"
    path.touch()
    return path, -1


def deleted_file(log_dir: Path) -> tuple[Path, int]:
    path = log_dir / "plain-0" / f"{0:020d}.log.deleted"
    path.touch()
    return path, -1


def delete_directory(log_dir: Path) -> tuple[Path, int]:
    (log_dir / f"gone-0.{ID}-delete").mkdir()
    return log_dir / f"gone-0.{ID}-delete", -1


def stray_directory(log_dir: Path) -> tuple[Path, int]:
    (log_dir / f"gone-0.{ID}-stray").mkdir()
    return log_dir / f"gone-0.{ID}-stray", -1


def future_directory(log_dir: Path) -> tuple[Path, int]:
    (log_dir / f"moving-0.{ID}-future").mkdir()
    return log_dir / f"moving-0.{ID}-future", -1


def staged_useless(log_dir: Path) -> tuple[Path, int]:
    path = log_dir / "plain-0" / f"{0:020d}.log.cleanerd"
    path.touch()
    return path, -1


def truncation(log_dir: Path) -> tuple[Path, int]:
    path = log_dir / "plain-0" / "cleanerd-generation"
    path.write_text("abc truncating")
    return path, -1


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
    epochs: "epochs",
    epochs_missing: "epochs_missing",
    epoch_order: "epoch_order",
    epochs_that_fall: "epoch_order",
    epoch_beyond_end: "epoch_beyond_end",
    checkpoint: "checkpoint",
    checkpoint_partition: "checkpoint_partition",
    checkpoint_beyond_end: "checkpoint_beyond_end",
    log_start_beyond_end: "log_start_beyond_end",
    foreign_directory: "foreign_directory",
    foreign_file: "foreign_file",
    misnamed_file: "misnamed_file",
    short_name: "short_name",
    meta_properties: "meta_properties",
    partition_metadata: "partition_metadata",
    partition_metadata_missing: "partition_metadata_missing",
    topic_id: "topic_id",
    interrupted_cleaning: "interrupted_cleaning",
    deleted_file: "deleted_file",
    delete_directory: "delete_directory",
    stray_directory: "stray_directory",
    future_directory: "future_directory",
    staged_useless: "staged_useless",
    truncation: "truncation",
    unreadable: "unreadable",
    not_regular: "not_regular",
    fifo_as_log: "not_regular",
    fifo_as_checkpoint: "not_regular",
}
