"""A daemon beside a living broker (spec disk D4, E, G; architecture 2): results wait, and are committed only if they fit."""

import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from cleanerd.env.clock import SystemClock
from cleanerd.format.record import Record
from tests.harness.broker.live import (
    BROKER_NODE,
    COMPACT,
    COMPACT_DELETE,
    OTHER_NODE,
    PATIENCE_S,
    Place,
    check_nothing_is_lost,
    elect,
    frozen,
    is_in_cluster,
    leader_and_isr,
    records,
    troubles,
    warnings,
)
from tests.harness.broker.tools import offset_checkpoint, wait_until_deleted
from tests.harness.broker.workload import DAY_MS, alter_config, delete_records
from tests.harness.daemon.processes import ROOT, environment, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

COMMITTED_WITHIN_S = 5.0
BUSY = 75
QUIET_S = 1.0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One hub, broker and daemon for all tests of this file."""
    place = Place(tmp_path_factory.mktemp("live"))
    try:
        place.hub.start()
        place.start_broker()
        place.daemon.start()
        yield place
    finally:
        place.close()


@pytest.fixture
def place(running: Place) -> Place:
    """With the broker alive, whatever the test before did."""
    if running.broker.pid is None:
        running.start_broker()
    return running


@pytest.mark.parametrize("has_lock_file", [True, False], ids=["locked", "removed"])
def test_results_wait_for_the_end_of_the_broker(place: Place, has_lock_file: bool) -> None:
    """While it lives nothing of its files is touched; when it has stopped the daemon commits by itself. That is so, too, if
    somebody has removed its `.lock` (KAFKA-19334).
    """
    topics = ("alone", "asked") if has_lock_file else ("alone-unlocked", "asked-unlocked")
    if not has_lock_file:
        (place.log_dir / ".lock").unlink()
    with place.paused():
        place.create(dict.fromkeys(topics, COMPACT))
        for topic in topics:
            place.journal.fill(topic, records(topic, [*range(30), *range(30), *range(60)] * 2))
        before = settled_identities(place, topics)
    place.wait_staged(topics)
    assert identities(place, topics) == before

    log_dir = place.control.get("/v1/status")["status"]["log_dirs"][0]
    assert log_dir["staged_bytes"] > 0
    assert (log_dir["broker_is_live"], log_dir["lock_owner_pid"]) == (True, place.broker.pid)
    answer = place.daemon.ctl("commit", check=False)
    assert answer.returncode == BUSY
    rows = {row["topic"]: row for row in json.loads(answer.stdout)["commits"]}
    assert {(rows[t]["outcome"], rows[t]["lock_owner_pid"]) for t in topics} == {
        ("waiting", place.broker.pid)
    }

    waiter = start_waiting_commit(place, f"{topics[1]}-0")
    with pytest.raises(subprocess.TimeoutExpired):
        waiter.wait(0.5)
    assert identities(place, topics) == before
    place.broker.stop()
    place.wait_settled(topics, COMMITTED_WITHIN_S)
    told, _ = waiter.communicate(timeout=COMMITTED_WITHIN_S)
    assert [row["outcome"] for row in json.loads(told)["commits"]] == ["committed"]
    assert waiter.returncode == 0
    place.start_broker()
    assert troubles(place.broker) == []
    seen = place.visible(topics)
    for topic in topics:
        assert place.commits(topic)[0][0] == "committed"
        assert len(seen[topic]) < len(place.journal.written[topic])
        check_nothing_is_lost(place.journal.written[topic], seen[topic])


def start_waiting_commit(place: Place, pattern: str) -> "subprocess.Popen[str]":
    """`cleanerctl commit --wait`, as an ExecStartPre of the broker's unit would run it."""
    command = [sys.executable, "-m", "cleanerd.cli.ctl.main", "--socket", str(place.daemon.socket)]
    command += ["commit", pattern, "--wait", "--timeout", "60", "-o", "json"]
    return subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True)


