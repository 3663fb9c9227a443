"""Requests of the library, and a cleaning of one log at a time of the test's choice."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cleanerd.cleaning.one_shot import clean_once
from cleanerd.cleaning.result import CleanRequest, LogResult, Progress
from cleanerd.config.load import resolve
from cleanerd.config.model import ClusterMetadata
from cleanerd.config.sources import read_sources
from cleanerd.env.clock import FixedNow
from cleanerd.spark_runtime.lazy_spark import LazySpark


def request_of(
    log_dir: Path,
    topic: str,
    settings: Mapping[str, object],
    *,
    assignments: Sequence[tuple[str, str]] = (),
    metadata: ClusterMetadata | None = None,
    **options: Any,
) -> CleanRequest:
    """For a log directory with this topic, which is compacted unless its settings say otherwise."""
    given = {"cleanup_policy": "compact"} | dict(settings)
    texts = [(topic, name.replace("_", "."), str(value)) for name, value in given.items()]
    found = resolve(read_sources(assignments=assignments, topic_assignments=texts), metadata)
    return CleanRequest(config=found.broker, topic_config=found.topic, log_dirs=(str(log_dir),), **options)


def clean_at(
    now_ms: int, log_dir: Path, topic: str, spark: LazySpark, settings: dict[str, object], **options: Any
) -> LogResult:
    """One run over all there is in the directory, which is the log of this topic."""
    request = request_of(log_dir, topic, settings, **options)
    (result,) = clean_once([request], Progress(), FixedNow(now_ms), session=spark)
    return result
