"""One shot: the order of a cleaning (architecture 3), gone through once for what the requests name.

In the daemon the same steps have queues between them: each is taken when its time has come, for logs that `PartitionStates`
has given out, and what becomes of it is an event instead of a result.

====================  ========================================  ====================================================
step                  here                                      in the daemon
====================  ========================================  ====================================================
lock                  until the run ends                        `Ownership`, as long as it works in the directory
leave out             each log that is not touched is a result  `Judge`; `PartitionStates` refuses them
recover               where no broker owns the directory        `Ownership.recover`, once nobody has `.lock`
commit what waits     `Committer.commit`                        `CommitRounds`, as soon as it may be committed
reset checkpoints     of all compacted logs                     `Retainer`, at each round of the cleaner
roll                  a log that cannot be rolled has failed    a job that asks for it; the others stay as they were
examine               `examine_all`                             the engine
plan, write, stage    `Cleaner`, while another job is written   the engine, a job for each worker
commit                `Committer.settle`; `in_rounds`          `Cleanings`, by what the cluster has configured now
retain                `retain_log`, of compacted logs           `Retainer`, when it is time
====================  ========================================  ====================================================
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from cleanerd.broker_agent.brokers import LiveBrokers
from cleanerd.cleaning.batching import Ending, one_ahead, one_by_one
from cleanerd.cleaning.choose import Candidate, partitions
from cleanerd.cleaning.clean import Cleaner, CleaningJob
from cleanerd.cleaning.directory import Directory, Run, job_failed, jobs_of
from cleanerd.cleaning.knowledge import informed, node_setting
from cleanerd.cleaning.phases import Stopwatch
from cleanerd.cleaning.result import NO_LOG, CleanRequest, LogResult, Progress
from cleanerd.cleaning.wanted import ConfiguredNow
from cleanerd.env.clock import Clock
from cleanerd.env.files import Files, RealFiles
from cleanerd.errors import DirOffline, JobFailed, each_log
from cleanerd.format.names import TopicPartition
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.metadata_log import why_other_node
from cleanerd.storage.no_log_dir import why_no_log_dir
from cleanerd.storage.replicas import FollowedReplicas
from cleanerd.storage.whose import whose

_OfLog = TypeVar("_OfLog", Candidate, LogResult)


def clean_once(
    requests: Sequence[CleanRequest],
    progress: Progress,
    clock: Clock,
    *,
    session: LazySpark,
    files: Files | None = None,
) -> list[LogResult]:
    """Clean once and return a result per log. The session stays open; it is used only if there is something to clean.

    `requests`: one for each node. They differ in log directories and configuration; the limits of the first hold for all.
    """
    files = files or RealFiles()
    cleaner = Cleaner(requests[0], progress, clock, files, session)
    results = dict[tuple[TopicPartition, str], LogResult]()
    followed = FollowedReplicas(files)
    with contextlib.ExitStack() as stack:

        def run_of(request: CleanRequest) -> Run:
            brokers = stack.enter_context(
                contextlib.closing(LiveBrokers(files, clock, lambda: request.config))
            )
            configured, request = ConfiguredNow(request, files), informed(request, followed)
            return Run(request, cleaner, progress, brokers, configured, results, stack)

        directories = [found for request in requests for found in _directories(run_of(request), files, clock)]
        OneShot(cleaner, clock, directories).run(dry_run=requests[0].dry_run)
    return list(results.values())


def _directories(run: Run, files: Files, clock: Clock) -> Iterator[Directory]:
    """The directories of a node; one that cannot be opened becomes a failed result."""
    request = run.request
    for path in request.log_dirs:
        directory = None
        with each_log(path) as place:
            found = known_log_dir(request, files, clock, path)
            if found is not None:
                directory = Directory(run, found, partitions(found, request))
        if place.error is not None:
            run.add(LogResult.of_error(NO_LOG, path, place.error))
        elif directory is not None:
            yield directory


def known_log_dir(request: CleanRequest, files: Files, clock: Clock, path: str) -> LogDir | None:
    """The log directory at a path; None where none is, of which the command line warns.

    Raises DirOffline where it is not known whose it is, or it is another node's; OSError.
    """
    if why_no_log_dir(files, path) is not None:
        return None
    # Also those that are configured but not asked for: they may belong to the same broker.
    log_dirs = tuple(dict.fromkeys((*request.log_dirs, *request.config.log_dirs)))
    node = node_setting(request.configuration) if request.configuration is not None else None
    found = whose(files, path, node, thorough=True)
    why = found.damage or why_other_node(files, path, request.config)
    if why is not None:
        raise DirOffline(why)
    return LogDir.at(files, path, clock, log_dirs, found)


class OneShot:
    """A cleaning of several log directories, in common jobs: a small directory leaves no core idle.

    Whatever happens to one log, or to one directory as a whole, becomes its result; the others go on.
    """

    def __init__(self, cleaner: Cleaner, clock: Clock, directories: Iterable[Directory]) -> None:
        self._cleaner, self._clock = cleaner, clock
        self._directories = {directory.path: directory for directory in directories}

    def run(self, *, dry_run: bool) -> None:
        """Go through all steps; those of a directory ask nothing of the others."""
        self._each(Directory.prepare)
        if dry_run:
            self._each(Directory.count)
        else:
            self._clean([one for directory in self._directories.values() for one in directory.candidates])
        self._each(Directory.retain)

    def _each(self, step: Callable[[Directory], None]) -> None:
        """A step. Where it goes wrong as a whole, nothing more is done."""
        for directory in self._directories.values():
            with each_log(directory.path) as boundary:
                step(directory)
            if boundary.error is not None:
                directory.fail(boundary.error)

    def _clean(self, candidates: list[Candidate]) -> None:
        with each_log(", ".join(self._directories)) as jobs:
            self._clean_all(candidates)
        if jobs.error is not None:
            for directory, _ in self._by_directory(candidates):
                directory.fail(jobs.error)

    def _clean_all(self, candidates: list[Candidate]) -> None:
        """Job by job: while one is written, the one before it is staged and committed, and the one behind it planned."""
        jobs = one_ahead(self._plan, jobs_of(candidates))
        written: list[CleaningJob] = []
        with contextlib.closing(jobs), ThreadPoolExecutor(1, "cleanerd-commit") as pool:
            for job, planned in jobs:
                ending = Ending(pool, partial(self._end, written))
                try:
                    try:
                        written = self._write(job, planned, ending)
                    finally:
                        self._take(ending.result())
                except BaseException:
                    self._cleaner.give_up(job)
                    raise
                if any(one.has_rest for one in written):  # a log that is under way takes room
                    self._take(self._end(written))
                    written = []
            self._take(self._end(written))

    def _plan(self, candidates: list[Candidate]) -> CleaningJob | None:
        """Plan the next job early; not beside a broker, where a waiting result may be all that can be staged."""
        return None if self._owned(candidates) else self._cleaner.plan(candidates)

    def _owned(self, candidates: list[Candidate]) -> dict[str, str | None]:
        """As `Cleaner.plan` takes it."""
        owned = [directory.owned() for directory, _ in self._by_directory(candidates)]
        return {path: why_not for one in owned for path, why_not in one.items()}

    def _write(
        self,
        candidates: list[Candidate],
        planned: "Future[CleaningJob | None]",
        ending: Ending[list[LogResult]],
    ) -> list[CleaningJob]:
        plan, owned = planned.result(), self._owned(candidates)
        if owned:
            plan = None
            ending.wait()  # what it stages takes room

        def write(some: Sequence[Candidate]) -> list[CleaningJob]:
            job = plan if some is candidates else None
            return [self._cleaner.write(job or self._cleaner.plan(some, owned), before=ending)]

        return one_by_one(write, candidates, self._failed)

    def _failed(self, candidate: Candidate, error: JobFailed) -> CleaningJob:
        """A finished job for a log of which nothing was written."""
        return CleaningJob([], Stopwatch(self._clock), [], [job_failed(candidate, error)])

    def _end(self, written: list[CleaningJob]) -> list[LogResult]:
        """Stage and commit what a job has written."""
        staged = [result for one in written for result in self._cleaner.end(one)]
        return [
            settled
            for directory, mine in self._by_directory(staged)
            for settled in directory.committer.settle(mine)
        ]

    def _take(self, settled: list[LogResult]) -> None:
        for result in settled:
            self._directories[result.log_dir].take(result)

    def _by_directory(self, found: Iterable[_OfLog]) -> list[tuple[Directory, list[_OfLog]]]:
        mine: dict[str, list[_OfLog]] = {}
        for one in found:
            mine.setdefault(one.log_dir, []).append(one)
        return [(self._directories[path], of_it) for path, of_it in mine.items()]
