"""Frozen values of a resolved configuration.

`CleanerdConfig` holds for the whole process, `TopicConfig` for the logs of one topic. Their fields are filled
from the rows of `keys.py` that name them. Both are plain values: they cross process borders (Spark tasks)
freely. `Setting` and `Origin` say where each value came from; `KraftMetadata` is what the cluster's metadata
log contributes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from uuid import UUID


class Layer(Enum):
    """Where a value can come from, highest precedence first."""

    COMMAND_LINE = "command line"
    TOPIC_FILE = "topic file"
    METADATA = "metadata log"
    ENVIRONMENT = "environment"
    CONFIG_FILE = "config file"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where one value came from; `detail` is file and line, variable, option or record."""

    layer: Layer
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.layer.value}: {self.detail}" if self.detail else self.layer.value


@dataclass(frozen=True, slots=True)
class Setting:
    """A parsed value with its origin."""

    value: Any  # a `values.Value`; of which type, the row of the key says
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerdConfig:
    """Process-wide values (spec behaviour 8A, 8C; cleanerd's own keys)."""

    log_dirs: tuple[str, ...]
    metadata_log_dir: str  # as configured, else the first of log_dirs (spec disk A1)
    log_cleaner_enable: bool  # of cleanerd: its own key wins over the broker's
    log_cleaner_threads: int
    log_cleaner_threads_is_set: bool  # False: no number was chosen, cleanerd may use all cores
    dedupe_buffer_size_bytes: int
    io_buffer_load_factor: float
    io_max_bytes_per_second: float
    backoff_ms: int
    producer_id_expiration_ms: int
    retention_check_interval_ms: int
    spark_master: str  # "": local[log.cleaner.threads]
    spark_conf: tuple[tuple[str, str], ...] = field(repr=False)  # properties of Spark, sorted
    job_stall_timeout_ms: int
    chunk_bytes: int
    merge_enable: bool
    io_max_read_bytes_per_second: float
    io_max_write_bytes_per_second: float
    spark_idle_timeout_ms: int
    job_max_bytes: int
    job_max_logs: int
    scan_interval_ms: int
    retry_max: int
    retry_backoff_ms: int
    reserved_topics: tuple[str, ...]
    reserved_max_wait_ms: int
    commit_live: str  # auto or off
    broker_agent_untested: bool
    staged_max_bytes: int  # -1: only free space limits it
    staged_min_free_ratio: float
    staged_commit_interval_ms: int
    broker_cleaner_grace_ms: int
    kafka_bootstrap_servers: tuple[str, ...]  # empty: no cluster to ask
    kafka_client_config: str  # "": none
    shutdown_timeout_ms: int
    state_dir: str
    history_max_age_ms: int
    history_max_bytes: int
    control_socket: str
    metrics_listen: str  # "": none
    metrics_per_partition_topics: tuple[str, ...]
    page: bool
    log_format: str
    log_level: str

    @property
    def round_pause_s(self) -> float:
        """How long to pause between two rounds over logs that may need retention, in seconds (1.28)."""
        return min(self.backoff_ms, self.retention_check_interval_ms) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """Values of one topic (spec behaviour 8B)."""

    cleanup_policy: tuple[str, ...]
    min_cleanable_dirty_ratio: float  # of cleanerd: its own key wins
    broker_min_cleanable_dirty_ratio: float  # what the broker's cleaner goes by
    delete_retention_ms: int
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    retention_ms: int
    retention_bytes: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    file_delete_delay_ms: int
    compression: str  # of rewritten batches: that of their "batch" or of their "topic"
    compression_type: str
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    remote_storage_enable: bool

    @property
    def compact(self) -> bool:
        """Whether the policy asks for compaction (rule 1.3)."""
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        """Whether the policy asks for retention by time and size (rules 1.3, 6.1)."""
        return "delete" in self.cleanup_policy


@dataclass(frozen=True, slots=True)
class KraftMetadata:
    """What the metadata log says about configuration (spec disk F4).

    `broker_configs` is keyed by node id as text, "" being the cluster-wide default. `node_id` is the owner of
    the log directory that the metadata log was found in, where `meta.properties` tells. `release` is the one as which
    that node was last started, major and minor number; None: not known.
    """

    topic_ids: Mapping[str, UUID]
    topic_configs: Mapping[str, Mapping[str, str]]
    broker_configs: Mapping[str, Mapping[str, str]]
    directory: str = ""
    node_id: int | None = None
    release: str | None = None
