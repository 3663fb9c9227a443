"""`verify`: an fsck for Kafka log directories. It only reads, and runs beside a live broker.

    report = verify(["/data/kafka-logs"])
    for finding in report.findings: ...

Every batch is read, its CRC checked, its records decompressed and walked; indexes, transaction indexes, producer snapshots,
leader epochs, checkpoints and names are compared with the batches. Segments are read in several processes. What
goes wrong with one log, also an unreadable disk, is a finding about that log.

Beside a live broker (a process holds `.lock`) the active segment is read up to the checkpointed high watermark and what
grows, rolls or is deleted meanwhile is no finding. A log that is cleaned meanwhile is listed again, and what is new is read.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from cleanerd.env.clock import SystemClock
from cleanerd.format.names import FileKind, TopicPartition

from .findings import Finding, Severity
from .log_dir_check import compare_log_dirs, list_log_dir
from .partition_check import DirFacts, Partition, check_partition, list_partition
from .processes import ReadProgress, answers
from .segment_check import SegmentReport, SegmentTask, check_segment, defect

_LISTED_AGAIN_MAX = 2


@dataclass(slots=True)
class VerifyReport:
    """All findings, and the numbers of files, batches and records that were checked."""

    findings: list[Finding] = field(default_factory=list)
    log_dirs: int = 0
    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    bytes_read: int = 0
    seconds: float = 0.0

    def count(self, severity: Severity) -> int:
        """Findings of a severity."""
        return sum(finding.kind.severity is severity for finding in self.findings)

    def listed(self, least: Severity) -> list[Finding]:
        """Findings that are at least so bad."""
        worst_first = list(Severity)
        wanted = worst_first[: worst_first.index(least) + 1]
        return [finding for finding in self.findings if finding.kind.severity in wanted]

    @property
    def is_sound(self) -> bool:
        """Whether there is no error; warnings do not count."""
        return not self.count(Severity.ERROR)


def verify(
    log_dirs: Sequence[str],
    *,
    topics: Collection[str] = (),
    partitions: Collection[int] = (),
    processes: int | None = None,
    read: ReadProgress | None = None,
) -> VerifyReport:
    """Check log directories, or only some topics or partitions in them. Changes nothing.

    `processes`, `read`: as `answers` has them. Findings are sorted by directory, log, file and position.
    """
    clock = SystemClock()
    started = clock.monotonic_s()
    found_dirs = [list_log_dir(log_dir) for log_dir in log_dirs]
    logs = [
        _listed(found.facts, tp, directory)
        for found in found_dirs
        for tp, directory in found.chosen(topics, partitions)
    ]
    tasks = [task for log in logs for task in log.tasks]
    reports = answers(check_segment, tasks, _killed, processes, read)
    for _ in range(_LISTED_AGAIN_MAX):
        changed = [task for task, one in reports.items() if one is not None and one.has_changed]
        if not changed:
            break
        for task in changed:
            del reports[task]
        logs = [
            log
            if reports.keys() >= set(log.tasks)
            else _listed(log.facts, log.topic_partition, log.directory)
            for log in logs
        ]
        tasks = [task for log in logs for task in log.tasks if task not in reports]
        reports |= answers(check_segment, tasks, _killed, processes)
    report = VerifyReport(log_dirs=len(found_dirs), partitions=len(logs))
    for log in logs:
        mine = [one for task in log.tasks if (one := reports[task]) is not None]
        try:
            check_partition(log, mine)
        except Exception as error:  # noqa: BLE001 - one log's trouble is its own
            log.add("not_judged", log.directory, -1, "", defect(error))
        report.segments += len(mine)
        for segment in mine:
            report.batches += segment.batches
            report.records += segment.records
            report.bytes_read += segment.bytes_read
    compare_log_dirs(found_dirs, logs)
    report.findings += [finding for found in found_dirs for finding in found.findings]
    report.findings += [finding for log in logs for finding in log.findings]
    report.findings.sort(key=_order)
    report.seconds = clock.monotonic_s() - started
    return report


def _listed(facts: DirFacts, topic_partition: TopicPartition, directory: str) -> Partition:
    try:
        return list_partition(facts, topic_partition, directory)
    except Exception as error:  # noqa: BLE001 - one log's trouble is its own
        log = Partition(facts, topic_partition, directory)
        log.add("not_judged", directory, -1, "", defect(error))
        return log


def _order(finding: Finding) -> tuple[object, ...]:
    return finding.log_dir, finding.topic, finding.partition, finding.path, finding.position, finding.code


def _killed(task: SegmentTask) -> SegmentReport | None:
    """A segment that kills its reader is a finding."""
    report = SegmentReport(task)
    report.add("unreadable", task.path(FileKind.LOG), -1, "a file that can be read", "its reader was killed")
    return report
