"""The table of keys: one row per key, the only place that knows names, types, defaults and ranges.

Source: spec behaviour section 8 (8A and 8C broker keys, 8B topic keys with their broker synonyms). Keys of
Kafka that have no influence on cleaning or retention are not here; in a broker's file they are ignored. Those
of 8C that cleanerd leaves alone stand in `IGNORED_BROKER_KEYS`, each with the reason.

A topic key that has no value of its own takes that of the first of its broker synonyms that is set (8B, 8.N4):
so milliseconds beat minutes beat hours. A broker synonym without a row of its own has type, default and check
of its topic key.
"""

import re
from dataclasses import dataclass
from enum import Enum

from cleanerd.config.values import (
    ANY,
    DOUBLE_MAX,
    Check,
    Value,
    ValueType,
    address_or_nothing,
    at_least,
    between,
    matching,
    more_than,
    not_empty,
    one_of,
    some_of,
)

INT64_MAX = 2**63 - 1
TOPIC_NAME = "[a-zA-Z0-9._-]{1,249}"
MS_PER_UNIT = {"ms": 1, "minutes": 60_000, "hours": 3_600_000}


class Scope(Enum):
    """Where a key may be changed at run time (column "Dyn" of spec behaviour 8).

    `STATIC`: never, a reload that changes it is refused (7.21). `CLUSTER`: by a reload of any layer, and by
    BROKER records of the metadata log. `TOPIC`: that too, and for each topic.
    """

    STATIC = "no"
    CLUSTER = "cluster"
    TOPIC = "topic"


@dataclass(frozen=True, slots=True)
class BrokerKey:
    """A row of 8A, 8C or of cleanerd's own keys.

    `default` None: not set unless it is configured. `field` is the attribute of `CleanerdConfig`, "" where
    the key only feeds others. Of two keys with one field, the later row wins where it is set.
    """

    name: str
    type: ValueType
    default: Value | None
    check: Check
    scope: Scope
    unit: str
    field: str
    doc: str


@dataclass(frozen=True, slots=True)
class TopicKey:
    """A row of 8B, with its broker synonyms in order. `default` None: not set unless it is configured.

    `field` is the attribute of `TopicConfig`, "" where nothing in cleanerd depends on the key: it is
    validated and shown. Of two keys with one field, the later row wins where it is set.
    """

    name: str
    type: ValueType
    default: Value | None
    check: Check
    unit: str
    synonyms: tuple[str, ...]
    field: str
    doc: str
    scope: Scope = Scope.TOPIC


BOOLEAN, INT, LONG, DOUBLE, RATE, STRING, LIST, PATHS = ValueType
STATIC, CLUSTER, TOPIC = Scope
_A_DIRECTORY = not_empty("at least one directory")
POLICY = some_of("compact", "delete")
_COMPRESSION = one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_TIMESTAMP_TYPE = one_of("CreateTime", "LogAppendTime")
_PATH = matching("/.+", "an absolute path")
_SOCKET = matching("/.{1,106}", "an absolute path of at most 107 characters")  # sun_path of Linux
_LISTEN = address_or_nothing()
_PATH_OR_NOTHING = matching("(/.+)?", "an absolute path or nothing")
_SERVERS = matching(r"(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):[0-9]{1,5}", "a list of host:port")
_TOPICS = matching(TOPIC_NAME, "a list of topic names")
_TOPIC_GLOBS = matching(r"[a-zA-Z0-9._*?\[\]!-]{1,249}", "a list of topic names or shell globs")
KAFKA_LOG_DIR = "/tmp/kafka-logs"  # noqa: S108 - Kafka's default
_HOUR_MS, _DAY_MS, _WEEK_MS = 3_600_000, 86_400_000, 604_800_000
_GZIP_LEVEL = Check("-1 or a number in [1, 9]", lambda value: value == -1 or value in range(1, 10))
_LEVEL_DOC = "Level of that codec where compression.type names it."
_RESERVED = ("__consumer_offsets", "__transaction_state", "__share_group_state", "__remote_log_metadata")

