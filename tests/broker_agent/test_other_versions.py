"""An agent, a cleanerd, a broker of other versions: what fits goes on, what does not is refused with its reason."""

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import hatch_build
from cleanerd.broker_agent import brokers, jar
from cleanerd.broker_agent import session as sessions
from cleanerd.broker_agent.jar import AgentJar, agent_jar
from cleanerd.broker_agent.leases import lease
from cleanerd.broker_agent.live_logs import describe
from cleanerd.broker_agent.session import Session
from cleanerd.errors import NoWayIn
from cleanerd.format.names import TopicPartition
from cleanerd.storage.partition_dir import PartitionDir
from tests.harness.broker.kafka import KafkaBroker
from tests.harness.broker.live import PATIENCE_S
from tests.harness.broker.releases import SWITCH, newest_release
from tests.harness.broker.swapping import FILES, TOPIC, Swapping, asked_brokers, build_agent
from tests.harness.broker.workload import alter_config
from tests.harness.daemon.processes import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

OLD_RELEASE = "3.9.2"
LEASE_MS = 3000
SOURCES = Path(sessions.__file__).parent / "java"


def agent(root: Path, changes: Mapping[str, str]) -> Path:
    """A jar that is built from the sources, of which some words are others: a later or earlier one."""
    package = root / "cleanerd" / "broker_agent"
    shutil.copytree(SOURCES, package / "java")
    for source in (package / "java").rglob("*.java"):
        text = source.read_text()
        for old, new in changes.items():
            text = text.replace(old, new)
        source.write_text(text)
    assert hatch_build.build_agent(root)
    return package / "cleanerd-agent.jar"


def older_agent(root: Path) -> Path:
    """It speaks version 0 of the protocol."""
    made = agent(root, {f"VERSION = {sessions.VERSION};": "VERSION = 0;"})
    assert made.read_bytes() != agent_jar().content
    return made


def read(path: Path) -> AgentJar:
    return AgentJar(path.read_bytes(), Path(f"{path}.sha256").read_text().strip())


def test_an_agent_that_misses_something_in_the_broker_names_it_and_touches_nothing(
    swapping: Swapping, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a release that has renamed what the agent calls."""
    strange = agent(
        tmp_path / "strange", {'"updateCheckpoints"': '"updateMarks"', '"logDirFailureChannel"': '"failures"'}
    )
    monkeypatch.setattr(sessions, "agent_jar", lambda: read(strange))
    with pytest.raises(NoWayIn) as raised:
        swapping.session()
    reason = str(raised.value)
    assert f"Kafka {swapping.broker.release.version} is not known to this agent, it has no [" in reason
    assert re.search(r"LogDirFailureChannel \S+LogManager\.failures", reason), reason
    assert re.search(r"void \S+LogCleanerManager\.updateMarks\(java\.io\.File, ", reason), reason
    assert swapping.complaints() == []


def test_a_release_that_is_not_tested_has_to_be_allowed(
    swapping: Swapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brokers, "TESTED_RELEASES", ("2.8", "3.3"))
    with closing(asked_brokers()) as asked:
        reason = asked.why_not(str(swapping.log_dir))
    assert "the agent is tested with 2.8, 3.3. cleanerd.broker.agent.untested=true" in str(reason)
    with closing(asked_brokers(untested="true")) as asked:
        assert asked.why_not(str(swapping.log_dir)) is None


@pytest.mark.parametrize("what", ["no jar", "another jar"])
def test_an_installation_that_is_not_whole_loads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(jar, "files", lambda _: tmp_path)
    if what == "another jar":
        (tmp_path / "cleanerd-agent.jar").write_bytes(b"PK")
        (tmp_path / "cleanerd-agent.jar.sha256").write_text("0" * 64)
    with pytest.raises(NoWayIn, match="has no agent" if what == "no jar" else "Install cleanerd again"):
        agent_jar()


def test_the_agent_of_an_older_cleanerd_and_that_of_a_newer_one_at_once(
    swapping: Swapping, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upgrade of cleanerd beside a broker that goes on: each finds its own classes, and what the older one keeps the
    broker's cleaner from is not taken from it.
    """
    older = read(older_agent(tmp_path / "older"))

    @contextmanager
    def as_older() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(sessions, "VERSION", 0)
            patch.setattr(sessions, "agent_jar", lambda: older)
            yield

    log = PartitionDir(FILES, str(swapping.directory())), TopicPartition(TOPIC, 0)
    with as_older():
        before = swapping.session()
        wait_until(lambda: lease(before, "older", [log], LEASE_MS) == {} and is_paused(swapping, before), 30)
    after = swapping.session()
    answer = swapping.stage_copies(groups_max=2).by(after)
    assert (answer.outcome, "LogCleaningPaused" in answer.reason) == ("busy", True), answer
    swapping.swap(after)
    with as_older():
        assert not is_paused(swapping, before)
        before.close()
        swapping.session().close()  # its classes are found again, although the jar is another one now
    assert after.ask({"request": "hello"}, 10)["outcome"] == "hello"
    swapping.transactions.end(commit=True)
    swapping.check_in_order()


def is_paused(swapping: Swapping, session: Session) -> bool:
    (found,) = describe(session, str(swapping.log_dir), [TopicPartition(TOPIC, 0)])
    return found.cleaning_state == "LogCleaningPaused"


@pytest.fixture
def started_with_older(tmp_path: Path) -> Iterator[Swapping]:
    """cleanerd was upgraded, and its broker was not restarted."""
    build_agent()
    with Swapping(tmp_path, jvm=(f"-javaagent:{older_agent(tmp_path / 'older')}",)) as world:
        wait_until((world.log_dir / ".cleanerd-agent.sock").exists, 30)
        yield world


def test_a_broker_that_was_started_with_the_agent_of_an_older_cleanerd(started_with_older: Swapping) -> None:
    """It is not asked in another way: whoever chose -javaagent may have forbidden the other one."""
    with closing(asked_brokers()) as asked:
        reason = asked.why_not(str(started_with_older.log_dir))
    remedy = (
        "speaks version 0, cleanerd version 1: start the broker with the cleanerd-agent.jar of this cleanerd"
    )
    assert remedy in str(reason)


def test_a_broker_is_upgraded_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another release, with other collections and classes, in the same directory: whoever asked the old one asks it."""
    monkeypatch.setenv(SWITCH, OLD_RELEASE)
    with Swapping(tmp_path) as world, closing(asked_brokers()) as asked:

        def is_swapped() -> bool:
            swap = world.stage_copies(groups_max=2)
            return asked.swap(str(world.log_dir), swap).outcome == "swapped"

        wait_until(is_swapped, PATIENCE_S)
        world.transactions.end(commit=True)
        for topic in world.ledgers:  # the newer one takes no smaller ones under that name
            alter_config(world.broker.admin(), topic, {"segment.bytes": str(1 << 20)})
        world.broker.stop()
        assert "no broker runs there" in str(asked.why_not(str(world.log_dir)))
        monkeypatch.setenv(SWITCH, newest_release())
        world.broker = KafkaBroker(tmp_path / "newer", [world.log_dir], ports=world.broker._ports)
        world.broker.start()
        wait_until(is_swapped, PATIENCE_S)
        assert asked.report(str(world.log_dir)).release == newest_release()
        with world.traffic:
            pass
        world.check()
        assert world.errors() == []
