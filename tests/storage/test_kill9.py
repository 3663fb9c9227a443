"""kill -9 of real processes on real files: whatever is left, recovery or a broker's start makes a whole log of it.

A commit kills itself before each of its operations in turn, others are killed from outside at a random moment. Then
cleanerd recovers or a broker starts, in every order, sometimes killed as well.
"""

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cleanerd.format.names import Suffix, parse_segment_file
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.segments import live_bases
from cleanerd.storage.staged import discard_staged
from tests.harness.disks import kill9_child
from tests.harness.disks.kill9_child import FILES, GROUPS, TP, batches, kept_offsets, write_log
from tests.harness.disks.repairs import REPAIRS, Truth, broker_starts, killed, newest, recovers

pytestmark = pytest.mark.soak

RANDOM_KILLS = 30
NEXT_CLEANING_EVERY = 10
CLEANS_KILLED = 5


@pytest.fixture
def original(tmp_path: Path) -> Path:
    log_dir = tmp_path / "original"
    log_dir.mkdir()
    write_log(log_dir, seed=7)
    return log_dir


@pytest.fixture
def copies(original: Path, tmp_path: Path) -> Iterator[Callable[[], Path]]:
    """Fresh copies of the log; those of earlier rounds are gone."""
    target = tmp_path / "copy"

    def fresh() -> Path:
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(original, target)
        return target

    yield fresh
    shutil.rmtree(target, ignore_errors=True)


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
def test_commits_killed_before_every_operation_and_at_random_moments(
    original: Path, copies: Callable[[], Path]
) -> None:
    truth, chance = Truth(original), random.Random(11)
    log_dir, began = copies(), time.monotonic()
    operations = killed(kill9_child.run, log_dir, -1)
    duration_s = time.monotonic() - began
    assert operations is not None
    truth.check(log_dir)
    repairs, kills = itertools.cycle(REPAIRS), 0
    moments = [(own, None) for own in range(operations)]
    moments += [(-1, chance.random() * duration_s) for _ in range(RANDOM_KILLS)]
    for number, (own, delay_s) in enumerate(moments):
        log_dir = copies()
        kills += killed(kill9_child.run, log_dir, own, delay_s) is None
        for repair in next(repairs):
            repair(log_dir)
        truth.check(log_dir)
        if number % NEXT_CLEANING_EVERY == 0:
            discard_staged(PartitionDir(FILES, str(log_dir / str(TP))))
            assert killed(kill9_child.run, log_dir, -1) is not None, "the next cleaning comes to its end"
            truth.check(log_dir)
    assert kills >= operations


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
