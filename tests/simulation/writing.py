"""The steps of those who write: appends, rolls, truncations, ends and deaths of writers, deletions of records."""

from collections.abc import Callable

from cleanerd.cleaning.delete_records import delete_records
from cleanerd.config.load import resolve
from cleanerd.config.sources import read_sources
from cleanerd.env.files import RealFiles
from cleanerd.errors import CleanerdError, DirOffline, LockHeld
from cleanerd.storage.log_dir import LogDir
from tests.simulation import judge
from tests.simulation.rules import Violation
from tests.simulation.stage import Stage
from tests.simulation.writer import Log

_DELETE = resolve(read_sources()).topic("any").but(cleanup_policy=("delete",))


class Writing:
    """Of the logs of a stage."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def step(self) -> None:
        stage = self._stage
        log, draw = stage.chance.choice(stage.logs), stage.chance.random()
        if stage.broker is not None:
            stage.broker.write(log, draw)
            return
        stage.maybe_killed(0.02, 12)
        if draw > 0.97:
            self._delete_records(log)
        else:
            self.act(log, "writer", lambda notes: self._write(log, draw, notes))

    def _write(self, log: Log, draw: float, notes: list[str]) -> None:
        if log.writer is None:
            self.open(log)
            notes.append("opened")
        elif draw < 0.80:
            notes.extend(log.append() for _ in range(self._stage.chance.choice([1, 3, 8])))
        elif draw < 0.90:
            log.writer.roll()
            notes.append("rolled")
        elif draw < 0.93:
            log.close()
            notes.append("closed")
        else:
            self._truncate(log)
            notes.append(f"truncated to {log.model.end}")

    def act(self, log: Log, actor: str, work: Callable[[list[str]], object]) -> bool:
        """`work` as the writer of a log, who dies if he is killed or his disk fails; whether he lives."""
        stage, notes = self._stage, list[str]()
        opener, stage.disk.opener = stage.disk.opener, str(log.tp)
        try:
            is_alive = stage.act(actor, lambda: work(notes))
        except LockHeld:
            notes.append("the lock is held")
            is_alive = True
        except (OSError, DirOffline) as error:
            notes.append(str(error))
            is_alive = False
        finally:
            stage.disk.opener = opener
        if not is_alive:
            stage.counts["writers killed"] += 1
            notes.append("killed")
            log.die()
        stage.note(f"{log.tp} {'; '.join(notes)}")
        return is_alive

    def open(self, log: Log) -> None:
        log.open()
        assert log.writer is not None
        log.model.reopened(log.writer.log_end_offset)
        if log.cut is not None:  # its writer died in a truncation: the log is a beginning of what it was
            end = log.writer.log_end_offset
            if end < log.cut:
                raise Violation(
                    f"a truncation to {log.cut} that was interrupted left a log that ends at {end}"
                )
            self.truncated(log, end)

    def truncated(self, log: Log, offset: int) -> None:
        log.cut = None
        log.model.truncate(offset)
        lying = judge.read(log.directory)
        left = {batch.first for batch in lying.batches}
        for (
            batch
        ) in log.model.sent:  # what went with a commit that the truncation finished, was judged before it
            log.model.gone.update(r.offset for r in batch.records if r.offset not in lying.offsets)
            if batch.first not in left:
                log.model.dropped.add(batch.first)
        log.producers.clear()

    def cut_offset(self, log: Log, least: int) -> int | None:
        """Where a log may be truncated, near its end and not below `least`; None: not there."""
        assert log.writer is not None
        offset = self._stage.chance.randint(max(log.model.end - 12, 0), log.model.end)
        if not max(judge.read(log.directory).bases[0], least) <= offset < log.writer.log_end_offset:
            return None
        return None if any(batch.first < offset <= batch.last for batch in log.model.sent) else offset

    def _truncate(self, log: Log) -> None:
        offset = self.cut_offset(log, 0)
        if offset is not None:
            assert log.writer is not None
            log.cut = offset
            log.writer.truncate(offset)
            self.truncated(log, offset)

    def _delete_records(self, log: Log) -> None:
        """As `cleanerd delete-records` would, beside daemon and writer. Killed, it has raised the log start, or has not."""
        stage, model = self._stage, log.model
        offset = stage.chance.randint(0, model.end)
        notes: list[str] = []

        def work() -> None:
            try:
                model.start = max(model.start, offset)
                log_dir = LogDir.at(RealFiles(), log.log_dir, stage.clock)
                deleted = delete_records(log_dir, log.tp, offset, _DELETE)
                notes.append(f"starts at {deleted.log_start_offset}, {deleted.segments} segments went")
                stage.counts["records deleted"] += 1
            except (CleanerdError, OSError) as error:
                notes.append(str(error))

        if log.writer is not None:
            stage.act("deleter", work)
            stage.note(f"{log.tp} records below {offset} are deleted: {'; '.join(notes)}")
