"""Small logs, which one task cleans, and others in one job: each keeps its number, by which it is told to stop."""

from collections import Counter
from pathlib import Path

import pytest

from cleanerd.cleaning.choose import Candidate, examine_all
from cleanerd.cleaning.clean import Cleaner
from cleanerd.cleaning.result import Progress
from cleanerd.env.clock import SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.format.names import TopicPartition
from cleanerd.pipeline import job
from cleanerd.pipeline.small_log import is_small
from cleanerd.pipeline.values import LogWork
from cleanerd.spark_runtime.channel import Channel
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.spark_runtime.messages import GO_ON, STOP, Moved, Phase, ReportAnswer
from cleanerd.storage.log_dir import LogDir
from tests.harness.logs.silent import request_of
from tests.harness.logs.troubled import write_logs

TOPICS = ("a", "b", "c", "d", "e")
LARGE = ("b", "d")


@pytest.fixture
def cleaner(spark: LazySpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cleaner:
    """Of a log directory in which two of five logs pass for large ones."""

    def is_small_by_name(work: LogWork, budget_bytes: int) -> bool:
        assert is_small(work, budget_bytes)
        return work.topic_partition.topic not in LARGE

    monkeypatch.setattr(job, "is_small", is_small_by_name)
    write_logs(tmp_path / "logs", *TOPICS)
    everywhere = [("log.cleanup.policy", "compact")]
    request = request_of(tmp_path / "logs", TOPICS[0], {}, assignments=everywhere, force=True)
    return Cleaner(request, Progress(), SystemClock(), RealFiles(), spark)


def stage(cleaner: Cleaner, log_dir: Path, channel: Channel) -> dict[str, str]:
    """What becomes of each log."""
    partitions = [TopicPartition(topic, 0) for topic in TOPICS]
    place = LogDir.at(RealFiles(), str(log_dir), SystemClock())
    found = [*examine_all(place, partitions, cleaner._request, cleaner.pace_of)]
    candidates = [one for one in found if isinstance(one, Candidate)]
    assert len(candidates) == len(TOPICS)
    return {
        result.topic_partition.topic: result.outcome.word
        for result in cleaner.stage(candidates, channel.reporter)
    }


@pytest.mark.parametrize("phase", [Phase.INDEX, Phase.REWRITE])
@pytest.mark.parametrize("stopped", range(len(TOPICS)))
def test_a_log_that_is_told_to_stop_is_the_one(
    cleaner: Cleaner, tmp_path: Path, stopped: int, phase: Phase
) -> None:
    with Channel(lambda moved: STOP if moved[:2] == (stopped, phase) else GO_ON) as channel:
        outcomes = stage(cleaner, tmp_path / "logs", channel)
    assert outcomes == dict.fromkeys(TOPICS, "staged") | {TOPICS[stopped]: "aborted"}


def test_what_tasks_read_is_told_of_the_log_that_it_is_of(cleaner: Cleaner, tmp_path: Path) -> None:
    read: Counter[tuple[int, Phase]] = Counter()

    def answer(moved: Moved) -> ReportAnswer:
        read[moved.log, moved.phase] += moved.read_bytes
        return GO_ON

    with Channel(answer) as channel:
        stage(cleaner, tmp_path / "logs", channel)
    closed = [sorted((tmp_path / "logs" / f"{topic}-0").glob("*.log"))[:-1] for topic in TOPICS]
    for number, paths in enumerate(closed):
        size_bytes = sum(path.stat().st_size for path in paths)
        assert read[number, Phase.INDEX] == read[number, Phase.REWRITE] == size_bytes
        assert 0 < read[number, Phase.VERIFY] < size_bytes
