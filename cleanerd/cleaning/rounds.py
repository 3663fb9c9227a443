"""A log during its cleaning, and the rounds of it: segment groups that are written and committed before others are begun.

Kafka's cleaner swaps group by group, too. So a log shrinks while it is cleaned, needs little room beside its old segments,
and loses little by a kill: what was committed has nothing more to lose, and the next cleaning writes none of it again.
Architecture 3 has why the log is right between two rounds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cleanerd.cleaning.choose import Candidate
from cleanerd.cleaning.outcomes import Outcome, Planned, Staged, Unchanged
from cleanerd.cleaning.plan import CleaningPlan, new_horizon_ms
from cleanerd.cleaning.result import LogResult, Size, Statistics
from cleanerd.cleaning.room import Room, no_space
from cleanerd.cleaning.round_size import round_bytes
from cleanerd.config.model import CleanerdConfig
from cleanerd.env.space import space_of
from cleanerd.errors import CleanerdError, NoSpace
from cleanerd.pipeline.values import IndexedLog, LogWork, RewrittenLog
from cleanerd.policy.verdicts import REMOVED_VERDICTS
from cleanerd.storage.staged import StagedGroup


@dataclass(slots=True)
class LogUnderWay:
    """The state of a log during a cleaning. `size`: before this round. `before`: the last group of the round before it."""

    plan: CleaningPlan
    size: Size
    indexed: IndexedLog | None = None
    rewritten: RewrittenLog | None = None
    staged: Sequence[StagedGroup] = ()
    error: CleanerdError | None = None
    before: StagedGroup | None = None

    @classmethod
    def of(cls, plan: CleaningPlan) -> "LogUnderWay":
        """A log that has been planned, and nothing more."""
        found = plan.candidate.snapshot
        return cls(plan, Size(found.size_bytes, len(found.segments)))

    @property
    def candidate(self) -> Candidate:
        """As it was chosen."""
        return self.plan.candidate

    def stamp(self, now_ms: int) -> None:
        """Let new delete horizons count from now: values go with what is written from here on, not with the plan."""
        plan, indexed = self.plan, self.indexed
        if plan.work.new_horizon_ms >= 0:
            horizon_ms = new_horizon_ms(now_ms, plan.candidate.config, waits=plan.waits)
            self.plan = replace(plan, work=replace(plan.work, new_horizon_ms=horizon_ms))
            if indexed is not None:
                indexed.work = replace(indexed.work, new_horizon_ms=horizon_ms)

    def lack_of_room(self) -> NoSpace | None:
        """Why a log that was only counted could not be cleaned now, not even group by group."""
        groups = [] if self.rewritten is None else self.rewritten.indexed.groups_now
        if self.rewritten is None or not groups:
            return None
        room, work = Room.counted(self.plan, self.rewritten), self.plan.work
        free_bytes = space_of(work.directory).free_bytes - work.least_free_bytes
        needed_bytes = room.peak_bytes if self.plan.waits else room.peak_of(groups[:1])
        return no_space(self.plan, room, needed_bytes, free_bytes) if needed_bytes > free_bytes else None

    @property
    def is_alive(self) -> bool:
        """Whether it has not failed."""
        return self.error is None

    @property
    def work(self) -> LogWork:
        """What has to be read now."""
        if self.indexed is None:
            return self.plan.work
        work, now = self.indexed.work, set(self.indexed.groups_now)
        return replace(work, chunks=tuple(chunk for chunk in work.chunks if chunk.group in now))

    @property
    def groups_left(self) -> int:
        """Groups of later rounds."""
        return 0 if self.indexed is None else len(self.indexed.later_groups)

    def rounds(self, cores: int, config: CleanerdConfig) -> Iterator[Sequence[int]]:
        """Its changed groups, ascending, cut into rounds; all in one where no commit would make room for the next, or where
        all has to be read before the first (`storage.unflushed`).
        """
        assert self.indexed is not None
        reads_first = self.candidate.snapshot.was_unflushed and not self.indexed.is_read
        keys, size_bytes, now = self.indexed.dirty_keys, 0, list[int]()
        most_bytes = round_bytes(cores, config, 0 if keys is None else keys.table.nbytes)
        for number in sorted(self.indexed.changed_groups):
            group_bytes = sum(segment.size_bytes for segment in self.plan.groups[number].sources)
            if now and size_bytes + group_bytes > most_bytes and not self.plan.waits and not reads_first:
                yield now
                size_bytes, now = 0, []
            now.append(number)
            size_bytes += group_bytes
        yield now

    def next_round(self) -> "LogUnderWay":
        """The log once the groups of this round are committed. It is the only one of its job."""
        assert self.indexed is not None
        work, rest = replace(self.plan.work, number=0), self.indexed.rest()
        rest.work = replace(rest.work, number=0)
        return LogUnderWay(replace(self.plan, work=work), self.size, rest, before=self.staged[-1])

    def made(self) -> Outcome:
        """The outcome, unless it has failed."""
        return Staged(groups_left=self.groups_left) if self.staged else Unchanged(self.candidate.basis)

    def untouched(self, outcome: Outcome) -> LogResult:
        """The result where this round leaves it as it was."""
        return replace(self.candidate.result(outcome), before=self.size, after=self.size)

    def result(self, outcome: Outcome) -> LogResult:
        """The result of a round that was written, or counted."""
        indexed, rewritten, plan = self.indexed, self.rewritten, self.plan
        assert indexed is not None
        assert rewritten is not None
        changed, done = [plan.groups[number] for number in indexed.groups_now], indexed.done()
        parts = [part for found in rewritten.parts.values() for part in found]
        replaced = sum(segment.size_bytes for group in changed for segment in group.sources)
        counts = {v.reason: sum(int(part.removed[v]) for part in parts) for v in REMOVED_VERDICTS}
        room = Room.counted(plan, rewritten)
        saved_bytes = sum(part.topic_codec_saves_bytes for part in parts)
        statistics = Statistics(
            bytes_read=sum(summary.bytes for summary in done),
            records_read=sum(summary.records for summary in done),
            removed={reason: count for reason, count in counts.items() if count},
            peak_extra_bytes=room.peak_bytes,
            least_extra_bytes=room.least_bytes,
            frees_bytes=room.frees_bytes,
            linked_bytes=room.linked_bytes,
            topic_codec_saves_bytes=saved_bytes if plan.work.topic_codec else None,
            damaged_indexes=plan.damage_met(indexed),
        )
        after = Size(
            self.size.bytes - replaced + sum(part.size_bytes for part in parts),
            self.size.segments - sum(len(group.sources) - 1 for group in changed),
        )
        return replace(self.untouched(outcome), after=after, statistics=statistics)

    def counted(self, cores: int, config: CleanerdConfig) -> LogResult:
        """The result of a dry run, in which all rounds are one."""
        assert self.rewritten is not None
        assert self.indexed is not None
        room = Room.counted(self.plan, self.rewritten)
        found, peak_bytes, taken_bytes = self.result(Planned(room.why_kept)), 0, 0
        for now in self.rounds(cores, config) if self.indexed.changed_groups else ():
            peak_bytes = max(peak_bytes, taken_bytes + room.peak_of(now))
            taken_bytes += room.kept_bytes(now)
        return replace(found, statistics=replace(found.statistics, peak_extra_bytes=peak_bytes))


Rests = dict[str, LogUnderWay]
"""Logs with groups that are left for another round, by the directory of their new files."""
