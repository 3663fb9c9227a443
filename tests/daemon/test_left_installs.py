"""What an earlier version left of an install by reassignment, in every state that its journal can be in, beside a cluster in
memory that answers as Kafka's controller does. `tests/broker/test_left_installs.py` is the real thing.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from cleanerd.daemon.loops.left_installs import LeftInstall, LeftInstalls, Seen
from cleanerd.errors import ClusterRefused
from cleanerd.spark_runtime.lazy_spark import LazySpark
from tests.cleaning.logs import clean
from tests.operate.world import World

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAw"
LIST, REST = (2, 1, 3), (2, 3)
OUT = ("removing", "moving", "adding", "evicting", "electing")
"""Steps in which the replica may be out of its list."""


@dataclass
class Cluster:
    """A partition as its controller and broker 1 have it. `asked`: lists in turn, and whether the name was free then."""

    live: Path
    topic_id: str | None = TOPIC_ID
    replicas: tuple[int, ...] = LIST
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    is_alive: bool = True
    hosted_in: str | None = None
    refuses: str | None = None
    asked: list[tuple[tuple[int, ...] | None, bool]] = field(default_factory=list)

    def __enter__(self) -> "Cluster":
        if self.refuses is not None:
            raise ClusterRefused(self.refuses)
        return self

    def __exit__(self, *_: object) -> None: ...

    def see(self, _: LeftInstall) -> Seen:
        return Seen(self.topic_id, self.replicas, self.adding, self.removing, self.is_alive, self.hosted_in)

    def reassign(self, _: LeftInstall, replicas: Sequence[int] | None) -> None:
        self.asked.append((None if replicas is None else tuple(replicas), not self.live.exists()))
        if replicas is None:
            self.replicas = tuple(one for one in self.replicas if one not in self.adding)
            self.adding = self.removing = ()
        else:
            self.adding = tuple(one for one in replicas if one not in self.replicas)
            self.removing, self.replicas = (), tuple(replicas)

    def is_over(self) -> None:
        """The replica that was added is in sync, in a log that the broker has made or loaded."""
        self.adding = self.removing = ()
        self.live.mkdir(exist_ok=True)
        self.hosted_in = str(self.live.parent)


class Place:
    """A daemon over two log directories, the cluster, and what was left beside the first of them."""

    def __init__(self, root: Path) -> None:
        self.world = World(root)
        self.log_dir, self.area = root / "a", root / ".cleanerd-install-a"
        self.live = self.log_dir / "orders-0"
        self.cluster = Cluster(self.live)
        self.logged: list[Any] = []
        self.start()

    def start(self) -> None:
        """Another process."""
        self.left = LeftInstalls(self.world.parts, lambda: self.cluster)  # type: ignore[arg-type, return-value]

    def leave(self, step: str, *, in_place: bool = False, **more: Any) -> None:
        """As an earlier version was killed in this step; `in_place`: its directory has the partition's name."""
        self.area.mkdir()
        install = {
            "id": "f00", "topic": "orders", "partition": 0, "topic_id": TOPIC_ID, "broker": 1, "log_dir": str(self.log_dir),
            "replicas": LIST, "was_leader": False, "controller": (1, 1), "end_offset": 7, "round_end": 7, "freed_bytes": 1,
            "tail_bytes": 1, "began_ms": 1, "step": step, "step_ms": 1, "is_moved": in_place, "reason": None,
            "outcome": None,
        }  # fmt: skip
        (self.area / "journal").write_text(json.dumps({"version": 1, "install": install | more}))
        prepared = self.live if in_place else self.area / "prepared"
        prepared.mkdir()
        (prepared / "cleanerd-install").write_text("f00")
        (prepared / f"{0:020}.log").write_text("prepared")

    def look(self, times: int = 1) -> None:
        """So many steps, five seconds apart."""
        for _ in range(times):
            with capture_logs() as logged:
                self.left.step()
            self.logged += logged
            self.world.clock.advance(5_000)

    def settle(self) -> None:
        """Until requests of the process before cannot be under way any more."""
        self.look(4)

    def outcomes(self) -> list[str]:
        """What the history has of it."""
        events = self.world.history.events(None, 10, None, ["install"])
        return [event.outcome for event in events if (event.topic, event.partition) == ("orders", 0)]

    def warnings(self) -> list[str]:
        """Reasons, each as often as it was logged."""
        return [entry["reason"] for entry in self.logged if entry["event"] == "install_waits"]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    configured = structlog.get_config()
    made = Place(tmp_path)
    yield made
    made.world.close()
    structlog.configure(**configured)


