"""The table of keys: one row per key, the only place that knows names, types, defaults and ranges.

Source: spec behaviour section 8 (8A and 8C broker keys, 8B topic keys with their broker synonyms). Keys of
Kafka that have no influence on cleaning or retention are not here; in a broker's file they are ignored.

A topic key that has no value of its own takes that of the first of its broker synonyms that is set (8B, N4):
so milliseconds beat minutes beat hours. A broker synonym without a row of its own has type, default and check
of its topic key.
"""

from dataclasses import dataclass
from enum import Enum

from cleanerd.config.values import (
    ANY,
    Check,
    Value,
    ValueType,
    at_least,
    between,
    more_than,
    not_empty,
    one_of,
    some_of,
)

INT64_MAX = 2**63 - 1
DOUBLE_MAX = 1.7976931348623157e308
MS_PER_UNIT = {"ms": 1, "minutes": 60_000, "hours": 3_600_000}


class Scope(Enum):
    """Where a key may be changed while a broker runs (column "Dyn" of spec behaviour 8)."""

    STATIC = "no"
    CLUSTER = "cluster"
    TOPIC = "topic"


@dataclass(frozen=True, slots=True)
class BrokerKey:
    """A row of 8A, 8C or of cleanerd's own keys.

    `default` None: not set unless somebody sets it. `field` is the attribute of `CleanerdConfig`, "" where
    the key only feeds others.
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
    """A row of 8B, with its broker synonyms in order. `default` None: not set unless somebody sets it.

    `field` is the attribute of `TopicConfig`, "" where nothing in cleanerd depends on the key: it is
    validated and shown.
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


BOOLEAN, INT, LONG, DOUBLE, STRING, LIST, PATHS = ValueType
STATIC, CLUSTER, TOPIC = Scope
_A_DIRECTORY = not_empty("at least one directory")
_POLICY = some_of("compact", "delete")
_COMPRESSION = one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_TIMESTAMP_TYPE = one_of("CreateTime", "LogAppendTime")
KAFKA_LOG_DIR = "/tmp/kafka-logs"  # noqa: S108 - Kafka's default
_DAY_MS, _WEEK_MS = 86_400_000, 604_800_000

