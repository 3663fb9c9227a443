"""`cleanerd clean`: one shot over the log directories, in this process.

Exit 0 if nothing failed and no stop was requested; 1 if some log failed or was aborted, each named with its reason, or if
none of the logs that were named is there; 2 or 78 if the command line or the configuration is wrong: nothing was touched.
"""

import contextlib
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from cleanerd.cleaning.assumed import NOW, SETTINGS
from cleanerd.cleaning.knowledge import Knowledge
from cleanerd.cleaning.outcomes import Aborted, Committed, Failed, Planned
from cleanerd.cleaning.result import NO_LOG, CleanRequest, LogResult, Progress
from cleanerd.cli import output
from cleanerd.cli.configuration import Loaded, load_each, no_log_dirs
from cleanerd.cli.named import is_nothing_there
from cleanerd.cli.progress import progress_on
from cleanerd.cli.tables import write_table
from cleanerd.config.load import Configuration
from cleanerd.config.settings import DEFAULT
from cleanerd.env.clock import Clock, FixedNow, SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.errors import BadUsage, CleanerdError
from cleanerd.format.names import META_PROPERTIES, TopicPartition, parse_partition_dir
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.spark_runtime.spark_master import spark_place
from cleanerd.storage.lock import stop_between_holds
from cleanerd.storage.log_dir import CleanedByAnother, LogDir
from cleanerd.units import reasons, size, utc

NOT_DONE = Failed | Aborted
_DAY_MS = 86_400_000
_NAMED = 3
_KAFKA_MS = 1_293_840_000_000  # 2011


CleanOnce = Callable[[Sequence[CleanRequest], Progress, Clock], list[LogResult]]
"""The work: clean what requests ask for, once; a result for every log. Raises `CleanerdError` for what concerns all logs."""


def run(arguments: Namespace, clean_once: CleanOnce | None = None) -> int:
    """Load, clean, report; returns the exit code."""
    requests, results = requests_from(arguments)
    log_dirs = [log_dir for request in requests for log_dir in request.log_dirs]
    _check_now(arguments, log_dirs)
    clock = SystemClock() if arguments.now_ms is None else FixedNow(arguments.now_ms)
    if requests:
        with progress_on(sys.stderr) as progress:
            results += (clean_once or _clean_once)(requests, progress, clock)
    results = [_with_remedy(result, results, arguments) for result in results]
    _report(results, arguments)
    for request in requests:
        _report_assumed(request)
    is_nothing = is_nothing_there(arguments, log_dirs, [result.topic_partition for result in results])
    if not results and not is_nothing:
        output.print_message(
            "no log was found whose cleanup.policy contains compact; where no broker has left the settings of its topics, "
            "give them: --set log.cleanup.policy=compact, or --topic-set TOPIC:cleanup.policy=compact"
        )
    return 1 if is_nothing or any(isinstance(result.outcome, NOT_DONE) for result in results) else 0


def _clean_once(requests: Sequence[CleanRequest], progress: Progress, clock: Clock) -> list[LogResult]:
    """The work, in a session of its own. Its JVM starts while the rest is imported and the logs are looked at."""
    stop_between_holds()
    place = spark_place(requests[0].config)
    session = LazySpark(place.master, dict(place.conf), makes_archive=True)
    try:
        session.begin()
        from cleanerd.cleaning.one_shot import clean_once  # noqa: PLC0415 - pulls in kernels

        return clean_once(requests, progress, clock, session=session)
    finally:
        session.stop()


def requests_from(arguments: Namespace) -> tuple[list[CleanRequest], list[LogResult]]:
    """Requests from the options of `clean`, one for each node, and results for directories that could not be loaded.

    Raises `BadConfiguration`, `BadUsage`.
    """
    requests, failed, warnings = list[CleanRequest](), list[LogResult](), dict[str, None]()
    for found in load_each(arguments, frozenset(arguments.topic)):
        if isinstance(found, Loaded):
            requests.append(_request(found, arguments))
            warnings |= dict.fromkeys(found.warnings)
        else:
            log_dirs, error = found
            failed += [LogResult.of_error(NO_LOG, log_dir, error) for log_dir in log_dirs]
    for warning in warnings:
        output.print_message(warning)
    return requests, failed


