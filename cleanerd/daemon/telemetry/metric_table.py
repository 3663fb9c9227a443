"""Every metric of the daemon: the only place for its name, type, labels and meaning, from which the reference is made.

Prometheus' conventions: base units, ratios from 0 to 1, counters end in `_total`, a sum over a label means something.
`log_dir` is a log directory as it is configured. No label has the name of a topic or the text of an error as its value,
but for the partitions that cleanerd.metrics.per.partition.topics asks for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import get_args

from cleanerd.broker_agent.swap import REFUSAL_CAUSES
from cleanerd.cleaning.outcomes import Superseded
from cleanerd.cleaning.phases import JOB_PHASES, LOG_PHASES
from cleanerd.cleaning.throttle import RateLimit
from cleanerd.daemon.values.models import LogState
from cleanerd.policy.verdicts import REMOVED_VERDICTS

OUTCOMES = ("committed", "staged", "unchanged", "skipped", Superseded.word, "failed", "aborted")
CAUSES = (
    "corrupt_file", "dir_offline", "engine_died", "fatal", "log_uncleanable", "no_space", "source_changed",
    "spark_failed", "verification_failed", "other",
)  # fmt: skip
"""Classes of errors that end a cleaning."""
SWAP_OUTCOMES = ("swapped", "changed", "busy", "later", "starting", "failed")
STATES: tuple[str, ...] = get_args(LogState)
PHASES = ("scan", *JOB_PHASES, *LOG_PHASES)


class MetricKind(Enum):
    """Type of a metric, by its name in Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """A row. `moves`: when the value changes; `values` lists those of a label, where they are few and known.

    `is_read`: the value is looked up at a scrape; others are counted as things happen.
    """

    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    doc: str
    moves: str
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    buckets: tuple[float, ...] = ()
    is_read: bool = False


METRICS: list[Metric] = []
"""All rows, in the order of the reference."""


def _row(
    kind: MetricKind,
    name: str,
    labels: str,
    doc: str,
    moves: str,
    buckets: tuple[float, ...] = (),
    *,
    is_read: bool = False,
    **values: tuple[str, ...],
) -> Metric:
    METRICS.append(Metric(name, kind, tuple(labels.split()), doc, moves, values, buckets, is_read))
    return METRICS[-1]


_counter = partial(_row, MetricKind.COUNTER)
_gauge = partial(_row, MetricKind.GAUGE)
_histogram = partial(_row, MetricKind.HISTOGRAM)
_read = partial(_gauge, is_read=True)
_read_counter = partial(_counter, is_read=True)

# fmt: off
# -- intact? ------------------------------------------------------------------------------------------------------------

READY = _read("cleanerd_ready", "", "Whether the daemon has recovered its log directories and scanned them.",
              "1 after the first scan, 0 while it starts and stops")
PAUSED = _read("cleanerd_paused", "", "Whether a hold pauses every log.",
               "1 from `pause '*'` to its `resume`")
BUILD_INFO = _read("cleanerd_build_info", "version", "The version that runs; the value is 1.", "with an upgrade")
LOG_DIR_ONLINE = _read("cleanerd_log_dir_online", "log_dir", "Whether the log directory is usable.",
                       "0 when it cannot be read, or belongs to another cleanerd")
RESULTS_WAIT = _read("cleanerd_results_wait_for_restart", "log_dir",
                     "Whether results wait until the running broker of the log directory stops, although "
                     "cleanerd.commit.live is auto.",
                     "1 when the broker could not be asked to swap: `cleanerctl status` has the reason")
LEASES_GIVEN_BACK = _read("cleanerd_leases_given_back", "log_dir",
                          "Muted logs that went back to the broker's cleaner because cleanerd does not clean them.",
                          "when a muted log has been due for five minutes and was not cleaned, whatever the reason; falls "
                          "when it is cleaned and nothing is in the way: `cleanerctl explain` has the reason")
PARTITIONS = _read("cleanerd_partitions", "log_dir state", "Logs by state, as `cleanerctl logs` shows it.",
                   "as logs become dirty, are cleaned, paused or found uncleanable", state=STATES)
UNREADABLE = _read("cleanerd_unreadable_partitions", "log_dir", "Partition directories that cannot be read.",
                   "with every scan")
