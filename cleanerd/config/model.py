"""Every key, declared once: a field with type, unit, default, range, scope and purpose.

Source: spec behaviour section 8 (8A and 8C broker keys, 8B topic keys with their broker synonyms). Keys of
Kafka that have no influence on cleaning or retention are not here; in a broker's file they are ignored. Those
of 8C that cleanerd leaves alone stand in `keys.IGNORED_BROKER_KEYS`, each with the reason.

`CleanerdConfig` holds for the whole process, `TopicConfig` for the logs of one topic. Both are plain values: they cross
process borders (Spark tasks) freely. A topic key that has no value of its own takes that of the first of its broker
synonyms that is set (8B, 8.N4): so milliseconds beat minutes beat hours. `TopicDefaults` has those synonyms.

`ClusterMetadata` is what the cluster's metadata log contributes, or a broker's answer.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any
from uuid import UUID

from pydantic import AfterValidator, Field, create_model

from cleanerd.config.settings import (
    Bool,
    Double,
    Int,
    Key,
    Long,
    Paths,
    Properties,
    Rate,
    Scope,
    Settings,
    Str,
    Words,
    declared_keys,
    metadata,
)
from cleanerd.config.values import (
    DOUBLE_MAX,
    Check,
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
KAFKA_LOG_DIR = "/tmp/kafka-logs"  # noqa: S108 - Kafka's default
_POLICY = some_of("compact", "delete")
DEDUPE = "dedupe"
"""The first name of `compact` in Kafka."""
STATIC = Scope.STATIC
_SOCKET = matching("/.{1,106}", "an absolute path of at most 107 characters")  # sun_path of Linux
_TOPIC_GLOBS = matching(r"[a-zA-Z0-9._*?\[\]!-]{1,249}", "a list of topic names or shell globs")
_DAY_MS, _WEEK_MS = 86_400_000, 604_800_000
_GZIP_LEVEL = Check("-1 or a number in [1, 9]", lambda value: value == -1 or value in range(1, 10))
_RESERVED = ("__consumer_offsets", "__transaction_state", "__share_group_state", "__remote_log_metadata")


def _renamed(policy: tuple[str, ...]) -> tuple[str, ...]:
    return tuple("compact" if word == DEDUPE else word for word in policy)


# fmt: off

class CleanerdConfig(Settings):
    """Process-wide values (spec behaviour 8A, 8C; cleanerd's own keys)."""

    # 8C: where the logs are and whose they are
    broker_log_dirs: Annotated[Paths | None, not_empty("at least one directory"), Key("log.dirs", "Log directories.",
        scope=STATIC)] = None
    broker_log_dir: Annotated[Paths, not_empty("at least one directory"), Key("log.dir",
        "Log directories, if log.dirs is not set.", scope=STATIC)] = (KAFKA_LOG_DIR,)
    broker_metadata_log_dir: Annotated[Str | None, not_empty("a directory"), Key("metadata.log.dir",
        "Directory of the metadata log, if it is not the first log directory.", scope=STATIC)] = None
    node_id: Annotated[Int | None, at_least(0), Key("node.id", "Id of the broker, which selects its dynamic values.",
        scope=STATIC)] = None
    broker_id: Annotated[Int | None, Key("broker.id", "Id of the broker, if node.id is not set.", scope=STATIC)] = None
    process_roles: Annotated[Words | None, Key("process.roles", "Roles of the node. As node.id and broker.id do, it says "
        "that the log directories are a broker's: without meta.properties they are damaged.", scope=STATIC)] = None
    quorum_voters: Annotated[Words, Key("controller.quorum.voters", "Voters of the metadata quorum: with others "
        "than this node nothing expires by settings that they may change while it is down.")] = ()
    broker_log_cleaner_enable: Annotated[Bool, Key("log.cleaner.enable",
        "Whether compacted logs are cleaned, and get retention, at all.", scope=STATIC)] = True
    log_cleaner_threads: Annotated[Int, at_least(1), Key("log.cleaner.threads",
        "Cores that cleaning may use; not set: cleanerd chooses.")] = 1
    io_max_bytes_per_second: Annotated[Rate, more_than(0), Key("log.cleaner.io.max.bytes.per.second",
        "Limit on reads plus writes.")] = DOUBLE_MAX
    dedupe_buffer_size_bytes: Annotated[Long, Key("log.cleaner.dedupe.buffer.size",
        "Memory for finding the newest record of every key (more than 1 MiB per thread).", unit="bytes")] = 134_217_728
    io_buffer_load_factor: Annotated[Double, more_than(0), Key("log.cleaner.io.buffer.load.factor",
        "How full the dedupe buffer may get.", unit="ratio")] = 0.9
    io_buffer_size_bytes: Annotated[Int, at_least(0), Key("log.cleaner.io.buffer.size",
        "Memory of all cores together for what is read and, until its place in the new segment is known, written; each "
        "takes 2 MiB and 2.5 times cleanerd.chunk.bytes where its share is less.", unit="bytes")] = 524_288
    backoff_ms: Annotated[Long, at_least(0), Key("log.cleaner.backoff.ms",
        "Pause when there is nothing to clean. In a log directory that has just begun a job, small logs wait so long, but a "
        "minute at most, for others to share the next one.")] = 15_000
    retention_check_interval_ms: Annotated[Long, at_least(1), Key("log.retention.check.interval.ms",
        "Pause between two retention passes.", scope=STATIC)] = 300_000
    producer_id_expiration_ms: Annotated[Int, at_least(1), Key("producer.id.expiration.ms",
        "How long an idle producer is remembered.")] = _DAY_MS
    transactional_id_expiration_ms: Annotated[Int, at_least(1), Key("transactional.id.expiration.ms",
        "How long brokers before 3.4, and ZooKeeper brokers, remember an idle producer, if that is longer.",
        scope=STATIC)] = _WEEK_MS
    own_log_cleaner_enable: Annotated[Bool | None, Key("cleanerd.log.cleaner.enable",
        "Whether cleanerd cleans compacted logs and applies retention to them; overrides log.cleaner.enable.")] = None
    spark_master: Annotated[Str, Key("cleanerd.spark.master", "Spark master; empty: local[log.cleaner.threads], "
        "or all cores that this process may use (affinity, cpu.max) if that is not set.",
        scope=STATIC)] = ""
    chunk_bytes: Annotated[Long, at_least(1), Key("cleanerd.chunk.bytes",
        "Bytes of log that one core works on at a time.", scope=STATIC)] = 33_554_432
    io_max_read_bytes_per_second: Annotated[Rate, more_than(0), Key("cleanerd.io.max.read.bytes.per.second",
        "Limit on reads alone; a number or `unlimited`.")] = DOUBLE_MAX
    io_max_write_bytes_per_second: Annotated[Rate, more_than(0), Key("cleanerd.io.max.write.bytes.per.second",
        "Limit on writes alone; a number or `unlimited`.")] = DOUBLE_MAX
    throttle_request_queue_max_ms: Annotated[Long, at_least(0), Key("cleanerd.throttle.request.queue.max.ms",
        "The daemon slows cleaning down while requests of clients wait longer than this, on average, in the queue "
        "of a running broker (cleanerd.commit.live=auto); 0: never.")] = 0
    spark_idle_timeout_ms: Annotated[Long, at_least(0), Key("cleanerd.spark.idle.timeout.ms",
        "Idle time after which Spark is stopped and its memory given back. "
        "Its next start takes some 3 CPU seconds.")] = 600_000
    scan_interval_ms: Annotated[Long, at_least(1), Key("cleanerd.scan.interval.ms",
        "Pause between two full scans of the log directories.")] = 30_000
    retry_max: Annotated[Int, at_least(1), Key("cleanerd.retry.max",
        "Failures in a row after which a log is uncleanable.", unit="failures")] = 3
    retry_backoff_ms: Annotated[Long, at_least(1), Key("cleanerd.retry.backoff.ms",
        "Pause after the first failure; it doubles with each further one.")] = 10_000
    reserved_topics: Annotated[Words, matching(TOPIC_NAME, "a list of topic names"), Key("cleanerd.reserved.topics",
        "Topics that do not wait behind long jobs.")] = _RESERVED
    commit_live: Annotated[Str, one_of("auto", "off"), Key("cleanerd.commit.live",
        "auto: a running broker swaps results in, through an agent in its JVM. off: they wait until it stops.")] = "off"
    broker_agent_untested: Annotated[Bool, Key("cleanerd.broker.agent.untested",
        "Whether to use that agent in untested releases of Kafka, too.")] = False
    staged_min_free_ratio: Annotated[Double, between(0, 1), Key("cleanerd.staged.min.free.ratio",
        "Share of the file system that results which wait for a broker to stop leave free for it.")] = 0.1
    staged_commit_interval_ms: Annotated[Long, at_least(1), Key("cleanerd.staged.commit.interval.ms",
        "How often to look for a free .lock while something is staged.")] = 1000
    broker_cleaner_grace_ms: Annotated[Long, at_least(0), Key("cleanerd.broker.cleaner.grace.ms",
        "How long a log is left to the cleaner of a live broker once that was seen at work; 0: not at all.")] = 900_000
    shutdown_timeout_ms: Annotated[Long, at_least(0), Key("cleanerd.shutdown.timeout.ms",
        "Time for work in progress to stop.")] = 20_000
    state_dir: Annotated[Str, matching("/.+", "an absolute path"), Key("cleanerd.state.dir",
        "Directory of the history and of state that must survive a restart.", scope=STATIC)] = "/var/lib/cleanerd"
    control_socket: Annotated[Str, _SOCKET, Key("cleanerd.control.socket", "Unix socket of the control API.",
        scope=STATIC)] = "/run/cleanerd/control.sock"
    metrics_listen: Annotated[Str, address_or_nothing(), Key("cleanerd.metrics.listen",
        "Address of the metrics, host:port; empty: none.", scope=STATIC)] = "127.0.0.1:11308"
    metrics_per_partition_topics: Annotated[Words, _TOPIC_GLOBS, Key("cleanerd.metrics.per.partition.topics",
        "Topics whose partitions have metrics of their own.")] = ()
    page: Annotated[Bool, Key("cleanerd.page",
        "Whether that address also serves the read-only status page: all logs, jobs and history.", scope=STATIC)] = True
    log_format: Annotated[Str, one_of("auto", "json", "console"), Key("cleanerd.log.format",
        "Format of the log; auto: console on a terminal, else json.", scope=STATIC)] = "auto"
    log_level: Annotated[Str, one_of("debug", "info", "warning", "error"), Key("cleanerd.log.level",
        "Lowest level that is logged.")] = "info"
    spark_conf: Annotated[Properties, Key("cleanerd.spark.conf.*", "Properties of Spark, sorted."), Field(repr=False)] = ()

    @property
    def log_dirs(self) -> tuple[str, ...]:
        """The log directories: `log.dirs` wins over `log.dir`."""
        return self.broker_log_dirs or self.broker_log_dir

    @property
    def own_id(self) -> int | None:
        """Id of the broker; None if it is not configured, or is assigned by ZooKeeper (-1)."""
        configured = self.broker_id if self.node_id is None else self.node_id
        return None if configured is None or configured < 0 else configured

    @property
    def metadata_log_dir(self) -> str:
        """The directory of the metadata log: the configured one, else the first log directory (spec disk A1)."""
        return self.broker_metadata_log_dir or self.log_dirs[0]

    @property
    def log_cleaner_enable(self) -> bool:
        """Whether cleanerd cleans: its own key wins over the broker's."""
        return self.broker_log_cleaner_enable if self.own_log_cleaner_enable is None else self.own_log_cleaner_enable

    @property
    def off_by(self) -> str | None:
        """The key that is false and keeps cleanerd from cleaning; None: it cleans."""
        if self.log_cleaner_enable:
            return None
        return "log.cleaner.enable" if self.own_log_cleaner_enable is None else "cleanerd.log.cleaner.enable"

    @property
    def log_cleaner_threads_is_set(self) -> bool:
        """False: no number was chosen, cleanerd may use all cores."""
        return "log_cleaner_threads" in self.model_fields_set

    @property
    def round_pause_s(self) -> float:
        """How long to pause between two rounds over logs that may need retention, in seconds (1.28)."""
        return min(self.backoff_ms, self.retention_check_interval_ms) / 1000


class TopicConfig(Settings):
    """Values of one topic (spec behaviour 8B)."""

    cleanup_policy: Annotated[Words, AfterValidator(_renamed), _POLICY,
        Key("cleanup.policy", "compact, delete, both or neither.", synonyms=("log.cleanup.policy",))] = ("delete",)
    broker_min_cleanable_dirty_ratio: Annotated[Double, between(0, 1), Key("min.cleanable.dirty.ratio",
        "A log is cleaned when its dirty share is above this.", synonyms=("log.cleaner.min.cleanable.ratio",))] = 0.5
    own_min_cleanable_dirty_ratio: Annotated[Double | None, between(0, 1), Key("cleanerd.min.cleanable.dirty.ratio",
        "min.cleanable.dirty.ratio for cleanerd alone; the broker's cleaner goes by the key without the prefix.",
        synonyms=("cleanerd.min.cleanable.dirty.ratio",))] = None
    delete_retention_ms: Annotated[Long, at_least(0), Key("delete.retention.ms",
        "How long a tombstone stays after its first cleaning.", synonyms=("log.cleaner.delete.retention.ms",))] = _DAY_MS
    min_compaction_lag_ms: Annotated[Long, at_least(0), Key("min.compaction.lag.ms",
        "Records younger than this are not compacted.", synonyms=("log.cleaner.min.compaction.lag.ms",))] = 0
    max_compaction_lag_ms: Annotated[Long, at_least(1), Key("max.compaction.lag.ms",
        "Records older than this make their log eligible at any dirty ratio.",
        synonyms=("log.cleaner.max.compaction.lag.ms",))] = INT64_MAX
    retention_ms: Annotated[Long, at_least(-1), Key("retention.ms",
        "With policy delete: age at which a segment goes; -1 never.",
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"))] = _WEEK_MS
    retention_bytes: Annotated[Long, Key("retention.bytes",
        "With policy delete: size that a log is cut to; negative never.", synonyms=("log.retention.bytes",))] = -1
    topic_segment_bytes: Annotated[Int, at_least(14), Key("segment.bytes", "Largest segment, also of a cleaned one.",
        synonyms=("log.segment.bytes",))] = 1_073_741_824
    internal_segment_bytes: Annotated[Int | None, at_least(1), Key("internal.segment.bytes",
        "Replaces segment.bytes where it is set (Kafka 4.1 and later, for tests).")] = None
    segment_index_bytes: Annotated[Int, at_least(4), Key("segment.index.bytes", "Largest index file.",
        synonyms=("log.index.size.max.bytes",))] = 10_485_760
    index_interval_bytes: Annotated[Int, at_least(0), Key("index.interval.bytes",
        "Bytes of log between two index entries.", synonyms=("log.index.interval.bytes",))] = 4096
    file_delete_delay_ms: Annotated[Long, at_least(0), Key("file.delete.delay.ms",
        "How long a retired file stays as .deleted; `cleanerd clean` deletes at once.",
        synonyms=("log.segment.delete.delay.ms",))] = 60_000
    compression_type: Annotated[Str, one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        Key("compression.type",
        "Codec of appended batches; with cleanerd.compression=topic, also of rewritten ones.",
        synonyms=("compression.type",))] = "producer"
    compression_gzip_level: Annotated[Int, _GZIP_LEVEL, Key("compression.gzip.level",
        "Level of that codec where compression.type names it.", synonyms=("compression.gzip.level",))] = -1
    compression_lz4_level: Annotated[Int, between(1, 17), Key("compression.lz4.level",
        "Level of that codec where compression.type names it.", synonyms=("compression.lz4.level",))] = 9
    compression_zstd_level: Annotated[Int, between(-131_072, 22), Key("compression.zstd.level",
        "Level of that codec where compression.type names it.", synonyms=("compression.zstd.level",))] = 3
    compression: Annotated[Str, one_of("batch", "topic"), Key("cleanerd.compression",
        "Codec of a batch that is rewritten: that of the batch, or compression.type and level of its topic. Batches "
        "that lose nothing stay as they are.", synonyms=("cleanerd.compression",))] = "batch"
    remote_storage_enable: Annotated[Bool, Key("remote.storage.enable",
        "A tiered log: only its broker knows which segments it has copied, so time and size retention are left to it."
        )] = False

    @property
    def min_cleanable_dirty_ratio(self) -> float:
        """The ratio for cleanerd: its own key wins over the key of the broker's cleaner."""
        own = self.own_min_cleanable_dirty_ratio
        return self.broker_min_cleanable_dirty_ratio if own is None else own

    @property
    def segment_bytes(self) -> int:
        """Largest segment, in bytes."""
        return self.internal_segment_bytes or self.topic_segment_bytes

    @property
    def compact(self) -> bool:
        """Whether the policy asks for compaction (rule 1.3)."""
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        """Whether the policy asks for retention by time and size (rules 1.3, 6.1)."""
        return "delete" in self.cleanup_policy


class _OtherSynonyms(Settings):
    """Broker synonyms that differ from their topic key in type, unit, default or range."""

    log_retention_ms: Annotated[Long | None, Key("log.retention.ms", "Retention time, first choice.")] = None
    log_retention_minutes: Annotated[Int | None, Key("log.retention.minutes", "Retention time, second choice.",
        scope=STATIC)] = None
    log_retention_hours: Annotated[Int, Key("log.retention.hours", "Retention time, third choice.", scope=STATIC)] = 168

# fmt: on


def _same_synonyms() -> Iterator[tuple[str, Any]]:
    """All other broker synonyms, declared as their topic keys are."""
    for name, field in TopicConfig.model_fields.items():
        key, *others = sorted(metadata(field), key=lambda one: not isinstance(one, Key))
        assert isinstance(key, Key)
        for synonym in key.synonyms:
            if synonym not in declared_keys(_OtherSynonyms):
                yield name, (Annotated[Any, *others, replace(key, name=synonym, synonyms=())], field.default)


TopicDefaults: type[Settings] = create_model(
    "TopicDefaults", __base__=_OtherSynonyms, **dict(_same_synonyms())
)


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """The settings of the cluster, from its metadata log (spec disk F4), or else from a broker's answer.

    `topic_ids` has all topics that are known, with None for one without an id. `broker_configs` is keyed by node id as text,
    "" being the cluster-wide default; of an answer, the values that hold in the broker for topics without their own.
    `node_id` is the owner of the log directory that the metadata log was found in, by `meta.properties`. `release` is the
    one as which that node was last started, major and minor number; None: not known. `is_whole`: a topic that is not here
    does not exist, which cannot be concluded from an answer. `has_other_voters`: other nodes may change all this while this
    node is down.
    """

    topic_ids: Mapping[str, UUID | None]
    topic_configs: Mapping[str, Mapping[str, str]]
    broker_configs: Mapping[str, Mapping[str, str]]
    directory: str = ""
    node_id: int | None = None
    release: str | None = None
    is_whole: bool = True
    has_other_voters: bool = False

    @property
    def is_final(self) -> bool:
        """Whether nothing can change before this node runs again. Else it is no reason to delete by time or size."""
        return self.is_whole and not self.has_other_voters
