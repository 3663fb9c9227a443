"""What a daemon tells people: why a log is not cleaned and what to do about it, which name was meant, what was asked."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cleanerd.cleaning.outcomes import Failed
from cleanerd.format import names
from cleanerd.tools.client.producer import Producer
from cleanerd.tools.client.writer import LogWriter
from cleanerd.units import counted
from tests.harness.daemon.processes import DaemonProcess, running, wait_until
from tests.harness.daemon.world import World
from tests.harness.damage.logs import wrong_crc
from tests.harness.logs.troubled import leave_to_nobody, lock_of_another, write_logs

POLICIES = {"good": "compact", "torn": "compact", "held": "compact", "kept": "delete"}
OTHERS = {
    "staged": "compact",
    "future": "compact,delete",
    "restored": "compact",
    "nothing": "",
    "half": "compact",
}
YEAR_2035_MS = 2_079_360_000_000


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """With a log that is damaged, one that waits staged for a lock, one that is paused, one that is not compacted; with a
    record in the future, without the entries of its broker, without a policy.
    """
    directory = tmp_path_factory.mktemp("explain")
    own = write_logs(directory / "own", "good", "torn", "held", "kept")
    wrong_crc(own / "torn-0")
    brokers = write_logs(directory / "brokers", "staged", "unknown")
    restored = write_logs(directory / "restored", "restored")
    (restored / names.REPLICATION_CHECKPOINT).unlink()
    plain = directory / "plain"
    for topic, at_ms in (("future", YEAR_2035_MS), ("nothing", 1000)):
        with LogWriter(str(plain), topic, 0, segment_bytes=1 << 20) as log:
            Producer(log).put(b"k", b"v", at_ms)
            log.roll()
    settings = {
        "cleanerd_retry_max": 1,
        "log_cleaner_min_compaction_lag_ms": 1000,
        "log_retention_ms": 10**15,
    }
    with (
        lock_of_another(brokers / ".lock"),
        running(
            directory / "d", own, brokers, restored, plain, topics=POLICIES | OTHERS, **settings
        ) as daemon,
    ):
        daemon.ask("pause", "held", "--owner", "anna", "--reason", "restore")
        for name, state in {"good": "clean", "torn": "uncleanable", "staged": "staged"}.items():
            wait_until(lambda: daemon.log(f"{name}-0")["state"] == state, 60, daemon.output)  # noqa: B023
        yield daemon


def explained(daemon: DaemonProcess, name: str) -> tuple[str, dict[str, str]]:
    (found,) = daemon.ask("explain", name)["explanations"]
    return found["decision"], {fact["name"]: fact["value"] for fact in found["facts"]}


def test_a_damaged_log_is_to_be_mended(daemon: DaemonProcess) -> None:
    decision, facts = explained(daemon, "torn-0")
    assert decision.startswith("not cleaned: uncleanable: ")
    assert "`cleanerctl retry torn-0`" in facts["what to do"]
    assert ".log: at byte" in str(daemon.log("torn-0")["reason"])


def test_a_pause_names_who_and_how_to_end_it(daemon: DaemonProcess) -> None:
    decision, facts = explained(daemon, "held-0")
    (hold,) = daemon.ask("holds")["holds"]
    assert decision.startswith(f"not cleaned: paused; hold {hold['id']} of anna since ")
    assert decision.endswith(" UTC: restore")
    assert facts["what to do"] == f"`cleanerctl resume {hold['id']}`"


def test_a_staged_result_names_who_is_in_the_way(daemon: DaemonProcess) -> None:
    decision, facts = explained(daemon, "staged-0")
    assert decision == "not cleaned: a result is staged and waits for its commit"
    assert "a running broker, stops (cleanerd.commit.live is off)" in facts["result"]
    assert "`cleanerctl commit staged-0 --wait`" in facts["what to do"]
    assert str(daemon.log("staged-0")["reason"]).startswith("it waits until process ")
    assert daemon.ctl("clean", "staged-0").returncode == 0, "who asks for it gets a better one"
    wait_until(lambda: daemon.outcomes("staged-0") == ["staged"] * 2, 60, daemon.output)


def test_a_log_that_is_not_compacted_has_no_dirty_section(daemon: DaemonProcess) -> None:
    decision, facts = explained(daemon, "kept-0")
    assert decision == "not cleaned: cleanup.policy is delete, without compact: retention only"
    assert not {"dirty ratio", "first dirty offset", "what to do"} & set(facts)
    assert (
        facts["retention time"]
        == f"retention.ms is {10**15}, which does not hold here, breached by no closed segment"
    )
    stays = "segment 0 stays: deletion by time and size is left to its broker, which is down: "
    assert facts["oldest segment"].startswith(stays)
    assert "; start the broker; or set retention.ms" in facts["oldest segment"]
    assert daemon.log("kept-0")["reason"] == "not compacted: retention only"


def test_a_record_in_the_future_is_named_with_what_to_do(daemon: DaemonProcess) -> None:
    decision, facts = explained(daemon, "future-0")
    stamp = f"the batch at offset 0 bears timestamp {YEAR_2035_MS} (2035-11-22 16:00:00 UTC), in the future"
    held = f"segment 0 is younger than min.compaction.lag.ms (1000): {stamp}"
    assert decision == f"not cleaned: nothing to clean: held back from offset 0 on: {held}"
    assert facts["what to do"].startswith("set min.compaction.lag.ms of the topic to 0, or delete")
    (row,) = daemon.ask("retention", "future", "--dry-run")["retention"]
    assert row["kept"] == f"segment 0 stays: retention.ms counts from its largest timestamp: {stamp}"


def test_a_log_restored_without_its_checkpoints_names_the_file(daemon: DaemonProcess) -> None:
    decision, facts = explained(daemon, "restored-0")
    missing = f"{daemon.log('restored-0')['log_dir']}/{names.REPLICATION_CHECKPOINT}"
    assert f"{missing} is missing, so its high watermark counts as 0" in decision
    assert facts["what to do"].startswith("start its broker once, which writes replication-offset-checkpoint")


def test_a_topic_without_a_policy_says_what_that_means(daemon: DaemonProcess) -> None:
    decision, facts = explained(daemon, "nothing-0")
    empty = "cleanup.policy is empty: nothing goes but what lies below the log start offset"
    assert decision == f"not cleaned: {empty}"
    assert "set the topic's cleanup.policy" in facts["what to do"]
    assert facts["oldest segment"].startswith("segment 0 stays: cleanup.policy is empty, so neither age")


def test_a_log_of_an_unknown_topic_has_neither_policy_nor_date(daemon: DaemonProcess) -> None:
    """What Kafka's defaults would do to it does not happen."""
    decision, facts = explained(daemon, "unknown-0")
    assert "how unknown is configured is not known; set its cleanup.policy in topics.d" in decision
    assert list(facts) == ["ignored"]
    log = daemon.log("unknown-0")
    assert (log["state"], log["policy"]) == ("ignored", "unknown")
    (planned,) = daemon.ask("retention", "unknown-0", "--dry-run")["retention"]
    assert (planned["outcome"], planned["segments"], planned["next_ms"]) == ("skipped", 0, None)
    assert "is not known" in planned["reason"]
    (left,) = (event for event in daemon.events() if event["event"] == "topics_unknown")
    assert (left["count"], left["topics"]) == (1, ["unknown"])
    assert left["reason"] == "a broker's without a metadata log; cleanerd.commit.live is off"