WORKERS = _read("cleanerd_workers", "state", "Cleaner threads, including the one for reserved topics.",
                "busy from the beginning of a job to its end, throttled while the I/O limits hold it back, dead from an "
                "internal error to the restart of the thread",
                state=("idle", "busy", "throttled", "dead"))
THREAD_DEATHS = _read_counter("cleanerd_thread_deaths_total", "",
                              "Internal errors that ended a thread, which is then restarted.",
                              "with every such error")
CONFIG_RELOADS = _read_counter("cleanerd_config_reloads_total", "outcome", "Reloads of the configuration.",
                               "whatever triggered it: file watch, SIGHUP, metadata log, control API",
                               outcome=("accepted", "unchanged", "rejected"))
CONFIG_OK = _read("cleanerd_config_last_reload_successful", "",
                  "Whether the configuration that was last read is in force.",
                  "0 after a rejected reload, 1 after one that was not")
CONFIG_OK_AT = _read("cleanerd_config_last_reload_success_timestamp_seconds", "",
                     "When a valid configuration was last read.", "with every reload that is not rejected")
HISTORY_LOST = _read_counter("cleanerd_history_lost_events_total", "",
                             "Events that could not be written to the history.",
                             "when the disk of cleanerd.state.dir is full or broken")
RECOVERIES = _counter("cleanerd_recoveries_total", "log_dir action",
                      "Interrupted commits that were recovered, and logs whose leftovers were deleted.",
                      "at a start after a crash, or after a commit that failed",
                      action=("roll_forward", "roll_back", "delete_leftover"))

# -- keeping up? --------------------------------------------------------------------------------------------------------

LAST_SCAN = _gauge("cleanerd_last_scan_timestamp_seconds", "log_dir", "When the log directory was last scanned in full.",
                 "every cleanerd.scan.interval.ms")
LAST_CLEAN = _gauge("cleanerd_last_clean_success_timestamp_seconds", "log_dir",
                  "When a log of the directory was last cleaned, or examined and found clean.",
                  "with outcome committed or unchanged, and when a staged result is committed; absent before")
MAX_DIRTY_RATIO = _read("cleanerd_max_dirty_ratio", "log_dir",
                        "Dirty ratio of the dirtiest compacted log: an upper bound, whatever state the log is in.",
                        "grows as segments are closed, falls with a cleaning")
MAX_DELAY = _read("cleanerd_max_compaction_delay_seconds", "log_dir",
                  "Time since the most overdue log passed max.compaction.lag.ms.",
                  "grows with time from the deadline on, 0 when no log is late")
DEADLINE_MISSES = _read("cleanerd_deadline_misses_predicted", "",
                        "Logs expected to miss max.compaction.lag.ms, at the rate of past cleanings.",
                        "grows when more becomes due at once than the workers can do in time")
CLEANABLE_BYTES = _read("cleanerd_cleanable_bytes", "log_dir",
                        "Dirty bytes of compacted logs: the most that cleanings, or `cleanerd rescue`, free there.",
                        "grows as segments are closed, falls with a cleaning")
UNCLEANABLE_BYTES = _read("cleanerd_uncleanable_bytes", "log_dir", "Cleanable bytes in uncleanable logs (upper bound).",
                          "with the state of a log becoming uncleanable")
KEEPING = _read("cleanerd_logs_keeping_tombstones", "log_dir",
                "Logs in which tombstones and transaction markers stay whatever their age: not all replicas are known to be "
                "in sync, and to have been for delete.retention.ms.",
                "when a log is cleaned, or looked at for expired tombstones; `cleanerctl explain` has the reason")
CLEANINGS = _counter("cleanerd_cleanings_total", "log_dir outcome", "Logs that went through a cleaning.",
                     "once for each log of a job; skipped: an exact examination found nothing to do; superseded_by_broker: "
                     "the broker's cleaner or retention got there first, which is normal", outcome=OUTCOMES)
CLEANING_ERRORS = _counter("cleanerd_cleaning_errors_total", "log_dir cause", "Cleanings that failed, by cause.",
                           "with outcome failed", cause=CAUSES)
COMMITS = _counter("cleanerd_staged_commits_total", "log_dir outcome",
                   "Staged results, by what became of them when the lock was free.",
                   "when the broker has stopped; dropped: the log had changed meanwhile",
                   outcome=("committed", "dropped", "failed"))