def identities(place: Place, topics: tuple[str, ...]) -> dict[str, tuple[int, int, int]]:
    """Everything that is not cleanerd's own: files of the topics, and the checkpoints that a commit would write."""
    files = [path for topic in topics for path in place.directory(topic).iterdir()]
    names = ("cleaner-offset-checkpoint", "log-start-offset-checkpoint", ".lock", "meta.properties")
    files += [place.log_dir / name for name in names]
    stats = {str(p): p.stat() for p in files if p.exists() and not p.name.endswith(".cleanerd")}
    return {name: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}


def settled_identities(place: Place, topics: tuple[str, ...]) -> dict[str, tuple[int, int, int]]:
    """When the broker has finished what it does after the last write."""
    before = identities(place, topics)
    while True:
        threading.Event().wait(QUIET_S)
        now = identities(place, topics)
        if now == before:
            return now
        before = now


SOME = [*range(30), *range(30), *range(60)] * 2
"""Keys of 240 records, seven segments; most are superseded."""


@dataclass(frozen=True, slots=True)
class Row:
    """What happens to the sources of a result that waits, and what must become of the result."""

    strike: Callable[[Place, str], None]
    outcome: str
    reason: str = ""
    config: Mapping[str, str] = field(default_factory=lambda: COMPACT)
    old_records: int = 0


@dataclass(frozen=True, slots=True)
class Aftermath:
    """When the broker has started on what the daemon made of the logs."""

    commits: Mapping[str, list[tuple[str, str]]]
    seen: Mapping[str, list[Record]]
    log_starts: Mapping[str, int]
    troubles: list[str]


def write_more(place: Place, topic: str) -> None:
    place.journal.fill(topic, records(f"{topic} more", range(40)))


def retain_less(place: Place, topic: str) -> None:
    """The broker's retention takes the old segments."""
    alter_config(place.hub.admin(), topic, {"retention.ms": str(5 * DAY_MS)})
    first = place.directory(topic) / f"{0:020}.log"
    wait_until(lambda: not first.exists(), PATIENCE_S)


def delete_all_closed(place: Place, topic: str) -> None:
    """DeleteRecords up to the active segment."""
    log_start = max(int(path.stem) for path in place.directory(topic).glob("*.log"))
    delete_records(place.hub.admin(), topic, log_start)
    wait_until_deleted(place.broker, place.directory(topic), log_start)


def delete_half(place: Place, topic: str) -> None:
    """DeleteRecords to the middle of the staged range, inside of a segment."""
    log_start = len(place.journal.written[topic]) // 2
    delete_records(place.hub.admin(), topic, log_start)
    wait_until_deleted(place.broker, place.directory(topic), log_start)


def delete_a_few(place: Place, topic: str) -> None:
    """DeleteRecords inside of the first segment: no file goes, the log start is a checkpoint only."""
    delete_records(place.hub.admin(), topic, 3)


def recreate(place: Place, topic: str) -> None:
    """Another topic of the same name, with other records at the same offsets."""
    admin = place.hub.admin()
    admin.delete_topics([topic])[topic].result(PATIENCE_S)
    wait_until(lambda: not place.directory(topic).exists(), PATIENCE_S)
    place.journal.forget(topic)
    place.create({topic: COMPACT})
    place.journal.fill(topic, records(f"{topic} again", SOME))


def clean_by_broker(place: Place, topic: str) -> None:
    """The broker's own cleaner compacts the segments that were to be replaced."""
    alter_config(place.hub.admin(), topic, {"min.cleanable.dirty.ratio": "0.0"})
    checkpoint = place.log_dir / "cleaner-offset-checkpoint"
    wait_until(lambda: f"{topic}-0" in offset_checkpoint(checkpoint), PATIENCE_S)


STRIKES = {
    "grown": Row(write_more, "committed"),
    "retained": Row(
        retain_less, "dropped", "the segments in the group were", COMPACT_DELETE, old_records=120
    ),
    # The broker writes down in the background that it has no epochs below any more: one of the two is seen first.
    "deleted-above": Row(
        delete_all_closed,
        "dropped",
        "the segments in the group were|the leader epochs below",
        COMPACT_DELETE,
    ),
    "deleted-into": Row(delete_half, "dropped", "the segments in the group were", COMPACT_DELETE),
    "deleted-a-few": Row(delete_a_few, "committed", config=COMPACT_DELETE),
    "made-anew": Row(recreate, "committed"),
    "cleaned": Row(clean_by_broker, "dropped", "the first dirty offset was None, is"),
}
HELD = "held"


