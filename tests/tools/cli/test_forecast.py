"""`cleanerd forecast`: what it says a cleaning would remove is what the rules remove."""

import json
from pathlib import Path

import numpy as np

from cleanerd.format.batch import Record, encode_batch
from cleanerd.policy.verdicts import RecordVerdict
from cleanerd.tools.client.writer import LogWriter
from tests.cli.conftest import Run
from tests.kernels.reference import Facts, Segment, clean
from tests.synthetic import Shape, write_log
from tests.tools.insight.logdirs import GOLDEN

COMPACT = ("--set", "log.cleanup.policy=compact")
NOW_MS = 1_795_237_300_000


def logs(run: Run, log_dir: Path, *options: str) -> list[dict]:
    ran = run("forecast", f"--log-dir={log_dir}", *COMPACT, *options, "-o", "json")
    assert ran.code == 0
    found: list[dict] = json.loads(ran.out)["logs"]
    return found


def test_what_the_rules_remove(run: Run, tmp_path: Path) -> None:
    """Beside the cleaning in plain Python; the active segment stays out of it."""
    write_log(tmp_path / "t-0", 3000, Shape(keys=500, value_bytes=20, segment_bytes=40_000))
    (found,) = logs(run, tmp_path)
    end = found["end_offset"]
    paths = [path for path in sorted((tmp_path / "t-0").glob("*.log")) if int(path.stem) < end]
    facts = Facts(NOW_MS, None, first_dirty_offset=0, round_end=end, producers={}, aborted=())
    done = clean([Segment(path.read_bytes(), retain_legacy_deletes=True) for path in paths], facts)
    removed = done.counts[RecordVerdict.SUPERSEDED]
    assert removed > 1000
    assert found["removable_records"] == {"value": removed, "error": 0}
    assert found["bytes_to_read"] == sum(path.stat().st_size for path in paths)
    left = sum(len(data) for data in done.segments)
    assert abs(found["peak_extra_bytes"] - left) < 0.2 * found["bytes_to_read"]  # headers of batches stay


def test_nothing_to_foresee_is_said(run: Run, tmp_path: Path) -> None:
    """Kafka's default is `delete`."""
    write_log(tmp_path / "t-0", 500, Shape(keys=500, value_bytes=20, segment_bytes=40_000))
    assert "whose cleanup.policy contains compact" in run("forecast", f"--log-dir={tmp_path}").err


def test_tombstones_go_when_their_horizon_has_passed(run: Run, tmp_path: Path) -> None:
    """Not those without a horizon, or with a later one; of what superseded them it does not matter."""
    horizons = {b"old": NOW_MS, b"gone": NOW_MS, b"later": NOW_MS + 1, b"new": None}
    records = [Record(n, NOW_MS - 10, key, b"v") for n, key in enumerate(horizons)]
    batches = [encode_batch(records, base_offset=0)]
    for n, (key, horizon_ms) in enumerate(horizons.items(), len(records)):
        tombstones = [Record(n, NOW_MS - 5, key, None)]
        batches.append(encode_batch(tombstones, base_offset=n, delete_horizon_ms=horizon_ms))
    batches.append(encode_batch([Record(8, NOW_MS, b"gone", b"back")], base_offset=8))
    with LogWriter(str(tmp_path), "t", 0, segment_bytes=100) as writer:
        for batch in (*batches, encode_batch([Record(9, NOW_MS, b"old", b"active")], base_offset=9)):
            writer.append(batch)
    for now_ms, expired in ((NOW_MS - 1, 0), (NOW_MS, 1), (NOW_MS + 1, 2)):
        facts = Facts(now_ms, None, first_dirty_offset=0, round_end=9, producers={}, aborted=())
        done = clean([Segment(batch, retain_legacy_deletes=True) for batch in batches], facts)
        assert done.counts[RecordVerdict.TOMBSTONE] == expired
        (found,) = logs(run, tmp_path, "--now-ms", str(now_ms))
        assert found["end_offset"] == 9
        removed = done.counts[RecordVerdict.SUPERSEDED] + expired
        assert found["removable_records"] == {"value": removed, "error": 0}


def test_a_sample_of_keys_has_an_error_and_exact_has_none(run: Run, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("cleanerd.tools.cli.forecast._KEYS_MAX", 2000)
    keys = write_log(tmp_path / "t-0", 60_000, Shape(keys=20_000, value_bytes=10))
    superseded = len(keys) - len(np.unique(keys))
    (sampled,) = logs(run, tmp_path)
    (exact,) = logs(run, tmp_path, "--exact")
    assert exact["removable_records"] == {"value": superseded, "error": 0}
    assert 0 < sampled["removable_records"]["error"] < superseded
    assert abs(sampled["removable_records"]["value"] - superseded) < 4 * sampled["removable_records"]["error"]


def test_a_table_of_what_a_broker_wrote(run: Run) -> None:
    """Logs without anything to clean say why."""
    ran = run("forecast", f"--log-dir={GOLDEN}", *COMPACT)
    assert ran.code == 0
    assert "REMOVES" in ran.out
    assert "transactions-0" in ran.out