SWAPS = _counter("cleanerd_swaps_total", "log_dir outcome", "Cleaned logs that a running broker was asked to take over.",
                 "with cleanerd.commit.live=auto; changed: the log had changed by then; busy: the broker was at work on it; "
                 "later: its high watermark is lower, or time was up; starting: it starts or stops. busy, later and "
                 "starting are tried again",
                 outcome=SWAP_OUTCOMES)
SWAP_REFUSALS = _counter("cleanerd_swap_refusals_total", "log_dir cause",
                         "Cleaned logs that a running broker was asked to take over and refused, by cause.",
                         "with every outcome but swapped of cleanerd_swaps_total. storage: a file operation failed; "
                         "out_of_memory: in the broker; broker_at_work: its cleaner has the log; segments, files: not "
                         "those that were read, or staged", cause=REFUSAL_CAUSES)
SWAP_SECONDS = _histogram("cleanerd_swap_lock_duration_seconds", "log_dir",
                          "How long the broker's lock of a log was held for a group of segments, during which nothing is "
                          "appended to that log.", "with every group that is swapped",
                          (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1))
SCANS = _counter("cleanerd_scans_total", "log_dir outcome",
                 "Full scans of log directories.", "every cleanerd.scan.interval.ms",
                 outcome=("ok", "offline"))

# -- what is it doing? --------------------------------------------------------------------------------------------------

CLEANING_SECONDS = _histogram("cleanerd_cleaning_duration_seconds", "log_dir",
                              "Duration of a cleaning per log, including the wait for other logs of its job.",
                              "with every cleaning but those skipped; exemplars have the job_id",
                              (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400))
PHASE_SECONDS = _histogram("cleanerd_phase_duration_seconds", "phase",
                           "How long phases took. scan: a full scan, which belongs to no job; examine: an exact look at "
                           "the logs, and the start of the engine if it was not up; plan: dividing the work; start: "
                           "Spark, if it was not up; index: reading keys; rewrite: copying and verifying; stage: "
                           "joining and syncing files; commit: swapping them and writing the checkpoint; checkpoint: "
                           "writing it where nothing had to go. The same seconds are `phase_seconds` of the log line "
                           "and of the history.",
                           "when the engine is done with a job; commit and checkpoint once for each log",
                           (0.01, 0.1, 0.5, 1, 5, 30, 120, 600, 3600), phase=PHASES)
READ_BYTES = _counter("cleanerd_read_bytes_total", "log_dir phase", "Bytes read by cleanings.",
                      "while they run; examine: batch headers, where indexes do not suffice; verify: what rewrite wrote",
                      phase=("examine", "index", "rewrite", "verify"))
WRITTEN_BYTES = _counter("cleanerd_written_bytes_total", "log_dir", "Bytes written by cleanings.", "while they run")
RECORDS_READ = _counter("cleanerd_records_read_total", "log_dir", "Records read by cleanings.",
                        "at the end of a cleaning")
RECORDS_REMOVED = _counter("cleanerd_records_removed_total", "log_dir reason", "Records removed by cleanings.",
                           "when the result is committed or staged; retention deletes whole segments, see "
                           "cleanerd_retention_segments_total",
                           reason=tuple(verdict.reason for verdict in REMOVED_VERDICTS))
SEGMENTS_REPLACED = _counter("cleanerd_segments_replaced_total", "log_dir", "Segments replaced by cleaned ones.",
                             "at the commit")
RECLAIMED_BYTES = _counter("cleanerd_reclaimed_bytes_total", "log_dir by", "Bytes that cleaning and retention have freed.",
                           "at the commit of a cleaning; when retention renames segments to .deleted",
                           by=("compaction", "retention"))
RETENTION_SEGMENTS = _counter("cleanerd_retention_segments_total", "log_dir", "Segments deleted by retention.",
                              "with retention passes")
RETENTION_ERRORS = _counter("cleanerd_retention_errors_total", "log_dir", "Logs whose retention pass failed.",
                            "with retention passes")
THROTTLE_SECONDS = _counter("cleanerd_throttle_seconds_total", "log_dir",
                            "Seconds that tasks have waited for the throttle, summed over all tasks.",
                            "while a limit on I/O holds tasks back")