@pytest.fixture(scope="module")
def struck(running: Place) -> Aftermath:
    """Every row of spec disk D4 that can happen to a living broker, in one life of it."""
    place, topics = running, list(STRIKES)
    if place.broker.pid is None:
        place.start_broker()
    with place.paused():
        place.create({topic: row.config for topic, row in STRIKES.items()} | {HELD: COMPACT})
        ten_days_ago_ms = SystemClock().now_ms() - 10 * DAY_MS
        for topic, row in STRIKES.items():
            entries = records(topic, SOME)
            if row.old_records:
                place.journal.fill(topic, entries[: row.old_records], ten_days_ago_ms)
            place.journal.fill(topic, entries[row.old_records :])
        place.journal.fill(HELD, records(HELD, SOME))
    place.wait_staged([*topics, HELD])
    place.pause(f"{HELD}-0")
    for topic, row in STRIKES.items():
        row.strike(place, topic)
    place.reload()
    place.wait_staged(["made-anew"])
    log_starts = {topic: place.log_start(topic) for topic in topics}
    place.broker.stop()
    place.wait_settled(topics)
    commits = {topic: place.commits(topic) for topic in topics}
    place.start_broker()
    return Aftermath(commits, place.visible(topics), log_starts, troubles(place.broker))


@pytest.mark.parametrize("topic", STRIKES)
def test_only_what_still_fits_is_committed(running: Place, struck: Aftermath, topic: str) -> None:
    """Spec disk D4: the broker starts on the result, the log start does not step back, nothing is lost or returns."""
    outcome, reason = struck.commits[topic][0]
    assert (outcome, bool(re.search(STRIKES[topic].reason, reason))) == (STRIKES[topic].outcome, True), reason
    assert struck.troubles == []
    check_nothing_is_lost(
        running.journal.written[topic], struck.seen[topic], log_start=struck.log_starts[topic], why=topic
    )


NOW_FORBIDDEN = {
    "deletes-now": ({"cleanup.policy": "delete"}, "its cleanup.policy no longer contains compact"),
    "lags-now": ({"min.compaction.lag.ms": str(DAY_MS)}, "is younger than min.compaction.lag.ms"),
}
"""What is set while a result waits, and why the result is dropped."""


@pytest.mark.trap("a policy that changes between plan and commit")
def test_a_result_that_its_topic_no_longer_allows_is_dropped(place: Place) -> None:
    """The configuration is asked again at the commit, however short a time before the broker's end it has changed."""
    topics = [*NOW_FORBIDDEN, "allowed-still"]
    with place.paused():
        place.create(dict.fromkeys(topics, COMPACT))
        for topic in topics:
            place.journal.fill(topic, records(topic, SOME))
    place.wait_staged(topics)
    for topic, (config, _) in NOW_FORBIDDEN.items():
        alter_config(place.hub.admin(), topic, config)
    place.broker.stop()
    wait_until(lambda: all(place.commits(topic) for topic in topics), PATIENCE_S, place.daemon.output)
    for topic, (_, reason) in NOW_FORBIDDEN.items():
        outcome, found = place.commits(topic)[0]
        assert (outcome, reason in found) == ("dropped", True), found
    assert place.commits("allowed-still")[0][0] == "committed"
    place.start_broker()
    seen = place.visible(topics)
    for topic in NOW_FORBIDDEN:
        assert len(seen[topic]) == len(place.journal.written[topic]), topic
    assert len(seen["allowed-still"]) < len(place.journal.written["allowed-still"])


UNFINISHED = {"half-written": "cleaned", "half-renamed": "swap"}
"""How the files of a segment end that the broker's own cleaner had not finished when it was killed (spec disk D2)."""


