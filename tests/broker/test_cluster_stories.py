"""Three brokers, and what can happen to a log in the middle of its cleaning, on leaders and followers: a model of every key
on every replica. CLEANERD_TEST_STORIES=1 has each thing happen at each moment, on both.
"""

import os
import socket
import struct
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest

from cleanerd.broker_agent.brokers import LiveBrokers
from cleanerd.cleaning.clean import Cleaner
from cleanerd.cleaning.commit.committer import Committer
from cleanerd.cleaning.outcomes import Superseded
from cleanerd.env.space import space_of
from tests.harness.broker.cluster import NODES, KafkaCluster
from tests.harness.broker.live import PATIENCE_S, Journal, elect, frozen, leader_and_isr, records
from tests.harness.broker.replicas import DONE, Replicas
from tests.harness.broker.swapping import QUICK, build_agent
from tests.harness.broker.workload import alter_config, delete_records
from tests.harness.daemon.processes import wait_until
from tests.harness.disks.mounts import mounted

pytestmark = [pytest.mark.broker, pytest.mark.timeout(1800)]

IS_LONG = bool(os.environ.get("CLEANERD_TEST_STORIES"))
PROPERTIES = {"log.segment.delete.delay.ms": "100", "socket.send.buffer.bytes": "8192"}
BOTH = {**QUICK, "cleanup.policy": "compact,delete"}
MOMENTS: Mapping[str, tuple[type, str]] = {
    "planned": (Cleaner, "plan"),
    "written": (Cleaner, "write"),
    "staged": (Cleaner, "end"),
    "committed": (Committer, "settle"),
    "swapped": (LiveBrokers, "swap"),
}
"""What is about to be done."""


@contextmanager
def meanwhile(moment: str, happens: Callable[[], object]) -> Iterator[None]:
    """Something happens, once, just before `moment`."""
    owner, name = MOMENTS[moment]
    original, happened = getattr(owner, name), list[bool]()

    def met(self: object, about: object, *rest: object, **options: object) -> object:
        if about and not happened:  # nothing is about to be done to no log
            happened.append(True)
            happens()
        return original(self, about, *rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, met)
        yield
    assert happened


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Each broker has two log directories; one of them is small."""
    build_agent()
    root = tmp_path_factory.mktemp("cluster")
    small = root / "3" / "other"
    small.mkdir(parents=True)
    with (
        mounted(small, "-t", "tmpfs", "-o", "size=64m", "none"),
        KafkaCluster(root, PROPERTIES, ("logs", "other")) as cluster,
    ):
        yield cluster


@pytest.fixture(scope="module")
def world(cluster: KafkaCluster) -> Replicas:
    return Replicas(cluster)


# -- what happens to a log ----------------------------------------------------------------------------------------------


def delete_half(world: Replicas, node: int, topic: str) -> None:
    """DeleteRecords to the middle of what is there, inside of a segment."""
    kept = [
        offset for offset in sorted(world.written[topic]()) if offset >= world.live(1, topic).log_start_offset
    ]
    offset = kept[len(kept) // 2]
    delete_records(world.admin, topic, offset)
    wait_until(lambda: world.has_forgotten(node, topic, offset), PATIENCE_S)


def set_policy(world: Replicas, node: int, topic: str, *, policy: str) -> None:
    alter_config(world.admin, topic, {"cleanup.policy": policy})
    wait_until(lambda: world.live(node, topic).config["cleanup.policy"] == policy, PATIENCE_S)


def recreate(world: Replicas, node: int, topic: str) -> None:  # on all of them
    world.recreate(topic)


def move(world: Replicas, node: int, topic: str) -> None:
    """The replica goes to the other log directory of its broker."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka.admin import KafkaAdminClient  # slow

    before = world.home(node, topic)
    (target,) = set(world.cluster.brokers[node].log_dirs) - {before.parent}
    client = KafkaAdminClient(bootstrap_servers=world.cluster.bootstrap.split(","))
    try:
        client.alter_replica_log_dirs({(topic, 0, node): str(target)})
    finally:
        client.close()
    wait_until(lambda: world.homes(node, topic) == [target / f"{topic}-0"], PATIENCE_S)


