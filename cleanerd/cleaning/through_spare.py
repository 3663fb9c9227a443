"""Step (e) of a rescue: the group of a log that frees the most is cleaned on a spare, and takes the place of its sources."""

import contextlib
from dataclasses import dataclass, replace

from cleanerd.cleaning.choose import examine_all
from cleanerd.cleaning.clean import Cleaner
from cleanerd.cleaning.commit.checks import Checks
from cleanerd.cleaning.commit.host import AsRequested, Commit
from cleanerd.cleaning.knowledge import informed
from cleanerd.cleaning.outcomes import Staged
from cleanerd.cleaning.result import CleanRequest, LogResult, Progress
from cleanerd.cleaning.wanted import ConfiguredNow
from cleanerd.env.clock import Clock
from cleanerd.env.files import Files
from cleanerd.errors import each_log
from cleanerd.format.names import TopicPartition
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.storage.log_dir import LogDir, Owner
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.replicas import FollowedReplicas
from cleanerd.storage.spare import check_spare, commit_from_spare, interrupted, on_spare, read_back
from cleanerd.storage.staged import discard_staged


def why_no_spare(log_dir: LogDir, spare: str | None) -> str | None:
    """Why nothing of the directory goes through the spare that was given; None if it can, or if none was."""
    if spare is None:
        return None
    if log_dir.owner is not Owner.STOPPED_BROKER:
        return "--spare helps only in the directory of a broker (meta.properties) that does not run"
    with each_log(spare) as checked:
        check_spare(spare, log_dir.path)
    return None if checked.error is None else str(checked.error)


@dataclass(frozen=True, slots=True)
class ThroughSpare:
    """`request`: as for `clean_once`, of a rescue. `spare`: the directory on another file system."""

    log_dir: LogDir
    request: CleanRequest
    progress: Progress
    clock: Clock
    session: LazySpark
    files: Files
    spare: str

    def exchange(self, tp: TopicPartition) -> LogResult:
        """Clean the group of a log that frees the most, on the spare, and have it take its place. Raises CleanerdError."""
        files, log_dir = self.files, self.log_dir
        spare = on_spare(self.spare, log_dir.path, str(tp))
        partition, staged = log_dir.partition(tp), PartitionDir(files, spare)
        of_log = replace(self.request, log_dirs=(log_dir.path,), logs=frozenset({tp}), spare=spare)
        request = informed(of_log, FollowedReplicas(files))
        try:
            with log_dir.cleaned_by_us():
                cleaner = Cleaner(request, self.progress, self.clock, files, self.session)
                (candidate,) = examine_all(log_dir, [tp], request, cleaner.pace_of)
                if isinstance(candidate, LogResult):
                    return candidate
                (result,) = cleaner.stage([candidate])
                if isinstance(result.outcome, Staged):
                    read_back(staged)
                    with log_dir.lock() as lock:
                        lock.check()
                        host = AsRequested(log_dir, request, ConfiguredNow(request, files))
                        Checks(log_dir, host, [tp]).ready(Commit(tp), staged)
                        commit_from_spare(partition, staged)
                return result
        finally:
            if not interrupted(partition):
                with contextlib.suppress(OSError):
                    discard_staged(staged)
                    files.rmdir(spare)