@pytest.fixture(scope="module")
def killed(running: Place, struck: Aftermath) -> Aftermath:
    """The broker is killed, with everything that a kill can leave behind."""
    place, held = running, ["point-lost", *UNFINISHED]
    topics = ["killed", *held, HELD]
    with place.paused():
        place.create(dict.fromkeys(["killed", *held], COMPACT))
        for topic in ["killed", *held]:
            place.journal.fill(topic, records(topic, SOME))
        write_more(place, HELD)
    place.wait_staged(["killed", *held])
    for topic in held:
        place.pause(f"{topic}-0")
    assert place.commits(HELD) == []
    place.broker.kill()
    place.resume(f"{HELD}-0")
    place.wait_settled(["killed", HELD])
    (place.log_dir / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    for topic, suffix in UNFINISHED.items():
        for kind in ("log", "index", "timeindex"):
            live = place.directory(topic) / f"{0:020}.{kind}"
            shutil.copy2(live, f"{live}.{suffix}")
    for topic in held:
        place.resume(f"{topic}-0")
    wait_until(lambda: all(place.commits(topic) for topic in held), PATIENCE_S)
    commits = {topic: place.commits(topic) for topic in topics}
    place.start_broker()
    return Aftermath(commits, place.visible(topics), {}, warnings(place.broker))


@pytest.mark.fault("the broker is killed")
@pytest.mark.parametrize(
    ("topic", "outcome"),
    [("killed", "committed"), (HELD, "committed"), ("point-lost", "committed")]
    + [(topic, "dropped") for topic in UNFINISHED],
)
def test_a_killed_broker_finds_its_logs_in_order(
    running: Place, killed: Aftermath, topic: str, outcome: str
) -> None:
    """Unclean stop: whatever was committed meanwhile survives the broker's recovery, from any recovery point.

    What its own cleaner left half done is the broker's to mend: no commit on top of it.
    """
    found, reason = killed.commits[topic][0]
    assert found == outcome, reason
    assert outcome == "committed" or "another cleaning is or was under way" in reason
    assert killed.troubles == []
    check_nothing_is_lost(running.journal.written[topic], killed.seen[topic], why=topic)


def test_a_result_does_not_outlive_the_records_that_it_was_made_from(place: Place) -> None:
    """An unclean leader election cuts the log behind the staged groups (G).

    What superseded the records in the first segments is gone, but neither those segments nor the epochs in them have
    changed. Were their staged successors committed, the newest value of these keys would be lost.
    """
    topic = "elected"
    place.other.start()
    wait_until(lambda: is_in_cluster(place.hub, OTHER_NODE), PATIENCE_S)
    with place.paused():
        config = COMPACT | {"unclean.leader.election.enable": "true"}
        place.create({topic: config}, (BROKER_NODE, OTHER_NODE))
        end = place.journal.fill(topic, records("both", [*range(60), *range(100, 200)]))
        place.other.stop()
        wait_until(lambda: leader_and_isr(place.hub, topic)[1] == {BROKER_NODE}, PATIENCE_S)
        place.journal.fill(topic, records("one", [*range(60), *range(200, 300)]))
    place.wait_staged([topic])
    assert max(staged_bases(place, topic)) < end // 2
    with frozen(place.broker):
        written = elect(OTHER_NODE, place.other, topic, records("other", range(400, 440)))
    place.journal.forget(topic, end)
    place.journal.written[topic] |= written
    wait_until(lambda: leader_and_isr(place.hub, topic)[1] == {BROKER_NODE, OTHER_NODE}, PATIENCE_S)
    place.broker.stop()
    place.wait_settled([topic])
    outcome, reason = place.commits(topic)[0]
    place.start_broker()
    wait_until(lambda: leader_and_isr(place.hub, topic)[1] == {BROKER_NODE, OTHER_NODE}, PATIENCE_S)
    place.other.stop()
    check_nothing_is_lost(place.journal.written[topic], place.visible([topic])[topic], why=reason)
    assert (outcome, warnings(place.broker)) == ("dropped", [])


def staged_bases(place: Place, topic: str) -> list[int]:
    return sorted(int(p.name.split(".")[0]) for p in place.directory(topic).glob("*.manifest.cleanerd"))
