"""A replica that its broker moves to another of its log directories (KIP-113), while it lives (spec disk A5, rule 2.10).

begins    an empty `-future` directory in the other log directory
follows   segment after segment is copied, as they lie there by then
is over   the rest is copied; the `-future` directory gets the name of the partition, the old one becomes a `-delete` one,
          which is deleted a minute later; the first dirty offset goes with it where the broker has a cleaner

A broker that starts goes on with what it finds. Where two directories of one partition could be left it does not die.
"""

import os
import shutil
from collections.abc import Callable

from cleanerd.format import names
from cleanerd.format.checkpoint import render_offset_checkpoint
from cleanerd.format.names import TopicPartition
from cleanerd.storage.checkpoints import read_offsets
from cleanerd.storage.replace import replace_file
from cleanerd.storage.segments import live_bases
from tests.simulation import judge
from tests.simulation.stage import FILES, Stage
from tests.simulation.writer import Log
from tests.simulation.writing import Writing

DELETE_DELAY_NS = 60 * 10**9
CLEANER_SHARE = 0.7
"""Of the brokers that have a cleaner of their own, if with nothing to clean."""
FUTURE, DELETE = "-future", "-delete"
_COPIED = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")


def set_entry(path: str, topic_partition: TopicPartition, offset: int | None) -> None:
    """Write an entry of a checkpoint as a broker does: the others stay as they are. None drops it."""
    before = read_offsets(FILES, path)
    after = {tp: other for tp, other in before.items() if tp != topic_partition}
    if offset is not None:
        after[topic_partition] = offset
    if after != before:
        replace_file(FILES, path, render_offset_checkpoint(after), like=None)