def retain(world: Replicas, node: int, topic: str) -> None:
    """Retention by time takes all closed segments, on every replica."""
    before = world.live(node, topic).log_start_offset
    alter_config(world.admin, topic, {"retention.ms": "1"})
    wait_until(lambda: world.live(node, topic).log_start_offset > before, PATIENCE_S)
    alter_config(world.admin, topic, {"retention.ms": "-1"})
    wait_until(lambda: world.live(node, topic).config["retention.ms"] == "-1", PATIENCE_S)


@dataclass(frozen=True, slots=True)
class Story:
    """What happens, and the outcome that the cleaning must have then."""

    happens: Callable[[Replicas, int, str], None]
    outcome: str = Superseded.word
    config: Mapping[str, str] = field(default_factory=lambda: QUICK)


STORIES = {
    "deleted-into": Story(delete_half, config=BOTH),
    "no-longer-compacted": Story(partial(set_policy, policy="delete")),
    "deleted-as-well": Story(partial(set_policy, policy="compact,delete"), "committed"),
    "created-again": Story(recreate),
    "moved": Story(move),
    "retained": Story(retain, config=BOTH),
}
CELLS = [
    (topic, moment, node)
    for number, topic in enumerate(STORIES)
    for moment in (MOMENTS if IS_LONG else ("planned", "swapped"))
    for node in ((1, 2) if IS_LONG else (1 + (number + (moment == "planned")) % 2,))
]
"""Node 1 leads."""


@pytest.mark.parametrize(("topic", "moment", "node"), CELLS)
def test_what_happens_to_a_log_in_the_middle_of_its_cleaning(
    world: Replicas, topic: str, moment: str, node: int
) -> None:
    """The result is dropped, unless it is still right; the next cleaning goes by the log as it is now."""
    story = STORIES[topic]
    if topic not in world.written:
        world.create(topic, story.config)
    world.fill(topic)
    with meanwhile(moment, partial(story.happens, world, node, topic)):
        outcomes, rows = world.clean(node, topic)
    assert story.outcome in outcomes, [row["reason"] for row in rows]
    assert outcomes <= {story.outcome, *DONE}
    assert not list(world.home(node, topic).glob("*.cleanerd"))
    if topic == "no-longer-compacted":
        assert world.clean(node, topic)[0] == {Superseded.word}, (
            "cleanerd is told another policy than the broker has"
        )
    set_policy(world, node, topic, policy=story.config["cleanup.policy"])
    world.fill(topic)
    world.clean_all(topic)


def test_a_log_that_an_unclean_election_has_cut(world: Replicas) -> None:
    """What superseded the records in the sources is gone by then, but the sources are what they were."""
    topic, cluster = "cut", world.cluster
    world.create(
        topic, {**QUICK, "unclean.leader.election.enable": "true", "min.insync.replicas": "1"}, (1, 2)
    )
    journal = Journal(cluster.bootstrap)
    world.written[topic] = lambda: journal.written[topic]
    end = journal.fill(topic, records("both", [*range(60), *range(100, 200)]))
    cluster.brokers[2].stop()
    wait_until(lambda: leader_and_isr(cluster.brokers[1], topic)[1] == {1}, PATIENCE_S)
    journal.fill(topic, records("one", [*range(60), *range(200, 300)]))

    def cut() -> None:
        with frozen(cluster.brokers[1]):
            written = elect(2, cluster.brokers[2], topic, records("two", range(400, 440)))
        journal.forget(topic, end)
        journal.written[topic] |= written
        wait_until(lambda: world.is_in_sync(topic), PATIENCE_S)

    with meanwhile("swapped", cut):
        outcomes, rows = world.clean(1, topic)
    assert outcomes == {Superseded.word}, rows
    world.clean_all(topic)


