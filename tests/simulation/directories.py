"""The log directories of a world, each on a file system of its own: they fail alone, and nothing gets from one into another.

What may be wrong with one
    DEAD        every call fails: the disk is gone, or its file system was shut down
    UNREADABLE  the disk fails; what was looked up before is known still
    READ_ONLY   nothing can be changed, as where a file system has found damage in itself

Checked before every change that a daemon makes (`check`)
    a directory of a partition is changed only where the log lies: no `-future`, `-delete` or `-stray` one of a broker's
    a checkpoint gets no entry of a partition that is not there, nor one that another directory has an entry of
"""

import errno
import os
import shutil
from enum import Enum
from typing import TYPE_CHECKING

from cleanerd.format import names
from cleanerd.format.checkpoint import parse_offset_checkpoint
from cleanerd.format.errors import FormatError
from cleanerd.format.names import Suffix, TopicPartition
from tests.simulation.disk import content_of

if TYPE_CHECKING:
    from tests.simulation.cleaner import Cleanerd
    from tests.simulation.stage import Stage
    from tests.simulation.writer import Log

LOOKS = ("open", "read", "update", "look")
"""Operations that change nothing; `update` opens a file so that it can be changed."""
CHECKPOINTS = (names.CLEANER_OFFSET_CHECKPOINT, names.LOG_START_CHECKPOINT)
"""Those that cleanerd writes."""
STAGED = Suffix.STAGED.value


class Trouble(Enum):
    """See the head of this module."""

    DEAD = errno.EIO, ("look", "open", "read")
    UNREADABLE = errno.EIO, ("open", "read")
    READ_ONLY = errno.EROFS, ()

    def fails(self, operation: str) -> bool:
        return operation not in LOOKS or operation == "update" or operation in self.value[1]


class Directories:
    """Those of a stage. `offline`: what is wrong with some of them."""

    def __init__(self, stage: "Stage") -> None:
        self._stage = stage
        self.offline: dict[str, Trouble] = {}

    def of(self, path: str) -> str | None:
        for log_dir in self._stage.log_dirs:
            if path == log_dir or path.startswith(f"{log_dir}/"):
                return log_dir
        return None

    def is_of_partition(self, path: str) -> bool:
        return any(path.startswith(f"{log_dir}/t") for log_dir in self._stage.log_dirs)

    def online(self) -> list[str]:
        return [log_dir for log_dir in self._stage.log_dirs if log_dir not in self.offline]

    def may_keep(self, log: "Log") -> bool:
        """Whether one that fails may keep a log elsewhere from being clean: it has an entry of it that cannot go, or had a
        future replica of it when it was seen last, with which its broker may go on.
        """
        if log.targets & self.offline.keys():
            return True
        paths = (f"{log_dir}/{names.CLEANER_OFFSET_CHECKPOINT}" for log_dir in self.offline)
        return any(log.tp in _entries(path) for path in paths)

    def something(self) -> None:
        chance = self._stage.chance
        if self.offline:
            self.mend(chance.choice(sorted(self.offline)))
        else:
            self.fail(chance.choice(self._stage.log_dirs), chance.choice(list(Trouble)))

    def fail(self, log_dir: str, trouble: Trouble) -> None:
        """Something is wrong with a directory from now on: its broker lets go of what lies there."""
        stage = self._stage
        stage.note(f"{log_dir} is {trouble.name}")
        stage.counts["directories offline"] += 1
        self.offline[log_dir] = trouble
        if stage.broker is not None:
            stage.broker.lose(log_dir)

    def mend(self, log_dir: str) -> None:
        """It works again. A broker does not notice before its next start; then it must not go on with a move that the daemon
        could not see, and its operator has deleted the copy (architecture 2).
        """
        self._stage.note(f"{log_dir} works again")
        del self.offline[log_dir]
        for log in self._stage.logs:
            if log.future is not None and log.is_move_unseen and self.of(log.future) == log_dir:
                shutil.rmtree(log.future)
                log.future = None
                self._stage.counts["moves unseen"] += 1

    def note_unseen_moves(self, daemon: "Cleanerd") -> None:
        """Logs that their broker moves to a directory that fails now, and of which the daemon does not know that."""
        for log in self._stage.logs:
            target = self.of(log.future) if log.future is not None else None
            if target in self.offline and log.tp not in daemon.parts.inventory.futures(target):
                log.is_move_unseen = True

    # -- before every operation

    def fail_if_offline(self, operation: str, path: str) -> None:
        """Raises OSError."""
        if not self.offline:
            return
        log_dir = self.of(path)
        trouble = self.offline.get(log_dir or "")
        if trouble is not None and trouble.fails(operation):
            number = trouble.value[0]
            raise OSError(number, os.strerror(number), path)

    def check(self, operation: str, path: str) -> None:
        """A change that the daemon is about to make, by the rules at the head of this module."""
        source, _, target = path.partition(" -> ")
        log_dir = self.of(source)
        if log_dir is None:
            return
        name = source[len(log_dir) + 1 :].partition("/")[0]
        if operation == "rename" and target in CHECKPOINTS:
            self._check_checkpoint(log_dir, source, target)
        # by a descriptor that it has had since the directory had another name
        is_staged = source.endswith(STAGED)
        if "-" in name and name[0] == "t" and not is_staged and operation != "fsync":
            self._check_partition(operation, path, log_dir, name)

    def _check_partition(self, operation: str, path: str, log_dir: str, name: str) -> None:
        here = {str(log.tp) for log in self._stage.logs if log.log_dir == log_dir}
        if self._stage.is_kafka and name not in here:
            self._stage.problems.append(f"{operation} {path}: no log lies there, but in {sorted(here)}")

    def _check_checkpoint(self, log_dir: str, source: str, target: str) -> None:
        new, old = _entries(source), _entries(f"{log_dir}/{target}")
        for tp in sorted(new.keys() - old.keys()):
            if not os.path.isdir(f"{log_dir}/{tp}"):
                self._stage.problems.append(f"{log_dir}/{target} gets an entry of {tp}, which is not there")
            for other in self._stage.log_dirs:
                is_two = other != log_dir and tp in _entries(f"{other}/{target}")
                if is_two and target == names.CLEANER_OFFSET_CHECKPOINT and other not in self.offline:
                    self._stage.problems.append(f"{log_dir}/{target} gets an entry of {tp}, {other} has one")


def _entries(path: str) -> dict[TopicPartition, int]:
    try:
        return dict(parse_offset_checkpoint(content_of(path)))
    except (FileNotFoundError, FormatError):
        return {}