IO_LIMIT = _read("cleanerd_io_limit_bytes_per_second", "limit", "I/O limits in force; +Inf: unlimited. The lowest holds.",
                 "with the configuration and with `cleanerctl throttle`; request_queue: every two seconds, with the brokers",
                 limit=tuple(limit.value for limit in RateLimit))

# -- capacity -----------------------------------------------------------------------------------------------------------

LOG_BYTES = _read("cleanerd_log_bytes", "log_dir",
                  "Bytes of all segments in the log directory.", "with appends, cleanings and retention")
FREE_BYTES = _read("cleanerd_log_dir_free_bytes", "log_dir",
                   "Free bytes of the file system that holds the log directory.", "with every write there")
DIR_BYTES = _read("cleanerd_log_dir_capacity_bytes", "log_dir",
                  "Size of the file system that holds the log directory.", "when it is resized")
LARGEST_BYTES = _read("cleanerd_largest_cleaning_bytes", "log_dir",
                      "Most bytes that cleaning one log can write before it deletes old segments: a round, or all of a "
                      "result that waits for a broker to stop. "
                      "A broker keeps what is replaced for file.delete.delay.ms besides.",
                      "with the size of the largest compacted log")
STAGED_BYTES = _read("cleanerd_staged_bytes", "log_dir", "Bytes of staged results that wait to be committed.",
                     "while a broker owns the directory")
STAGED_RESULTS = _read("cleanerd_staged_results", "log_dir", "Logs with a staged result that waits to be committed.",
                       "while a broker owns the directory")
STAGED_FREED = _read("cleanerd_staged_freeable_bytes", "log_dir", "Bytes that committing the staged results would free.",
                     "with cleanerd_staged_results")
STAGED_SINCE = _read("cleanerd_staged_oldest_timestamp_seconds", "log_dir",
                     "Staging time of the oldest uncommitted result; 0 without one.", "with cleanerd_staged_results")
STAGED_WASTED = _counter("cleanerd_staged_wasted_bytes_total", "log_dir",
                         "Bytes of results that were discarded: the log had changed, or they had aged.",
                         "when a result is dropped, and when the log of a waiting result is cleaned again")
DEDUPE_BYTES = _read("cleanerd_dedupe_buffer_bytes", "",
                     "Memory for the keys of a job: dedupe buffer size times load factor.",
                     "with the configuration")
DEDUPE_RATIO = _gauge("cleanerd_dedupe_buffer_max_utilization_ratio", "",
                    "Peak dedupe-buffer utilization of the last job (upper bound); above 1 the job resolves its "
                    "keys bucket by bucket, still in one pass.",
                    "at the end of a job")
SESSION_UP = _read("cleanerd_spark_session_up", "", "Whether the engine process, which owns the Spark session, is up.",
                   "from the first job to cleanerd.spark.idle.timeout.ms after the last one")
ENGINE_STARTS = _read_counter("cleanerd_engine_starts_total", "", "Starts of the engine process.",
                              "with the first job after an idle time, and after it died")

# -- control API --------------------------------------------------------------------------------------------------------

CONTROL_REQUESTS = _counter("cleanerd_control_requests_total", "method code",
                            "Requests to the control socket by verb and HTTP status; method is other for anything else.",
                            "with every answer")
CONTROL_SECONDS = _histogram("cleanerd_control_request_duration_seconds", "method",
                             "Time from a connection to its answer; verbs that wait take as long as they were asked to.",
                             "with every answer", (0.01, 0.1, 1, 10, 60))

# -- partitions that the configuration names --------------------------------------------------------------------------------

_PARTITION = "log_dir topic partition"
PARTITION_RATIO = _read("cleanerd_partition_dirty_ratio", _PARTITION, "Dirty ratio of a log (upper bound).",
                        "like cleanerd_max_dirty_ratio")
PARTITION_BYTES = _read("cleanerd_partition_dirty_bytes", _PARTITION, "Cleanable bytes of a log (upper bound).",
                        "like cleanerd_cleanable_bytes")
PARTITION_CLEANED = _read("cleanerd_partition_last_clean_timestamp_seconds", _PARTITION, "Time of the last cleaning.",
                          "like cleanerd_last_clean_success_timestamp_seconds")
PARTITIONS_DROPPED = _read("cleanerd_partition_metrics_dropped", "",
                           "Partitions that were configured but have no series: there are more than 500.",
                           "with new partitions and with the configuration")

# fmt: on
