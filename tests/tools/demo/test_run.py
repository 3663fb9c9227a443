"""`cleanerd demo`, played for real, and the reader that judges it."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from cleanerd.format.batch import Record
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.tools.client.reader import read_records
from cleanerd.tools.demo import run as demo
from cleanerd.tools.demo.process import read_and_compare
from cleanerd.tools.demo.topics import ORDERS, PROFILES, TOPICS, Feed, Topic
from tests.harness.command_line import CLEANERD, Run

NOW_MS = 1_700_000_000_000

ASSUMED = "cleanerd: assumed, as --assume says: now\n"
"""Deletions are over in the demo's last round, which is days ahead."""


def test_demo_cleans_live_logs_and_loses_no_key(
    spark: LazySpark, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Everything as in the command, with fewer records; the logs that it keeps are the cleaned ones."""
    assert demo.play(str(tmp_path / "logs"), scale=0.05, session=spark) == 0
    out, err = capfd.readouterr()
    assert out.splitlines()[-1].startswith("No key was lost: ")
    assert len(re.findall("-0 +committed ", out)) == 2 * len(TOPICS)
    assert "superseded" in out
    assert "tombstone" in out
    assert "aborted" in out
    assert err.replace(ASSUMED, "").count("cleanerd: ") == 0
    for topic in TOPICS:
        assert any(read_records(str(tmp_path / "logs" / f"{topic.name}-0"), isolation="read_committed"))


@pytest.mark.soak
def test_the_demo_as_it_is_called() -> None:
    """With a session of its own; nothing is amiss, and no message says so."""
    ran = subprocess.run([*CLEANERD, "demo"], capture_output=True, text=True, timeout=300, check=False)
    assert (ran.returncode, ran.stdout[:8]) == (0, "1. Write"), ran.stderr
    assert ran.stderr.replace(ASSUMED, "").count("cleanerd: ") == 0


def test_directory_must_be_empty(run: Run, tmp_path: Path) -> None:
    """Nobody's files are mixed with the demo's."""
    place = tmp_path / "place"
    place.mkdir()
    (place / "mine").write_text("")
    ran = run("demo", "--directory", str(place))
    assert (ran.code, ran.out) == (2, "")
    assert "expected an empty directory" in ran.err
    assert os.listdir(place) == ["mine"]


@pytest.mark.soak
@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_reader_finds_nothing_wrong_with_a_whole_log(tmp_path: Path, topic: Topic) -> None:
    """Also between the batches of transactions."""
    feed = Feed(str(tmp_path), topic, seed=1)
    for _ in range(20):
        feed.send_batch(NOW_MS)
        assert read_and_compare(feed.directory, feed.truth).problems == ()
    feed.close(NOW_MS)
    reading = read_and_compare(feed.directory, feed.truth)
    newest = {key: (record.offset, record.value) for key, record in reading.newest.items()}
    assert newest == {key: (latest.offset, latest.value) for key, latest in feed.truth.latest().items()}


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        pytest.param(b"lost", b"value", "b'lost'", id="of a key nothing can be read"),
        pytest.param(None, b"newer", " is newer", id="an older value is no substitute"),
        pytest.param(None, None, " is newer", id="the tombstone is gone, an older value is not"),
        pytest.param(b"deleted", None, None, id="neither value nor tombstone: that is what cleaning is for"),
    ],
)
def test_reader_misses_what_was_committed(
    tmp_path: Path, key: bytes | None, value: bytes | None, problem: str | None
) -> None:
    """None for a key that can be read."""
    feed = Feed(str(tmp_path), PROFILES, seed=1)
    for _ in range(40):
        feed.send_batch(NOW_MS)
    feed.close(NOW_MS)
    key = key or next(key for key, latest in feed.truth.latest().items() if latest.value is not None)
    feed.truth.settle([Record(feed.writer.log_end_offset, NOW_MS, key, value)])
    problems = read_and_compare(feed.directory, feed.truth).problems
    assert len(problems) == (problem is not None)
    assert (problem or "") in "".join(problems)


def test_reader_sees_what_was_never_committed(tmp_path: Path) -> None:
    """Here a transaction that the truth knows nothing of: each of its records is named."""
    feed, other = (Feed(str(tmp_path / str(seed)), ORDERS, seed=seed) for seed in (1, 2))
    for _ in range(40):
        feed.send_batch(NOW_MS)
    feed.close(NOW_MS)
    assert len(read_and_compare(feed.directory, other.truth).problems) == sum(
        1 for _ in read_records(feed.directory, isolation="read_committed")
    )