def test_a_clean_log_may_be_rolled(daemon: DaemonProcess) -> None:
    """With what lies in its active segment it would be dirty enough."""
    decision, facts = explained(daemon, "good-0")
    active = f"the active segment, with {daemon.log('good-0')['active_bytes']} bytes, begins there; --roll closes it first"
    assert decision.startswith("not cleaned: nothing to clean: held back from offset ")
    assert decision.endswith(active)
    assert ", or from 20" in facts["cleaned next by"]
    assert facts["cleaned next by"].endswith(" on if a tombstone has passed its delete horizon")
    assert facts["what to do"] == "`cleanerctl clean good-0 --roll`"
    assert {"first dirty offset", "dirty ratio", "active segment"} <= facts.keys()
    log = daemon.log("good-0")
    parts = ("clean_bytes", "cleanable_bytes", "uncleanable_bytes", "active_bytes")
    assert sum(log[part] for part in parts) == log["size_bytes"]
    assert log["clean_bytes"] > 0


def test_a_log_half_way_to_its_ratio_waits_for_that_with_its_tombstones(daemon: DaemonProcess) -> None:
    def has(dirty: bool) -> bool:
        answer = daemon.ctl("log", "half-0", check=False)
        if answer.returncode:  # it has not been seen yet
            return False
        (log,) = json.loads(answer.stdout)["logs"]
        return bool(log["clean_bytes"]) and bool(log["cleanable_bytes"]) is dirty

    with LogWriter(daemon.log("future-0")["log_dir"], "half", 0, segment_bytes=1 << 20) as log:
        producer = Producer(log)
        for dirty, records in ((False, 20), (True, 10)):
            for number in range(records):
                producer.put(b"%d" % number, b"v", 1000)
            log.roll()
            daemon.wait(lambda dirty=dirty: has(dirty), 60)
    _, facts = explained(daemon, "half-0")
    assert " on (until then it waits for its dirty ratio) if a tombstone " in facts["cleaned next by"]


