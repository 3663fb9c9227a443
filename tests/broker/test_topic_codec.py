"""Logs that were rewritten in the codecs of their topics: a broker loads them, and consumers read every record."""

from pathlib import Path

import pytest

from cleanerd.env.clock import SystemClock
from tests.harness.broker.agreement import check_with_broker, compare_with_model, dumps
from tests.harness.broker.origin import Origin
from tests.harness.broker.tools import clean, first_dirty_offset

pytestmark = [pytest.mark.broker, pytest.mark.timeout(1200)]

TOPIC_CODECS = (
    ("uncompressed", {}),
    ("gzip", {}),
    ("gzip", {"compression.gzip.level": "9"}),
    ("snappy", {}),
    ("lz4", {}),
    ("lz4", {"compression.lz4.level": "17"}),
    ("zstd", {}),
    ("zstd", {"compression.zstd.level": "22"}),
    ("zstd", {"compression.zstd.level": "-131072"}),
)


def test_consumers_read_all_records_of_every_codec_and_level(
    origin: Origin, log_dir: Path, tmp_path: Path
) -> None:
    """Every kind of producer and transaction, rewritten in every codec between the ends of its levels."""
    wanted = {
        plan.topic: TOPIC_CODECS[(n + n // 18) % len(TOPIC_CODECS)] for n, plan in enumerate(origin.plans)
    }
    now_ms = SystemClock().now_ms()
    before = dumps(log_dir, origin.plans)
    starts = {topic: first_dirty_offset(log_dir, log) for topic, log in before.items()}
    options = ["--set", "cleanerd.compression=topic", "--now-ms", str(now_ms)]
    for topic, (codec, level) in wanted.items():
        for key, value in {"compression.type": codec, **level}.items():
            options += ["--topic-set", f"{topic}:{key}={value}"]
    result = clean(log_dir, origin.plans, *options)
    assert result.exit_code == 0, result.messages
    compare_with_model(log_dir, before, now_ms=now_ms, starts=starts)
    rewritten: dict[str, int] = {}
    for topic, after in dumps(log_dir, origin.plans).items():
        old, codec = set(before[topic].batches), wanted[topic][0]
        changed = [batch for batch in after.batches if batch not in old and batch.records]
        found = {batch.codec for batch in changed if not batch.control}
        assert found <= {codec.replace("uncompressed", "none").upper()}, topic
        rewritten[codec] = rewritten.get(codec, 0) + len(changed)
    assert min(rewritten.values()) > 20, rewritten
    check_with_broker(tmp_path / "broker", log_dir, before)