@pytest.mark.parametrize("has_journal", [False, True])
def test_one_that_asked_for_nothing_goes_without_a_cluster(place: Place, has_journal: bool) -> None:
    """Links would keep the disk space of segments that are deleted."""
    place.leave("prepared")
    place.cluster.refuses = "no cluster"
    if not has_journal:
        (place.area / "journal").unlink()
    place.look()
    assert not place.area.exists()
    assert place.outcomes() == ["abandoned"] * has_journal


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("step", OUT)
def test_a_replica_that_is_out_comes_back_and_its_broker_fetches_the_log(
    place: Place, step: str, in_place: bool
) -> None:
    """What is prepared stays until all replicas are in sync: should the others die, it is the only copy.

    Under the partition's name it is taken away first: loaded, it would have its end fetched from a leader that may have
    dropped the tombstones in it.
    """
    place.leave(step, in_place=in_place)
    place.cluster.replicas = REST
    place.settle()
    assert place.cluster.asked == [(LIST, True)]
    place.look(3)
    assert place.cluster.asked == [(LIST, True)], "the broker fetches: nothing else is asked for"
    kept = place.area.glob("rejected*/*.log" if in_place else "prepared/*.log")
    assert [path.read_text() for path in kept] == ["prepared"]
    place.cluster.is_over()
    place.look()
    assert (place.outcomes(), place.area.exists()) == (["returned"], False)
    assert list(place.live.iterdir()) == []


def test_nothing_is_decided_while_a_request_may_be_under_way(place: Place) -> None:
    """One of the process that was killed: it would take the replica out when the journal is gone."""
    place.leave("removing")
    place.look(3)
    assert place.area.exists()
    place.cluster.replicas = REST
    place.look()
    assert place.cluster.asked == [(LIST, True)]


def test_a_replica_on_its_way_out_is_asked_back(place: Place) -> None:
    place.leave("removing")
    place.live.mkdir()
    place.cluster.removing, place.cluster.hosted_in = (1,), str(place.log_dir)
    place.settle()
    assert place.cluster.asked == [(LIST, False)]
    place.look()
    assert (place.outcomes(), place.area.exists(), place.live.exists()) == (["returned"], False, True)


def test_a_reassignment_that_never_ends_is_cancelled(place: Place) -> None:
    """Kafka's controller comes to it when it is asked for a list without a replica that is still being added."""
    place.leave("evicting")
    place.cluster.adding = place.cluster.removing = (1,)
    place.settle()
    assert place.cluster.asked == [(None, True)]
    place.look()
    assert place.cluster.asked[1:] == [(LIST, True)]


def test_a_log_that_the_broker_has_loaded_stays_without_its_mark(place: Place) -> None:
    """It may have taken records since, and the other replicas may be gone."""
    place.leave("adding", in_place=True)
    place.cluster.hosted_in = str(place.log_dir)
    place.settle()
    assert [path.name for path in place.live.iterdir()] == [f"{0:020}.log"]
    assert (place.outcomes(), place.area.exists()) == (["installed"], False)


def test_a_prepared_directory_beside_the_one_that_the_broker_has_goes(place: Place, tmp_path: Path) -> None:
    """A broker does not start where two of its log directories have one of a partition."""
    place.leave("adding", in_place=True)
    (tmp_path / "b" / "orders-0").mkdir()
    place.cluster.hosted_in = str(tmp_path / "b")
    place.settle()
    assert (place.live.exists(), place.area.exists()) == (False, False)
    assert (tmp_path / "b" / "orders-0").exists()


@pytest.mark.parametrize("hosted_in", ["a", "elsewhere"])
def test_what_the_broker_may_have_open_is_not_touched(place: Place, tmp_path: Path, hosted_in: str) -> None:
    """Whatever it calls the directory: it may see it under another path than cleanerd does."""
    place.leave("moving", in_place=True)
    place.cluster.replicas, place.cluster.hosted_in = REST, str(tmp_path / hosted_in)
    place.settle()
    assert place.live.exists()
    assert place.cluster.asked == []
    assert "has" in place.warnings()[-1]


def test_a_broker_that_does_not_answer_may_have_it_open(place: Place) -> None:
    place.leave("adding", in_place=True)
    place.cluster.replicas, place.cluster.is_alive = REST, False
    place.settle()
    assert place.live.exists()
    assert place.cluster.asked == []
    assert "broker 1 does not answer" in place.warnings()[-1]
    place.cluster.is_alive = True
    place.look()
    assert place.cluster.asked == [(LIST, True)]


def test_a_stray_directory_stays(place: Place) -> None:
    """A broker that started while the replica was out has renamed it; nobody knows what it has taken before."""
    place.leave("adding", in_place=True)
    stray = place.live.rename(place.log_dir / f"orders-0.{'0' * 32}-stray")
    place.cluster.replicas = REST
    place.settle()
    place.cluster.is_over()
    place.look()
    assert (place.outcomes(), stray.exists()) == (["returned"], True)


def test_a_list_of_somebody_else_stays(place: Place) -> None:
    place.leave("moving", in_place=True)
    place.cluster.replicas = (3, 4)
    place.settle()
    assert (place.cluster.asked, place.outcomes()) == ([], ["foreign"])
    assert not place.live.exists(), "no broker uses it, and one that is given the replica would"
    assert not place.area.exists()