class Moving:
    """Of the broker of a stage; `log_dirs`: those that it has.

    `has_cleaner`: of its own, which has nothing to clean. Without one nothing cares for the first dirty offsets (2.11).
    """

    def __init__(self, stage: Stage, writing: Writing, log_dirs: Callable[[], list[str]]) -> None:
        self._stage, self._writing, self._log_dirs = stage, writing, log_dirs
        self.has_cleaner = stage.chance.random() < CLEANER_SHARE
        self._due: dict[str, int] = {}  # when a directory is deleted, ns

    def step(self, log: Log, notes: list[str]) -> None:
        others = [log_dir for log_dir in self._log_dirs() if log_dir != log.log_dir]
        if log.future is None and others:
            self._begin(log, self._stage.chance.choice(others), notes)
        elif log.future is not None and os.path.dirname(log.future) in others:
            draw = self._stage.chance.random()
            if draw < 0.85:
                self._copy(log, self._stage.chance.choice([1, 2, 100]))
                notes.append(f"has copied {sorted(log.copied)}")
            else:
                self.finish(log, notes)
        self._delete()

    def load(self, log: Log) -> None:
        if log.future is not None and not os.path.isdir(log.future):
            log.future = None
        for log_dir in self._log_dirs():
            for name in sorted(os.listdir(log_dir)):
                path = f"{log_dir}/{name}"
                if name.startswith(f"{log.tp}.") and name.endswith(DELETE):
                    self._due.setdefault(path, self._stage.clock.ns + DELETE_DELAY_NS)
                elif name.startswith(f"{log.tp}.") and name.endswith(FUTURE) and path != log.future:
                    shutil.rmtree(path)

    def truncated(self, log: Log, keeper: int) -> None:
        """A log ends in the segment `keeper`: what was copied from there on goes."""
        if log.future is not None and os.path.dirname(log.future) in self._log_dirs():
            for name in sorted(os.listdir(log.future)):
                if int(name[:20]) >= keeper:
                    FILES.unlink(f"{log.future}/{name}")
            FILES.fsync_dir(log.future)
        log.copied = {base for base in log.copied if base < keeper}

    def _begin(self, log: Log, target: str, notes: list[str]) -> None:
        log.copied.clear()
        log.is_move_unseen = False
        log.targets.add(target)
        log.future = f"{target}/{log.tp}.{self._stage.chance.getrandbits(128):032x}{FUTURE}"
        os.mkdir(log.future)
        FILES.fsync_dir(target)
        self._stage.counts["moves begun"] += 1
        notes.append(f"begins to move to {target}")

    def _copy(self, log: Log, most: int, *, with_active: bool = False) -> None:
        assert log.future is not None
        bases = live_bases(log.directory)
        if log.copied and max(log.copied) < bases[0]:  # out of range: it begins where the log does now
            log.copied.clear()
        for name in sorted(os.listdir(log.future)):
            if int(name[:20]) not in log.copied:  # or its copy was not whole
                FILES.unlink(f"{log.future}/{name}")
        missing = [base for base in bases if base not in log.copied]
        for base in missing[:most]:
            if base == bases[-1] and not with_active:
                break
            self._copy_files(log, lambda name, base=base: int(name[:20]) == base)  # type: ignore[misc]
            if base != bases[-1]:  # the active one grows where its broker dies before the move is over
                log.copied.add(base)

    def _copy_files(self, log: Log, is_wanted: Callable[[str], bool]) -> None:
        assert log.future is not None
        for name in sorted(os.listdir(log.directory)):
            if name[:20].isdigit() and name[20:] in _COPIED and is_wanted(name):
                FILES.write(f"{log.future}/{name}", FILES.read(f"{log.directory}/{name}"))
                FILES.fsync(f"{log.future}/{name}")
        FILES.fsync_dir(log.future)

    def finish(self, log: Log, notes: list[str]) -> None:
        assert log.future is not None
        self._stage.kill_in = None
        target, future, was = os.path.dirname(log.future), log.future, log.directory
        # What is gone there is gone: nobody looked while the broker was dead.
        log.model.window.observe(self._stage.clock.now_ms(), self._stage.rules)
        judge.check(log.model, was, reads=False)
        if log.writer is not None:
            log.close()
        self._copy(log, 1 << 30, with_active=True)
        self._copy_files(log, lambda name: name.endswith(".snapshot"))
        for name in (names.PARTITION_METADATA, names.LEADER_EPOCH_CHECKPOINT):
            if os.path.exists(f"{was}/{name}"):
                FILES.write(f"{future}/{name}", FILES.read(f"{was}/{name}"))
                FILES.fsync(f"{future}/{name}")
        FILES.fsync_dir(future)
        first = live_bases(was)[0]
        os.rename(future, f"{target}/{log.tp}")
        FILES.fsync_dir(target)
        going = f"{was}.{self._stage.chance.getrandbits(128):032x}{DELETE}"
        self._due[going] = self._stage.clock.ns + DELETE_DELAY_NS
        os.rename(was, going)
        FILES.fsync_dir(log.log_dir)
        if self.has_cleaner:
            self._take_along(log, target)
        log.log_dir, log.future = target, None
        back = {offset for offset in judge.read(log.directory).offsets if offset < first}
        log.model.brought_back(back)  # retention has taken it where it was
        self._stage.counts["moves finished"] += 1
        notes.append(f"has moved to {target}")
        self._writing.open(log)

    @staticmethod
    def _take_along(log: Log, target: str) -> None:
        """The first dirty offset (`alterCheckpointDir`)."""
        old, new = (f"{log_dir}/{names.CLEANER_OFFSET_CHECKPOINT}" for log_dir in (log.log_dir, target))
        offset = read_offsets(FILES, old).get(log.tp)
        if offset is not None:
            set_entry(old, log.tp, None)
            set_entry(new, log.tp, offset)

    def _delete(self) -> None:
        for path, due_ns in list(self._due.items()):
            if due_ns < self._stage.clock.ns and os.path.dirname(path) in self._log_dirs():
                shutil.rmtree(path, ignore_errors=True)
                del self._due[path]