def test_and_is_rolled_once_its_broker_has_closed_it(daemon: DaemonProcess) -> None:
    """A roll that is refused changes nothing, and is no trouble of the log."""
    log = daemon.log("good-0")
    refused = daemon.ctl("clean", "good-0", "--roll", "--wait", check=False)
    assert refused.returncode == 1
    (job,) = json.loads(refused.stdout)["jobs"]
    assert job["outcome"] == "aborted"
    assert log.items() <= {**daemon.log("good-0"), "last": log["last"]}.items()
    assert "its broker was killed, or did not close it" in job["reason"]
    Path(log["log_dir"], names.CLEAN_SHUTDOWN).touch()
    (job,) = daemon.ask("clean", "good-0", "--roll", "--wait")["jobs"]
    assert job["outcome"] == "committed"
    assert daemon.log("good-0")["active_bytes"] == 0


@pytest.mark.soak
def test_a_log_that_is_tried_again_says_when(tmp_path: Path) -> None:
    """Between two tries no worker is what it waits for."""
    logs = write_logs(tmp_path / "logs", "torn")
    damage = wrong_crc(logs / "torn-0")
    with running(
        tmp_path / "d", logs, topics={"torn": "compact"}, cleanerd_retry_backoff_ms=600_000
    ) as daemon:
        wait_until(lambda: daemon.log("torn-0")["failures"] == 1, 60, daemon.output)
        decision, facts = explained(daemon, "torn-0")
    assert decision.startswith(f"not cleaned: backing off: {damage}: ")
    assert facts["what to do"].startswith("it will be tried again at 20")
    assert "`cleanerctl retry torn-0`" in facts["what to do"]


def test_retention_is_previewed_explained_and_run(tmp_path: Path) -> None:
    """What the preview and `explain` say would go is what goes, and what stays says why (6.2-6.5)."""
    logs = write_logs(tmp_path / "logs", "old", "both", "held")
    leave_to_nobody(logs)
    brokers = write_logs(tmp_path / "brokers", "live")
    topics = {"old": "delete", "both": "compact,delete", "held": "delete", "live": "delete"}
    before = {path.name for path in (logs / "old-0").glob("*.log")}
    settings = {
        "log_retention_hours": 1,
        "log_cleaner_backoff_ms": 3_600_000,
        "log_retention_check_interval_ms": 3_600_000,
    }
    with (
        lock_of_another(brokers / ".lock"),
        running(tmp_path / "d", logs, brokers, topics=topics, **settings) as daemon,
    ):
        daemon.ask("pause", "held", "--owner", "anna")
        _, facts = explained(daemon, "old-0")
        (planned,) = daemon.ask("retention", "old", "--dry-run")["retention"]
        assert (planned["outcome"], planned["breaches"]) == ("planned", ["retention.ms"])
        assert {path.name for path in (logs / "old-0").glob("*.log")} == before
        goes = f"breached by {counted(planned['segments'], 'segment')} with {planned['bytes']} bytes"
        assert goes in facts["retention time"]
        assert "stays: it is the active segment, and a writer may append to it" in facts["oldest segment"]
        (done,) = daemon.ask("retention", "old")["retention"]
        assert {**done, "outcome": "planned"} == planned
        left = {path.name for path in (logs / "old-0").glob("*.log")}
        assert len(before) - len(left) == planned["segments"] > 0
        (again,) = daemon.ask("retention", "old")["retention"]
        assert (again["outcome"], again["segments"]) == ("nothing", 0)
        (held,) = daemon.ask("retention", "held")["retention"]
        assert held["outcome"] == "skipped"
        assert held["reason"] == "it is paused or being cleaned, or another process holds .lock"
        (live,) = daemon.ask("retention", "live", "--dry-run")["retention"]
        assert live["outcome"] == "skipped"
        assert live["reason"].endswith("holds .lock: retention is its broker's")
        assert live["segments"] > 0
        assert daemon.ctl("retention", "nosuch", check=False).returncode == 4
        events = daemon.ask("history", "--all")["events"]
        assert {event["topic"] for event in events if event["kind"] == "retention"} <= {"old", "both"}


def test_what_has_failed_is_no_promise(tmp_path: Path) -> None:
    """Once the pause is over: it is tried again, and what happened the last time is said."""
    with contextlib.closing(World(tmp_path)) as world:
        parts = world.parts
        log = next(log for log in parts.inventory.logs() if parts.conditions.of(log).state == "dirty")
        assert (
            world.control.explainer.of(log, exact=False).decision
            == "will be cleaned as soon as a worker is free"
        )
        failed = Failed("no place for scratch files", "JobFailed", is_retryable=True)
        for _ in range(2):
            parts.failures.failed(log, failed, parts.conditions.stamp(log), parts.configuration().broker, 0)
        assert (
            world.control.explainer.of(log, exact=False).decision
            == "will be tried again as soon as a worker is free (2 failed; the last time: no place for scratch files)"
        )