def test_a_reassignment_of_somebody_else_is_waited_for(place: Place) -> None:
    place.leave("moving")
    place.cluster.replicas, place.cluster.adding = (2, 3, 4), (4,)
    place.settle()
    assert (place.cluster.asked, place.area.exists()) == ([], True)
    assert "another reassignment is under way" in place.warnings()[-1]


@pytest.mark.parametrize("topic_id", [None, "BBBBBBBBBBBBBBBBBBBBBw"])
def test_a_topic_that_is_gone_gets_no_replica(place: Place, topic_id: str | None) -> None:
    """One that is unknown is looked for twice: a broker that has just started may not know it yet."""
    place.leave("moving")
    place.cluster.topic_id, place.cluster.replicas = topic_id, REST
    place.settle()
    assert place.area.exists() == (topic_id is None)
    place.look()
    assert (place.outcomes(), place.area.exists(), place.cluster.asked) == (["dropped"], False, [])


@pytest.mark.parametrize("outcome", ["installed", "foreign"])
def test_one_that_was_over_only_goes(place: Place, outcome: str) -> None:
    """The list is not compared any more: it may have been changed since."""
    place.leave("clearing", outcome=outcome)
    place.cluster.replicas = REST
    place.settle()
    assert (place.cluster.asked, place.outcomes(), place.area.exists()) == ([], [outcome], False)


def test_a_cluster_that_cannot_be_asked_is_a_warning_with_all_that_has_to_be_done(place: Place) -> None:
    """Logged once for each reason, and tried again."""
    place.leave("moving")
    place.cluster.replicas = REST
    place.left = LeftInstalls(place.world.parts)
    place.look(5)
    (entry,) = [one for one in place.logged if one["event"] == "install_waits"]
    assert (entry["log_level"], entry["log_dir"], entry["topic"], entry["partition"], entry["step"]) == (
        "warning", str(place.log_dir), "orders", 0, "moving",
    )  # fmt: skip
    assert entry["replicas"] == [2, 1, 3]
    assert entry["reason"] == (
        "no cluster to ask: set cleanerd.kafka.bootstrap.servers; if it cannot wait, restore the replicas [2, 1, 3] of "
        f"orders-0 with kafka-reassign-partitions.sh, then delete {place.area}"
    )
    assert (place.area / "prepared").exists()
    place.start()
    place.settle()
    assert place.cluster.asked == [(LIST, True)]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"version": 2, "install": {}}', '{"version": 1, "install": {"id": 1}}', "[" * 100_000],
)
def test_a_journal_that_cannot_be_read_is_kept_with_all_that_is_there(place: Place, content: str) -> None:
    place.leave("moving", in_place=True)
    (place.area / "journal").write_text(content)
    place.look(2)
    (entry,) = place.logged
    assert (entry["event"], entry["log_level"]) == ("install_unreadable", "warning")
    assert str(place.area / "journal") in entry["reason"]
    assert place.area.exists()
    assert place.live.exists()


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_kill_in_the_middle_is_gone_on_with(
    place: Place, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """After the directory was taken away, when nothing was asked for; and between the deletions at the end."""
    place.leave("moving", in_place=True)
    place.cluster.replicas = REST
    if kept == 0:
        with monkeypatch.context() as patch:
            patch.setattr(Cluster, "reassign", _killed)
            with pytest.raises(KeyboardInterrupt):
                place.settle()
        assert not place.live.exists()
        place.start()
    place.settle()
    place.cluster.is_over()
    if kept:
        calls, real = [0], shutil.rmtree

        def rmtree(path: Any, **how: Any) -> None:
            calls[0] += 1
            if calls[0] == kept:
                raise KeyboardInterrupt
            real(path, **how)

        with monkeypatch.context() as patch:
            patch.setattr(shutil, "rmtree", rmtree)
            with pytest.raises(KeyboardInterrupt):
                place.look()
        assert (place.area / "journal").exists()
        place.start()
    place.settle()
    assert (place.area.exists(), set(place.outcomes())) == (False, {"returned"})


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_one_shot_cleaning_leaves_it_to_the_daemon(place: Place, spark: LazySpark) -> None:
    """Also where the prepared directory has the name of the partition: its log is cleaned as any."""
    place.leave("moving", in_place=True)
    shutil.rmtree(place.live)
    shutil.copytree(place.log_dir / "one-0", place.live)
    (place.live / "cleanerd-install").write_text("f00")
    before = {path.name: path.read_bytes() for path in place.area.iterdir()}
    place.world.close()
    ran = clean(spark, place.log_dir)
    assert ran.code == 0
    assert ran.outcome("orders", "a") == ran.outcome("one", "a") == "committed"
    assert {path.name: path.read_bytes() for path in place.area.iterdir()} == before
    assert (place.live / "cleanerd-install").read_text() == "f00"
