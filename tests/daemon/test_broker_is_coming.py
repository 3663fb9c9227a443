"""`commit --wait` before a broker's start: it waits for nothing that cannot come, and everything else makes way."""

import json
import threading
import time
from pathlib import Path

import pytest

from cleanerd.cleaning.lock import AIM_S
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.slices import SliceSize, Weighed, weigh
from cleanerd.env.files import RealFiles
from cleanerd.format.names import TopicPartition
from tests.broker.test_start_beside_commits import kill, staged, start, waiting
from tests.daemon.processes import wait_until

BUSY = 75


@pytest.mark.soak
def test_a_forgotten_hold_delays_no_start_and_nothing_begins_until_the_broker_has_come(
    tmp_path: Path,
) -> None:
    with staged(tmp_path, logs=3) as (daemon, log_dir, broker):
        daemon.ask("pause", "topic-000-0", "--reason", "forgotten")
        kill(broker)
        began = time.monotonic()
        answer = daemon.ctl("commit", "--wait", "--timeout", "60s", check=False)
        assert time.monotonic() - began < 20
        rows = {row["topic"]: row["outcome"] for row in json.loads(answer.stdout)["commits"]}
        assert (rows["topic-000"], answer.returncode) == ("held", BUSY)
        assert {rows.get(topic, "nothing") for topic in ("topic-001", "topic-002")} <= {
            "committed",
            "nothing",
        }
        assert waiting(log_dir) == 1

        daemon.ask("resume", "topic-000-0")
        threading.Event().wait(2.0)
        assert waiting(log_dir) == 1, "a broker is expected"
        broker = start(log_dir)
        wait_until(lambda: daemon.ask("status")["status"]["log_dirs"][0]["broker_is_live"], 10)
        kill(broker)
        wait_until(lambda: waiting(log_dir) == 0, 20, daemon.output)


def logs(*weights: float) -> list[Weighed]:
    return [
        Weighed(LogId("/logs", TopicPartition("t", number)), 0, weight)
        for number, weight in enumerate(weights)
    ]


def test_a_slice_holds_what_ends_in_time() -> None:
    size, rest = SliceSize(), logs(*[1.0] * 100)
    sizes = []
    for _ in range(20):
        batch = size.next_slice(rest)
        sizes.append(len(batch))
        size.took(batch, 0.004 * len(batch))
    assert sizes[0] == 1
    assert max(sizes) * 0.004 <= 2 * AIM_S
    assert sum(sizes) / len(sizes) * 0.004 > AIM_S / 3


def test_where_syncs_take_the_time_logs_share_them() -> None:
    size, rest = SliceSize(), logs(*[1.0] * 100)
    for _ in range(10):
        batch = size.next_slice(rest)
        size.took(batch, 0.3 + 0.001 * len(batch))
    assert len(batch) > 50


def test_what_takes_longer_than_a_slice_has_one_of_its_own() -> None:
    one, *others = logs(1000.0, 1.0, 1.0)
    assert SliceSize().next_slice([one, *others]) == [one]
    assert SliceSize().next_slice([others[0], one]) == [others[0]]


def test_what_cannot_be_read_has_no_gain(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020}.manifest.cleanerd").write_text("no manifest")
    log = LogId(str(tmp_path), TopicPartition("t", 0))
    assert weigh(RealFiles(), log) == Weighed(log)
