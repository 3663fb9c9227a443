"""kill -9 of whole runs of `cleanerd clean`: what is left, recovery or a broker's start makes a whole log of.

Each operation of a commit has its turn in `tests/proofs`: on a disk in memory, and on an ext4 that loses power.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cleanerd.format.names import Suffix, parse_segment_file
from cleanerd.storage.segments import live_bases
from tests.harness.disks.by_hand import GROUPS, TP, batches, kept_offsets, write_log
from tests.harness.disks.repairs import broker_starts, newest, recovers

pytestmark = pytest.mark.soak

CLEANS_KILLED = 5


@pytest.fixture
def original(tmp_path: Path) -> Path:
    log_dir = tmp_path / "original"
    log_dir.mkdir()
    write_log(log_dir, seed=7)
    return log_dir


def test_log_is_worth_the_trouble(original: Path) -> None:
    """Groups that end early (spec disk X6), an aborted transaction, deleted keys."""
    directory = str(original / str(TP))
    kept = kept_offsets(directory)
    bases = live_bases(directory)[:-1]
    by_segment = [sum(b.last_offset in kept for b in batches(directory, base)) for base in bases]
    last = by_segment[GROUPS[1]]
    assert (last[0] > 0, last[-1], sum(by_segment[GROUPS[2]])) == (True, 0, 0)
    assert not [key for key in newest(original) if key is not None and key.startswith(b"gone")]
    assert any(name.endswith(".txnindex") for name in os.listdir(directory))


@pytest.mark.fault("the daemon is killed")
def test_whole_runs_of_cleanerd_clean_killed_with_spark_and_all(tmp_path: Path) -> None:
    """The process of the command line dies at a random moment; the next run takes over what is left."""
    chance, log_dir = random.Random(5), tmp_path / "logs"
    log_dir.mkdir()
    write_log(log_dir, seed=3)
    expected, kept = newest(log_dir), kept_offsets(str(log_dir / str(TP)))
    arguments = [sys.executable, "-m", "cleanerd.cli.main", "clean", "--force", "-o", "json"]
    arguments += [
        f"--log-dir={log_dir}",
        "--set=log.cleanup.policy=compact",
        "--set=cleanerd.spark.master=local[1]",
    ]
    began = time.monotonic()
    shutil.copytree(log_dir, tmp_path / "aside")
    aside = [a.replace(str(log_dir), str(tmp_path / "aside")) for a in arguments]
    subprocess.run(aside, check=True, capture_output=True)
    duration_s = time.monotonic() - began
    for _ in range(CLEANS_KILLED):
        with subprocess.Popen(
            arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        ) as process:
            try:
                process.wait((0.5 + 0.5 * chance.random()) * duration_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # the session that this test started, and nobody else
        for repair in (
            recovers,
            broker_starts,
        ):  # whoever comes next: this may have been in the middle of a commit
            shutil.copytree(log_dir, tmp_path / "next")
            repair(tmp_path / "next")
            assert newest(tmp_path / "next") == expected
            shutil.rmtree(tmp_path / "next")
    done = subprocess.run(arguments, check=True, capture_output=True, text=True)
    assert json.loads(done.stdout)["results"][0]["outcome"] in {"committed", "unchanged", "skipped"}
    directory = str(log_dir / str(TP))
    assert newest(log_dir) == expected
    assert {b.last_offset for base in live_bases(directory) for b in batches(directory, base)} >= kept
    assert {n.suffix for n in map(parse_segment_file, os.listdir(directory)) if n is not None} == {
        Suffix.LIVE
    }
