"""A cleaning of one log at a time of the test's choice."""

from pathlib import Path
from typing import Any

from cleanerd.cleaning.one_shot import clean_once
from cleanerd.cleaning.result import CleanRequest, LogResult, Progress
from cleanerd.config.load import resolve
from cleanerd.config.sources import read_sources
from cleanerd.env.clock import FixedNow
from cleanerd.spark_runtime.lazy_spark import LazySpark


def clean_at(
    now_ms: int, log_dir: Path, topic: str, spark: LazySpark, settings: dict[str, object], **options: Any
) -> LogResult:
    """One run over all there is in the directory, which is the log of this topic. `options`: those of the request."""
    given = {"cleanup.policy": "compact"} | {
        name.replace("_", "."): value for name, value in settings.items()
    }
    found = resolve(
        read_sources(topic_assignments=[(topic, name, str(value)) for name, value in given.items()])
    )
    request = CleanRequest(config=found.broker, topic_config=found.topic, log_dirs=(str(log_dir),), **options)
    (result,) = clean_once([request], Progress(), FixedNow(now_ms), session=spark)
    return result
