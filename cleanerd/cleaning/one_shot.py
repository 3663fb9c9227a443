"""One shot: clean what the requests name (architecture 3, 6).

Per directory: guard against a second cleanerd, recover what an interrupted commit left, commit what an earlier run staged,
examine every partition. Then the candidates of all directories are cleaned, job by job, and compacted logs get their
retention pass (rule 1.28). Whatever happens to one log becomes its result; the others go on. A dry run takes directory by
directory.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
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
from cleanerd.errors import DirOffline, each_log, ours
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
            return Run(request, cleaner, progress, brokers, configured, results)

        directories = [found for request in requests for found in _directories(run_of(request), files, clock)]
        if requests[0].dry_run:
            for directory in directories:
                directory.attempt(directory.count)
        else:
            _Jobs(cleaner, directories, clock).clean()
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


class _Jobs:
    """The cleaning of what lies in several log directories, in common jobs: a small directory leaves no core idle."""

    def __init__(self, cleaner: Cleaner, directories: Sequence[Directory], clock: Clock) -> None:
        self._cleaner = cleaner
        self._clock = clock
        self._directories = {directory.path: directory for directory in directories}

    def clean(self) -> None:
        """Do all work of the node."""
        with contextlib.ExitStack() as stack:
            candidates = [
                candidate
                for directory in self._directories.values()
                for candidate in directory.attempt(partial(directory.prepare, stack)) or ()
            ]
            concerned = self._by_directory(candidates)
            with each_log(", ".join(self._directories)) as jobs:
                self._clean(candidates)
            if jobs.error is not None:
                for directory, _ in concerned:
                    directory.fail(jobs.error)
            for directory in self._directories.values():
                directory.attempt(directory.retain)

    def _clean(self, candidates: list[Candidate]) -> None:
        """Job by job: while one is written, the one before it is staged and committed, and the one behind it planned."""
        jobs = one_ahead(self._plan, jobs_of(candidates))
        written: list[CleaningJob] = []
        with contextlib.closing(jobs), ThreadPoolExecutor(1, "cleanerd-commit") as pool:
            for job, planned in jobs:
                ending = Ending(pool, partial(self._end, written))
                failure = None
                try:
                    try:
                        written = self._write(job, planned, ending)
                    except Exception as error:  # noqa: BLE001 - the job before it is ended first
                        failure = ours(error, job[0].log_dir)
                    self._take(ending.result())
                except BaseException:
                    ending.begin()
                    self._cleaner.give_up(job)
                    raise
                if failure is not None:
                    raise failure
            self._take(self._end(written))

    def _plan(self, candidates: list[Candidate]) -> CleaningJob | None:
        """Plan the next job early; not beside a broker, where a waiting result may be all that can be staged."""
        is_owned = any(directory.is_owned() for directory, _ in self._by_directory(candidates))
        return None if is_owned else self._cleaner.plan(candidates)

    def _write(
        self,
        candidates: list[Candidate],
        planned: "Future[CleaningJob | None]",
        ending: Ending[list[LogResult]],
    ) -> list[CleaningJob]:
        common_plan, free, owned = planned.result(), list[Candidate](), list[Candidate]()
        for directory, mine in self._by_directory(candidates):
            (owned if directory.is_owned() else free).extend(mine)
        if not owned:
            return self._write_some(candidates, ending, common_plan, is_owned=False)
        written = self._write_some(free, ending, None, is_owned=False)
        ending.wait()  # what others have staged counts against a limit
        left = list[Candidate]()
        for directory, mine in self._by_directory(owned):
            failed = directory.failed_if_full(mine)
            written.append(self._ended(failed))
            left += [] if failed else mine
        return written + self._write_some(left, ending, None, is_owned=True)

    def _write_some(
        self,
        candidates: Sequence[Candidate],
        ending: Ending[list[LogResult]],
        common_plan: CleaningJob | None,
        *,
        is_owned: bool,
    ) -> list[CleaningJob]:
        """Write candidates as one job; `common_plan` is the plan for exactly these, None to make one."""

        def write(some: Sequence[Candidate]) -> list[CleaningJob]:
            if not some:
                return []
            job = common_plan if some is candidates else None
            return [self._cleaner.write(job or self._cleaner.plan(some, is_owned=is_owned), before=ending)]

        return one_by_one(write, candidates, lambda one, error: self._ended([job_failed(one, error)]))

    def _ended(self, results: list[LogResult]) -> CleaningJob:
        """A finished job for logs of which nothing was written."""
        return CleaningJob([], is_owned=False, watch=Stopwatch(self._clock), logs=[], results=results)

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