def _check_now(arguments: Namespace, log_dirs: Iterable[str]) -> None:
    """Raise BadUsage for a current time that no file and no clock here has seen yet: a slip would expire everything.

    Also for one before the first Kafka, as of seconds: what is deleted would get a horizon that has passed already.
    """
    if arguments.now_ms is None or NOW in arguments.assume:
        return
    newest_ms = SystemClock().now_ms()
    if arguments.now_ms > newest_ms + _DAY_MS:
        newest_ms = max(newest_ms, *map(_newest_ms, log_dirs), 0)
    if _KAFKA_MS <= arguments.now_ms <= newest_ms + _DAY_MS:
        return
    raise BadUsage(
        f"--now-ms {arguments.now_ms} is {utc(arguments.now_ms)}, but the newest file and the clock of this machine "
        f"are at {utc(newest_ms)}: deletions and time limits would count as over; if that is meant, add --assume now"
    )


def _newest_ms(log_dir: str) -> int:
    """When the newest file in the partitions of a log directory was written, as far as that can be read."""
    newest_ms = 0
    with contextlib.suppress(OSError):
        for entry in os.scandir(log_dir):
            with contextlib.suppress(OSError):
                files = os.scandir(entry) if parse_partition_dir(entry.name) is not None else ()
                newest_ms = max(newest_ms, *(file.stat().st_mtime_ns // 1_000_000 for file in files), 0)
    return newest_ms


def _request(loaded: Loaded, arguments: Namespace) -> CleanRequest:
    for reason in no_log_dirs(loaded.log_dirs):
        output.print_message(reason)
    return CleanRequest(
        config=loaded.configuration.broker,
        topic_config=loaded.configuration.topic,
        log_dirs=loaded.log_dirs,
        topics=frozenset(arguments.topic) or None,
        partitions=frozenset(arguments.partition) or None,
        force=arguments.force,
        roll=arguments.roll,
        horizons=True,
        dry_run=arguments.dry_run,
        configuration=loaded.configuration,
        assumed=arguments.assume,
        holds_of=partial(_holds_of, loaded.configuration),
    )


def _holds_of(configuration: Configuration, log_dir: str) -> Callable[[TopicPartition], str | None]:
    """`CleanRequest.holds_of`: of the daemon that was there, and of the one that the configuration names."""
    from cleanerd.daemon.work.kept_holds import HoldsOnDisk  # noqa: PLC0415 - takes time, and the JVM starts meanwhile

    state_dir, log_dirs = configuration.broker_settings["cleanerd.state.dir"], configuration.broker.log_dirs
    is_its = os.path.realpath(log_dir) in map(
        os.path.realpath, log_dirs
    )  # else a copy, of which that daemon knows nothing
    named = (str(state_dir.value),) if is_its or state_dir.origin != DEFAULT else ()
    return HoldsOnDisk(SystemClock(), named, output.print_message).of(log_dir)


def _with_remedy(result: LogResult, results: Sequence[LogResult], arguments: Namespace) -> LogResult:
    """Where another cleanerd works: the commands that ask its daemon for the same. Its verb takes one topic, one log or a
    glob.
    """
    outcome = result.outcome
    if not isinstance(outcome, Failed) or outcome.error != CleanedByAnother.__name__:
        return result
    options = " --force" * arguments.force + " --roll" * arguments.roll
    logs = {one.topic_partition for one in results if one.log_dir == result.log_dir} - {NO_LOG}
    if arguments.partition and not logs:
        return result  # none of those that were named lies there: there is nothing to ask for
    named = sorted(map(str, logs) if arguments.partition else arguments.topic) or ["'*'"]
    asked = " and ".join(f"`cleanerctl clean {name}{options}`" for name in named[:_NAMED])
    more = f" and so on, {len(named)} in all" if len(named) > _NAMED else ""
    return replace(
        result, outcome=replace(outcome, remedy=f"if that is the daemon, have it do this: {asked}{more}")
    )


def _has_deleted_at_once(result: LogResult) -> bool:
    """Whether a broker could have been expected to do that, after file.delete.delay.ms."""
    is_brokers = os.path.exists(os.path.join(result.log_dir, META_PROPERTIES))
    return is_brokers and isinstance(result.outcome, Committed) and result.outcome.by == "lock"


def _report(results: list[LogResult], arguments: Namespace) -> None:
    is_table = output.is_table(arguments.output)
    if not is_table:
        rows = [result.fields() for result in results]
        if arguments.assume:
            rows = [{**row, "assumed": sorted(arguments.assume)} for row in rows]
        output.write_document(arguments.output, results=rows)
    elif results:
        _write_table(results)
        if any(map(_has_deleted_at_once, results)):
            output.print_message(
                "old segments were deleted at once: cleanerd had .lock, so no broker had them open, and one that starts "
                "reads the new ones"
            )
    failed = [result.outcome for result in results if isinstance(result.outcome, Failed)]
    for remedy in dict.fromkeys(outcome.remedy for outcome in failed if outcome.remedy):
        output.print_message(f"what to do: {remedy}")
    for result in results:
        name, outcome, damage = (
            f"{log_name(result)} in {result.log_dir}",
            result.outcome,
            result.statistics.index_damage,
        )
        if isinstance(outcome, NOT_DONE) and not is_table:  # the table has the reason
            output.print_message(f"{name}: {outcome.word}: {outcome.reason}")
        if damage is not None:
            output.print_message(f"{name}: {damage}")


def _report_assumed(request: CleanRequest) -> None:
    """Print the assumptions (`--assume`) that the results rely on."""
    if request.assumed:
        output.print_message(f"assumed, as --assume says: {', '.join(sorted(request.assumed))}")
    for path in request.log_dirs if SETTINGS in request.assumed else ():
        with contextlib.suppress(CleanerdError, OSError):
            until_ms = _vouched_until_ms(request, path)
            if until_ms is not None:
                output.print_message(
                    f"{path}: the settings as of {utc(until_ms)}, the last sign of life of its broker"
                )


def _vouched_until_ms(request: CleanRequest, path: str) -> int | None:
    assert request.configuration is not None
    log_dir = LogDir.at(RealFiles(), path, SystemClock(), request.log_dirs)
    return Knowledge(log_dir, request.configuration).vouched_until_ms


def _write_table(results: Sequence[LogResult]) -> None:
    found = [result.statistics for result in results]
    is_plan = any(isinstance(result.outcome, Planned) for result in results)
    is_one_dir = len({result.log_dir for result in results}) == 1
    write_table(
        {
            "LOG": [log_name(result) for result in results],
            "LOG DIR": ["" if is_one_dir else result.log_dir for result in results],
            "OUTCOME": [result.outcome.word for result in results],
            "BEFORE": [_size(result, result.before.bytes) for result in results],
            "AFTER": [_size(result, result.after.bytes) for result in results],
            "PEAK EXTRA": [size(one.peak_extra_bytes) if is_plan else "" for one in found],
            "TOPIC'S CODEC SAVES": [_about(one.topic_codec_saves_bytes) if is_plan else "" for one in found],
            "REMOVED": [reasons(one.removed) for one in found],
            "SECONDS": [f"{one.seconds:.2f}" for one in found],
            "MB/S": [f"{one.per_s(one.bytes_read / 1e6):.1f}" if one.bytes_read else "" for one in found],
            "REASON": [_reason(result) for result in results],
        }
    )


def _size(result: LogResult, size_bytes: int) -> str:
    """Empty for a log that was not looked at."""
    return size(size_bytes) if result.before.segments else ""


def _reason(result: LogResult) -> str:
    stay = result.tombstones_stay if result.statistics.bytes_read else None
    return "; ".join(filter(None, (result.reason, stay and f"tombstones stay: {stay}")))


def _about(saved_bytes: int | None) -> str:
    return f"about {'-' * (saved_bytes < 0)}{size(abs(saved_bytes))}" if saved_bytes else ""


def log_name(result: LogResult) -> str:
    """The log that a result is about; some are about a whole log directory."""
    return "(all)" if result.topic_partition == NO_LOG else str(result.topic_partition)