# fmt: off
_TOPIC_ROWS = (
    TopicKey("cleanup.policy", LIST, ("delete",), _POLICY, "",
             ("log.cleanup.policy",), "cleanup_policy", "compact, delete, both or neither."),
    TopicKey("min.cleanable.dirty.ratio", DOUBLE, 0.5, between(0, 1), "ratio",
             ("log.cleaner.min.cleanable.ratio",), "min_cleanable_dirty_ratio",
             "A log is cleaned when its dirty share is above this."),
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
             "How long a retired file stays as .deleted."),
    TopicKey("max.message.bytes", INT, 1_048_588, at_least(0), "bytes",
             ("message.max.bytes",), "max_message_bytes", "Largest batch (N6)."),
    TopicKey("preallocate", BOOLEAN, False, ANY, "",
             ("log.preallocate",), "preallocate", "Whether new segments get their full size at once."),
    TopicKey("flush.messages", LONG, INT64_MAX, at_least(1), "records",
             ("log.flush.interval.messages",), "", "Records between two flushes."),
    TopicKey("flush.ms", LONG, INT64_MAX, at_least(0), "ms",
             ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"), "", "Time between two flushes."),
    TopicKey("compression.type", STRING, "producer", _COMPRESSION, "",
             ("compression.type",), "",
             "Codec of appended batches; cleaning keeps the codec of each batch (4.27)."),
    TopicKey("message.timestamp.type", STRING, "CreateTime", _TIMESTAMP_TYPE, "",
             ("log.message.timestamp.type",), "", "Who stamps records."),
    TopicKey("local.retention.ms", LONG, -2, at_least(-2), "ms",
             ("log.local.retention.ms",), "", "Retention of tiered logs on local disk."),
    TopicKey("local.retention.bytes", LONG, -2, at_least(-2), "bytes",
             ("log.local.retention.bytes",), "", "Retention of tiered logs on local disk."),
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
              "log_cleaner_enable", "Whether compacted logs are cleaned and retained at all (rule 1.31)."),
    BrokerKey("log.cleaner.threads", INT, 1, at_least(1), CLUSTER, "",
              "log_cleaner_threads", "Cores that cleaning may use; not set: cleanerd chooses."),
    BrokerKey("log.cleaner.io.max.bytes.per.second", DOUBLE, DOUBLE_MAX, more_than(0), CLUSTER, "bytes/s",
              "io_max_bytes_per_second", "Throttle of reads plus writes."),
    BrokerKey("log.cleaner.dedupe.buffer.size", LONG, 134_217_728, ANY, CLUSTER, "bytes",
              "dedupe_buffer_size_bytes",
              "Memory for finding the newest record of every key (N1: more than 1 MiB per thread)."),
    BrokerKey("log.cleaner.io.buffer.size", INT, 524_288, at_least(0), CLUSTER, "bytes",
              "io_buffer_size_bytes", "Memory for reading and writing."),
    BrokerKey("log.cleaner.io.buffer.load.factor", DOUBLE, 0.9, more_than(0), CLUSTER, "ratio",
              "io_buffer_load_factor", "How full the dedupe buffer may get."),
    BrokerKey("log.cleaner.backoff.ms", LONG, 15_000, at_least(0), CLUSTER, "ms",
              "backoff_ms", "Pause when there is nothing to clean."),
    BrokerKey("message.max.bytes", INT, 1_048_588, at_least(0), CLUSTER, "bytes",
              "message_max_bytes", "Largest batch (N6)."),
    # 8B: synonyms that differ from their topic key
    BrokerKey("log.retention.ms", LONG, None, ANY, CLUSTER, "ms", "", "Retention time, first choice."),
    BrokerKey("log.retention.minutes", INT, None, ANY, STATIC, "minutes",
              "", "Retention time, second choice (N5)."),
    BrokerKey("log.retention.hours", INT, 168, ANY, STATIC, "hours",
              "", "Retention time, third choice (N5)."),
    BrokerKey("log.roll.ms", LONG, None, ANY, CLUSTER, "ms", "", "Rolling time, first choice."),
    BrokerKey("log.roll.hours", INT, 168, at_least(1), STATIC, "hours",
              "", "Rolling time, second choice (N5)."),
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
    BrokerKey("cleanerd.spark.master", STRING, "", ANY, STATIC, "",
              "spark_master", "Spark master; empty: local[log.cleaner.threads]."),
    BrokerKey("cleanerd.chunk.bytes", LONG, 67_108_864, at_least(1), STATIC, "bytes",
              "chunk_bytes", "Bytes of log that one Spark task takes."),
)
# fmt: on

IGNORED_TOPIC_KEYS = frozenset(
    (
        "unclean.leader.election.enable",
        "min.insync.replicas",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.zstd.level",
        "message.format.version",
        "message.timestamp.difference.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.after.max.ms",
        "message.downconversion.enable",
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
        "remote.storage.enable",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
    )
)
"""Topic keys of Kafka that do not concern cleaning. Any other unknown name is a mistake of its writer."""


def _synonym(name: str, key: TopicKey) -> BrokerKey:
    """Row of a broker key that differs from its topic key in name and scope alone."""
    return BrokerKey(name, key.type, key.default, key.check, CLUSTER, key.unit, "", key.doc)


TOPIC_KEYS = {key.name: key for key in _TOPIC_ROWS}
_SYNONYMS = {name: _synonym(name, key) for key in _TOPIC_ROWS for name in key.synonyms}
BROKER_KEYS = _SYNONYMS | {key.name: key for key in _BROKER_ROWS}