def test_a_fetch_of_a_segment_that_is_being_replaced(world: Replicas) -> None:
    """The broker is in the middle of sending it: the consumer gets what was there, or an end of the connection; never other
    bytes.
    """
    topic = "wide"
    world.create(topic, {**QUICK, "internal.segment.bytes": str(1 << 20), "file.delete.delay.ms": "100"})
    journal = Journal(world.cluster.bootstrap)
    world.written[topic] = lambda: journal.written[topic]
    for entry in records(topic, [*range(5000), *range(5000)]):
        journal.send(topic, entry)
    journal.flush()
    first = world.home(1, topic) / f"{0:020}.log"
    old = first.read_bytes()
    with closing(fetching(world.cluster.brokers[1].bootstrap, topic)) as fetch:
        begun = fetch.recv(4096)
        outcomes, rows = world.clean(1, topic)
        assert outcomes == {"committed"}, rows
        wait_until(lambda: not list(first.parent.glob("*.deleted")), PATIENCE_S)
        got = begun + b"".join(iter(partial(fetch.recv, 1 << 16), b""))
    (size_bytes,) = struct.unpack_from(">i", got)
    at = got.index(old[:61])
    assert got[at:] == old[: len(got) - at]
    assert len(got) <= 4 + size_bytes
    assert first.stat().st_size < len(old)
    world.clean_all(topic)


def fetching(bootstrap: str, topic: str) -> socket.socket:
    """A fetch of partition 0 from its beginning, of a client that reads slowly."""
    host, port = bootstrap.split(":")
    name = struct.pack(">h", len(topic)) + topic.encode()
    body = struct.pack(">hhih", 1, 4, 7, -1) + struct.pack(">iiiib", -1, 100, 1, 1 << 20, 0)
    body += struct.pack(">i", 1) + name + struct.pack(">iiqi", 1, 0, 0, 1 << 20)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(10)
    client.connect((host, int(port)))
    client.sendall(struct.pack(">i", len(body)) + body)
    client.shutdown(socket.SHUT_WR)
    return client


def test_a_disk_that_is_full_on_one_broker(world: Replicas) -> None:
    """A cleaning that has no room costs its broker nothing. Between staging and swap the disk is filled up, which a broker
    may not survive with or without us: after its next start everything is there.
    """
    topic, broker = "tight", world.cluster.brokers[3]
    small = broker.log_dirs[1]
    world.create(topic, {**QUICK, "internal.segment.bytes": str(1 << 20)})
    journal = Journal(world.cluster.bootstrap)
    world.written[topic] = lambda: journal.written[topic]
    if world.home(3, topic).parent != small:
        move(world, 3, topic)
    for entry in records(topic, [*range(6000), *range(5000)]):
        journal.send(topic, entry)
    journal.flush()
    world.check(topic)
    filler = small / "filler"

    def fill_up(left_bytes: int = 0) -> None:
        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, space_of(str(small)).free_bytes - left_bytes)

    fill_up(256 << 10)
    _, (row,) = world.clean(3, topic, "--set", "cleanerd.staged.min.free.ratio=0")
    assert row["outcome"] == "failed", row
    assert " free" in row["reason"]
    world.check(topic)
    assert world.complaints() == []
    filler.unlink()
    with meanwhile("swapped", fill_up):
        world.clean(3, topic)
    filler.unlink()
    broker.kill()
    broker.start()
    wait_until(lambda: world.is_in_sync(topic), PATIENCE_S)
    world.clean_all(topic)


def test_afterwards_the_brokers_own_cleaners_go_over_all_of_it(world: Replicas) -> None:
    """And no broker has complained about a log."""
    if not world.written:
        pytest.skip("there was no story")
    for topic in set(STORIES) & world.written.keys():
        world.fill(topic)
        alter_config(world.admin, topic, {"min.cleanable.dirty.ratio": "0.0"})
        for node in NODES:
            wait_until(partial(world.is_cleaned, node, topic), PATIENCE_S)
        world.check(topic)
    assert world.complaints() == []