# fmt: off
_TOPIC_ROWS = (
    TopicKey("cleanup.policy", LIST, ("delete",), POLICY, "",
             ("log.cleanup.policy",), "cleanup_policy", "compact, delete, both or neither."),
    TopicKey("min.cleanable.dirty.ratio", DOUBLE, 0.5, between(0, 1), "ratio",
             ("log.cleaner.min.cleanable.ratio",), "min_cleanable_dirty_ratio",
             "A log is cleaned when its dirty share is above this."),
    TopicKey("cleanerd.min.cleanable.dirty.ratio", DOUBLE, None, between(0, 1), "ratio",
             ("cleanerd.min.cleanable.dirty.ratio",), "min_cleanable_dirty_ratio",
             "min.cleanable.dirty.ratio for cleanerd alone; the broker's cleaner goes by the key without the prefix."),
    TopicKey("delete.retention.ms", LONG, _DAY_MS, at_least(0), "ms",
             ("log.cleaner.delete.retention.ms",), "delete_retention_ms",
             "How long a tombstone stays after its first cleaning."),
    TopicKey("min.compaction.lag.ms", LONG, 0, at_least(0), "ms",
             ("log.cleaner.min.compaction.lag.ms",), "min_compaction_lag_ms",
             "Records younger than this are not compacted."),
    TopicKey("max.compaction.lag.ms", LONG, INT64_MAX, at_least(1), "ms",
             ("log.cleaner.max.compaction.lag.ms",), "max_compaction_lag_ms",
             "Records older than this make their log eligible whatever the ratio."),
    TopicKey("retention.ms", LONG, _WEEK_MS, at_least(-1), "ms",
             ("log.retention.ms", "log.retention.minutes", "log.retention.hours"), "retention_ms",
             "With policy delete: age at which a segment goes; -1 never."),
    TopicKey("retention.bytes", LONG, -1, ANY, "bytes",
             ("log.retention.bytes",), "retention_bytes",
             "With policy delete: size that a log is cut to; negative never."),
    TopicKey("segment.bytes", INT, 1_073_741_824, at_least(14), "bytes",
             ("log.segment.bytes",), "segment_bytes", "Largest segment, also of a cleaned one."),
    TopicKey("internal.segment.bytes", INT, None, at_least(1), "bytes",
             (), "", "Replaces segment.bytes where it is set (Kafka 4.1 and later, for tests)."),
    TopicKey("segment.ms", LONG, _WEEK_MS, at_least(1), "ms",
             ("log.roll.ms", "log.roll.hours"), "", "Age at which the broker rolls the active segment."),
    TopicKey("segment.jitter.ms", LONG, 0, at_least(0), "ms",
             ("log.roll.jitter.ms", "log.roll.jitter.hours"), "", "Random share of segment.ms."),
    TopicKey("segment.index.bytes", INT, 10_485_760, at_least(4), "bytes",
             ("log.index.size.max.bytes",), "segment_index_bytes", "Largest index file."),
    TopicKey("index.interval.bytes", INT, 4096, at_least(0), "bytes",
             ("log.index.interval.bytes",), "index_interval_bytes",
             "Bytes of log between two index entries."),
    TopicKey("file.delete.delay.ms", LONG, 60_000, at_least(0), "ms",
             ("log.segment.delete.delay.ms",), "file_delete_delay_ms",
             "How long a retired file stays as .deleted; `cleanerd clean` deletes at once."),
    TopicKey("max.message.bytes", INT, 1_048_588, at_least(0), "bytes",
             ("message.max.bytes",), "", "Largest batch."),
    TopicKey("preallocate", BOOLEAN, False, ANY, "",
             ("log.preallocate",), "", "Whether new segments get their full size at once."),
    TopicKey("flush.messages", LONG, INT64_MAX, at_least(1), "records",
             ("log.flush.interval.messages",), "", "Records between two flushes."),
    TopicKey("flush.ms", LONG, INT64_MAX, at_least(0), "ms",
             ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"), "", "Time between two flushes."),
    TopicKey("compression.type", STRING, "producer", _COMPRESSION, "",
             ("compression.type",), "compression_type",
             "Codec of appended batches, and with cleanerd.compression=topic of those that cleaning rewrites."),
    TopicKey("compression.gzip.level", INT, -1, _GZIP_LEVEL, "",
             ("compression.gzip.level",), "compression_gzip_level", _LEVEL_DOC),
    TopicKey("compression.lz4.level", INT, 9, between(1, 17), "",
             ("compression.lz4.level",), "compression_lz4_level", _LEVEL_DOC),
    TopicKey("compression.zstd.level", INT, 3, between(-131_072, 22), "",
             ("compression.zstd.level",), "compression_zstd_level", _LEVEL_DOC),
    TopicKey("cleanerd.compression", STRING, "batch", one_of("batch", "topic"), "",
             ("cleanerd.compression",), "compression",
             "Codec of a batch that is rewritten: that of the batch, or compression.type and level of its topic. Batches "
             "that lose nothing stay as they are."),
    TopicKey("message.timestamp.before.max.ms", LONG, INT64_MAX, at_least(0), "ms",
             ("log.message.timestamp.before.max.ms",), "", "How old a record may be when it is appended."),
    TopicKey("message.timestamp.after.max.ms", LONG, _HOUR_MS, at_least(0), "ms",
             ("log.message.timestamp.after.max.ms",), "", "How far in the future a record may lie when it is appended."),
    TopicKey("message.timestamp.type", STRING, "CreateTime", _TIMESTAMP_TYPE, "",
             ("log.message.timestamp.type",), "", "Whether the producer or the broker sets timestamps."),
    TopicKey("remote.storage.enable", BOOLEAN, False, ANY, "", (), "remote_storage_enable",
             "A tiered log: only its broker knows which segments it has copied, so time and size retention are left to it."),
    TopicKey("remote.log.copy.disable", BOOLEAN, False, ANY, "", (), "", "Whether a tiered log stops copying."),
    TopicKey("remote.log.delete.on.disable", BOOLEAN, False, ANY, "", (), "",
             "Whether remote segments go when a log is no longer tiered."),
    TopicKey("local.retention.ms", LONG, -2, at_least(-2), "ms",
             ("log.local.retention.ms",), "", "Retention of tiered logs on local disk, done by the broker."),
    TopicKey("local.retention.bytes", LONG, -2, at_least(-2), "bytes",
             ("log.local.retention.bytes",), "", "Retention of tiered logs on local disk, done by the broker."),
)

_BROKER_ROWS = (
    # 8C: where the logs are and whose they are
    BrokerKey("log.dirs", PATHS, None, _A_DIRECTORY, STATIC, "", "", "Log directories."),
    BrokerKey("log.dir", PATHS, (KAFKA_LOG_DIR,), _A_DIRECTORY, STATIC, "",
              "", "Log directories, if log.dirs is not set."),
    BrokerKey("metadata.log.dir", STRING, None, not_empty("a directory"), STATIC, "",
              "", "Directory of the metadata log, if it is not the first log directory."),
    BrokerKey("node.id", INT, None, at_least(0), STATIC, "",
              "", "Id of the broker: chooses its dynamic values."),
    BrokerKey("broker.id", INT, None, ANY, STATIC, "", "", "Id of the broker, if node.id is not set."),
    # 8A
    BrokerKey("log.cleaner.enable", BOOLEAN, True, ANY, STATIC, "",
              "log_cleaner_enable", "Whether compacted logs are cleaned and retained at all."),
    BrokerKey("log.cleaner.threads", INT, 1, at_least(1), CLUSTER, "",
              "log_cleaner_threads", "Cores that cleaning may use; not set: cleanerd chooses."),
    BrokerKey("log.cleaner.io.max.bytes.per.second", RATE, DOUBLE_MAX, more_than(0), CLUSTER, "bytes/s",
              "io_max_bytes_per_second", "Limit on reads plus writes."),
    BrokerKey("log.cleaner.dedupe.buffer.size", LONG, 134_217_728, ANY, CLUSTER, "bytes",
              "dedupe_buffer_size_bytes",
              "Memory for finding the newest record of every key (more than 1 MiB per thread)."),
    BrokerKey("log.cleaner.io.buffer.size", INT, 524_288, at_least(0), CLUSTER, "bytes",
              "", "Memory for reading and writing."),
    BrokerKey("log.cleaner.io.buffer.load.factor", DOUBLE, 0.9, more_than(0), CLUSTER, "ratio",
              "io_buffer_load_factor", "How full the dedupe buffer may get."),
    BrokerKey("log.cleaner.backoff.ms", LONG, 15_000, at_least(0), CLUSTER, "ms",
              "backoff_ms", "Pause when there is nothing to clean."),
    BrokerKey("message.max.bytes", INT, 1_048_588, at_least(0), CLUSTER, "bytes",
              "", "Largest batch."),
    # 8B: synonyms that differ from their topic key
    BrokerKey("log.retention.ms", LONG, None, ANY, CLUSTER, "ms", "", "Retention time, first choice."),
    BrokerKey("log.retention.minutes", INT, None, ANY, STATIC, "minutes",
              "", "Retention time, second choice."),
    BrokerKey("log.retention.hours", INT, 168, ANY, STATIC, "hours",
              "", "Retention time, third choice."),
    BrokerKey("log.roll.ms", LONG, None, ANY, CLUSTER, "ms", "", "Rolling time, first choice."),
    BrokerKey("log.roll.hours", INT, 168, at_least(1), STATIC, "hours",
              "", "Rolling time, second choice."),
    BrokerKey("log.roll.jitter.ms", LONG, None, ANY, CLUSTER, "ms", "", "Rolling jitter, first choice."),
    BrokerKey("log.roll.jitter.hours", INT, 0, at_least(0), STATIC, "hours",
              "", "Rolling jitter, second choice."),
    BrokerKey("log.flush.interval.ms", LONG, None, ANY, CLUSTER, "ms", "", "Flush time, first choice."),
    BrokerKey("log.flush.scheduler.interval.ms", LONG, INT64_MAX, ANY, STATIC, "ms",
              "", "Flush time, second choice."),
    # 8C
    BrokerKey("log.retention.check.interval.ms", LONG, 300_000, at_least(1), STATIC, "ms",
              "retention_check_interval_ms", "Pause between two retention passes."),
    BrokerKey("producer.id.expiration.ms", INT, _DAY_MS, at_least(1), CLUSTER, "ms",
              "producer_id_expiration_ms", "How long an idle producer is remembered."),
    # cleanerd's own
    BrokerKey("cleanerd.log.cleaner.enable", BOOLEAN, None, ANY, CLUSTER, "",
              "log_cleaner_enable", "Whether cleanerd cleans and retains compacted logs, whatever log.cleaner.enable says."),
    BrokerKey("cleanerd.spark.master", STRING, "", ANY, STATIC, "",
              "spark_master", "Spark master; empty: local[log.cleaner.threads]."),
    BrokerKey("cleanerd.job.stall.timeout.ms", LONG, 300_000, at_least(1), CLUSTER, "ms",
              "job_stall_timeout_ms", "A Spark job is ended and retried when none of its tasks reports for so long."),
    BrokerKey("cleanerd.chunk.bytes", LONG, 33_554_432, at_least(1), STATIC, "bytes",
              "chunk_bytes", "Bytes of log that one core works on at a time."),
    # cleanerd's own, of the daemon: throttle and jobs
    BrokerKey("cleanerd.merge.enable", BOOLEAN, True, ANY, CLUSTER, "",
              "merge_enable", "Merge small neighbouring segments where that at least halves their number, even if they lose "
              "no record."),
    BrokerKey("cleanerd.io.max.read.bytes.per.second", RATE, DOUBLE_MAX, more_than(0), CLUSTER, "bytes/s",
              "io_max_read_bytes_per_second", "Limit on reads alone; a number or `unlimited`."),
    BrokerKey("cleanerd.io.max.write.bytes.per.second", RATE, DOUBLE_MAX, more_than(0), CLUSTER, "bytes/s",
              "io_max_write_bytes_per_second", "Limit on writes alone; a number or `unlimited`."),
    BrokerKey("cleanerd.spark.idle.timeout.ms", LONG, 60_000, at_least(0), CLUSTER, "ms",
              "spark_idle_timeout_ms", "Idle time after which Spark is stopped and its memory given back."),
    BrokerKey("cleanerd.job.max.bytes", LONG, 268_435_456, at_least(1), CLUSTER, "bytes",
              "job_max_bytes", "Small logs share one Spark job up to this size."),
    BrokerKey("cleanerd.job.max.logs", INT, 256, at_least(1), CLUSTER, "logs",
              "job_max_logs", "Small logs share one Spark job up to this number."),
    # ... scanning, retries, reserved topics
    BrokerKey("cleanerd.scan.interval.ms", LONG, 30_000, at_least(1), CLUSTER, "ms",
              "scan_interval_ms", "Pause between two full scans of the log directories."),
    BrokerKey("cleanerd.retry.max", INT, 3, at_least(1), CLUSTER, "failures",
              "retry_max", "Failures in a row after which a log is uncleanable."),
    BrokerKey("cleanerd.retry.backoff.ms", LONG, 10_000, at_least(1), CLUSTER, "ms",
              "retry_backoff_ms", "Pause after the first failure; it doubles with each further one."),
    BrokerKey("cleanerd.reserved.topics", LIST, _RESERVED, _TOPICS, CLUSTER, "",
              "reserved_topics", "Topics that do not wait behind long jobs."),
    BrokerKey("cleanerd.reserved.max.wait.ms", LONG, 60_000, at_least(0), CLUSTER, "ms",
              "reserved_max_wait_ms", "Longest wait of a reserved topic that is due."),
    # ... results that wait for a broker to stop
    BrokerKey("cleanerd.commit.live", STRING, "off", one_of("auto", "off"), CLUSTER, "",
              "commit_live", "auto: a running broker swaps results in, by an agent that is loaded into its JVM. "
              "off: they wait until it stops."),
    BrokerKey("cleanerd.broker.agent.untested", BOOLEAN, False, ANY, CLUSTER, "",
              "broker_agent_untested", "Whether that agent may also work in releases of Kafka that it is not tested with."),
    BrokerKey("cleanerd.staged.max.bytes", LONG, -1, at_least(-1), CLUSTER, "bytes",
              "staged_max_bytes", "Largest sum of staged files in a log directory; -1: only free space limits it."),
    BrokerKey("cleanerd.staged.min.free.ratio", DOUBLE, 0.1, between(0, 1), CLUSTER, "ratio",
              "staged_min_free_ratio", "Share of the file system that staging leaves free for the broker."),
    BrokerKey("cleanerd.staged.commit.interval.ms", LONG, 1000, at_least(1), CLUSTER, "ms",
              "staged_commit_interval_ms", "How often to look for a free .lock while something is staged."),
    BrokerKey("cleanerd.broker.cleaner.grace.ms", LONG, 900_000, at_least(0), CLUSTER, "ms",
              "broker_cleaner_grace_ms",
              "How long a log is left to a live broker's own cleaner that is seen at work; 0: not at all."),
    BrokerKey("cleanerd.kafka.bootstrap.servers", LIST, (), _SERVERS, CLUSTER, "",
              "kafka_bootstrap_servers", "Brokers to ask for what only the cluster can do (mute); empty: none."),
    BrokerKey("cleanerd.kafka.client.config", STRING, "", _PATH_OR_NOTHING, CLUSTER, "",
              "kafka_client_config", "Properties file of the Kafka client: security.protocol, sasl.*, ssl.*; empty: none."),
    # ... process, history, control, metrics, log
    BrokerKey("cleanerd.shutdown.timeout.ms", LONG, 20_000, at_least(0), CLUSTER, "ms",
              "shutdown_timeout_ms", "Time for work in progress to stop."),
    BrokerKey("cleanerd.state.dir", STRING, "/var/lib/cleanerd", _PATH, STATIC, "",
              "state_dir", "Directory of the history and of what must survive a restart."),
    BrokerKey("cleanerd.history.max.age.ms", LONG, 30 * _DAY_MS, at_least(1), CLUSTER, "ms",
              "history_max_age_ms", "History older than this is dropped."),
    BrokerKey("cleanerd.history.max.bytes", LONG, 67_108_864, at_least(1_048_576), CLUSTER, "bytes",
              "history_max_bytes", "Largest size of the history; the oldest events go first."),
    BrokerKey("cleanerd.control.socket", STRING, "/run/cleanerd/control.sock", _SOCKET, STATIC, "",
              "control_socket", "Unix socket of the control API."),
    BrokerKey("cleanerd.metrics.listen", STRING, "127.0.0.1:11308", _LISTEN, STATIC, "",
              "metrics_listen", "Address of the metrics, host:port; empty: none."),
    BrokerKey("cleanerd.metrics.per.partition.topics", LIST, (), _TOPIC_GLOBS, CLUSTER, "",
              "metrics_per_partition_topics", "Topics whose partitions have metrics of their own."),
    BrokerKey("cleanerd.page", BOOLEAN, True, ANY, STATIC, "",
              "page", "Also the read-only status page on that address: all logs, jobs and history."),
    BrokerKey("cleanerd.log.format", STRING, "auto", one_of("auto", "json", "console"), STATIC, "",
              "log_format", "Form of the log; auto: console on a terminal, else json."),
    BrokerKey("cleanerd.log.level", STRING, "info", one_of("debug", "info", "warning", "error"), CLUSTER, "",
              "log_level", "Lowest level that is logged."),
)
# fmt: on

RETIRED_KEYS = {
    "cleanerd.install": "results are no longer installed by reassignment",
    "cleanerd.install.topics": "results are no longer installed by reassignment",
    "cleanerd.install.window": "results are no longer installed by reassignment",
    "cleanerd.install.min.reclaim.bytes": "results are no longer installed by reassignment",
    "cleanerd.install.min.reclaim.ratio": "results are no longer installed by reassignment",
    "cleanerd.install.max.tail.bytes": "results are no longer installed by reassignment",
    "cleanerd.install.step.timeout.ms": "results are no longer installed by reassignment",
    "cleanerd.retry.backoff.max.ms": "the longest pause after a failure is 10 minutes",
    "cleanerd.staged.max.wasted.ratio": "it is 1",
    "cleanerd.metrics.per.partition.max": "it is 500",
    "cleanerd.metrics.jmx.compat": "use the names in metrics.md",
    "cleanerd.log.kafka.summary": "the event `cleaning` has all of it",
}
"""Keys of earlier versions, and what holds instead: a warning, so that an upgrade does not keep a daemon from starting."""

IGNORED_BROKER_KEYS = {
    "log.flush.offset.checkpoint.interval.ms": "recovery points are the broker's",
    "log.flush.start.offset.checkpoint.interval.ms": "a log start is written when retention moves it",
    "log.initial.task.delay.ms": "internal; nothing else starts beside cleanerd",
    "num.recovery.threads.per.data.dir": "logs are recovered by the broker",
    "background.threads": "the daemon has its own threads",
    "producer.id.expiration.check.interval.ms": "internal; ids expire when a log is cleaned",
    "replica.high.watermark.checkpoint.interval.ms": "the high watermark is the broker's",
    "log.dir.failure.timeout.ms": "an offline directory never stops cleanerd",
}
"""Rows of 8C that nothing in cleanerd depends on, and why."""

IGNORED_TOPIC_KEYS = frozenset(
    (
        "unclean.leader.election.enable",
        "min.insync.replicas",
        "message.format.version",
        "message.timestamp.difference.max.ms",
        "message.downconversion.enable",
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
    )
)
"""Topic keys of Kafka that do not concern cleaning. Any other unknown name is a mistake of its writer."""


def _synonym(name: str, key: TopicKey) -> BrokerKey:
    """Row of a broker key that differs from its topic key in name and scope at most."""
    return BrokerKey(name, key.type, key.default, key.check, CLUSTER, key.unit, "", key.doc)


TOPIC_KEYS = {key.name: key for key in _TOPIC_ROWS}
_INERT_TOPIC_KEYS = (
    "segment.ms", "segment.jitter.ms", "max.message.bytes", "preallocate", "flush.messages", "flush.ms",
    "message.timestamp.type", "local.retention.ms", "local.retention.bytes", "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms", "remote.log.copy.disable", "remote.log.delete.on.disable",
)  # fmt: skip
INERT_KEYS = frozenset(
    (
        "log.cleaner.io.buffer.size",
        *_INERT_TOPIC_KEYS,
        *(n for t in _INERT_TOPIC_KEYS for n in TOPIC_KEYS[t].synonyms),
    )
)
"""Keys that change nothing about cleanerd: they are checked and shown, and the reference says so."""
_SYNONYMS = {name: _synonym(name, key) for key in _TOPIC_ROWS for name in key.synonyms}
BROKER_KEYS = _SYNONYMS | {key.name: key for key in _BROKER_ROWS}

SPARK_CONF_PREFIX = "cleanerd.spark.conf."
_SECRET = re.compile("secret|password|token|access[.]?key", re.IGNORECASE)  # spark.redaction.regex
_SPARK_KEPT = ("spark.master", "spark.app.name")  # cleanerd.spark.master says the first


def broker_key(name: str) -> BrokerKey | None:
    """The row of a broker key: its own, or that of `SPARK_CONF_PREFIX` for a property of Spark; None for no key."""
    found = BROKER_KEYS.get(name)
    spark = name.removeprefix(SPARK_CONF_PREFIX)
    if found is None and spark != name and spark.startswith("spark.") and spark not in _SPARK_KEPT:
        return BrokerKey(name, STRING, None, ANY, CLUSTER, "", "", f"Property {spark} of Spark.")
    return found


def is_secret(name: str) -> bool:
    """Whether the value of a key is a secret."""
    return name.startswith(SPARK_CONF_PREFIX) and _SECRET.search(name) is not None
