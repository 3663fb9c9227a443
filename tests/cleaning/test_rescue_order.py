"""A rescue takes groups in the order of what they free: what that means for the records that stay (`cleaning.rescue`)."""

import os
from pathlib import Path

from cleanerd.format.names import Suffix
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.storage.segments import OpenSegment
from tests.cleaning.test_rescue import SEGMENT_BYTES, fill, run
from tests.harness.disks.mounts import mounted
from tests.harness.logs.troubled import newest, put, stop_broker


def test_a_tombstone_gets_no_horizon_while_what_it_deletes_may_wait_for_room(
    spark: LazySpark, tmp_path: Path
) -> None:
    """Else both could go at once, delete.retention.ms later, and who has read the value just before would never meet it."""
    with mounted(tmp_path, "-t", "tmpfs", "-o", "size=8m", "none"):
        values: list[tuple[bytes, bytes | None]] = [
            (b"key %d" % (n % 1_000), os.urandom(900)) for n in range(5_000)
        ]
        values[2_000] = (b"deleted", None)
        stop_broker(tmp_path, {"t": put(tmp_path, "t", values, segment_bytes=SEGMENT_BYTES)})
        fill(tmp_path)
        _, done, _ = run(spark, tmp_path, "--yes", "--until=60%")
        assert sum(step["frees_bytes"] for step in done["steps"]) > 3e6
        assert newest(tmp_path / "t-0")[b"deleted"] is None
        for path in (tmp_path / "t-0").glob("*.log"):
            with OpenSegment(str(path.parent), int(path.stem), Suffix.LIVE) as segment:
                headers = [batch.header for batch in segment.batches()]
            assert {header.delete_horizon_ms for header in headers if header is not None} <= {None}, path
