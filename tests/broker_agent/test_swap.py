"""Segments are swapped into a running broker (architecture 2): nothing is lost, nothing is back, the broker is content."""

import contextlib
import os
import random
import re
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import hatch_build
from cleanerd.broker_agent import session as sessions
from cleanerd.broker_agent import swap as swaps
from cleanerd.broker_agent.jar import AgentJar, agent_jar
from cleanerd.broker_agent.swap import REFUSAL_CAUSES
from cleanerd.errors import NoWayIn
from tests.harness.broker.releases import required_program, run_tool
from tests.harness.broker.swapping import TOPIC, TXN_TOPIC, Swapping, answered
from tests.harness.daemon.processes import wait_until

SWAPS = int(os.environ.get("CLEANERD_TEST_SWAPS", "1000"))
KILLS = 12

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]


@pytest.fixture
def swapping(swapping: Swapping) -> Swapping:
    """With a transaction that is open."""
    swapping.transactions.write()
    return swapping


@pytest.mark.parametrize("own_cleaner", ["true", "false"])
def test_a_log_shrinks_beside_traffic_and_without_a_restart(tmp_path: Path, own_cleaner: str) -> None:
    """Live, after the broker's own cleaner has gone over it, and after a restart every key is what it was promised to be."""
    with Swapping(tmp_path, {"log.cleaner.enable": own_cleaner}) as swapping:
        with swapping.traffic:
            results = swapping.clean()
            assert {row["outcome"] for row in results.values()} == {"committed"}, results
            assert {row["committed_by"] for row in results.values()} == {"swap"}
            swapping.transactions.end(commit=True)  # until then nothing behind its beginning is seen
            swapping.check()
            for topic, row in results.items():
                assert row["bytes_after"] < row["bytes_before"]
                assert swapping.first_dirty_offset(topic) == row["end_offset"]
            assert results[TXN_TOPIC]["removed"]["aborted"] > 0
            assert swapping.complaints() == []
            if own_cleaner == "true":
                swapping.let_own_cleaner_go_on()
                swapping.check_in_order()
        swapping.broker.stop()
        swapping.broker.start()
        swapping.check_in_order()
        assert not list(swapping.directory(TOPIC).glob("*.cleanerd"))


def with_group(swap: dict[str, Any], number: int, **values: object) -> dict[str, Any]:
    """The request with other values of one of its groups."""
    groups = [dict(group) for group in swap["groups"]]
    groups[number].update(values)
    return {**swap, "groups": groups}


def hostile(swap: dict[str, Any]) -> dict[str, tuple[dict[str, Any], str, str]]:
    """By name: a request that must not be carried out, the outcome and what the reason says."""
    source, last = swap["groups"][0]["sources"][0], swap["groups"][-1]
    beyond = {**last, "next_base_offset": last["next_base_offset"] + 10_000}

    def read(name: str, more: int) -> dict[str, Any]:
        return with_group(swap, 0, sources=[{**source, name: source[name] + more}])

    two = [source, {**source, "base_offset": source["base_offset"] + 1}]
    return {
        "inode": (read("inode", 1), "changed", "is not the file that was read"),
        "size": (read("size_bytes", -1), "changed", "bytes, has"),
        "time": (read("mtime_ms", 1500), "changed", "is not the file that was read"),
        "one source more": (with_group(swap, 0, sources=two), "changed", "the segments in the group were"),
        "active segment": (with_group(swap, -1, **beyond), "changed", "is active"),
        "staged": (with_group(swap, 0, staged=[[".log", 1]]), "changed", "is not the staged file"),
        "another kind": (with_group(swap, 0, staged=[["/../../x", 1]]), "failed", "no file of a segment"),
        "topic id": (swap | {"topic_id": "AAAAAAAAAAAAAAAAAAAAAA"}, "changed", "the topic id was"),
        "no topic": (swap | {"topic": "other"}, "later", "no log"),
        "directory": (swap | {"directory": "/tmp"}, "changed", "has the log in"),
        "checkpoint": (swap | {"checkpoint": 5}, "changed", "the first dirty offset was 5"),
        "epochs": (swap | {"leader_epochs": [[0, 0], [1, 1]]}, "changed", "the leader epochs below"),
        "end": (swap | {"round_end": swap["round_end"] + 1}, "changed", "which follows the cleaned range"),
        "no groups": (swap | {"groups": None}, "failed", "NullPointerException"),
        "another version": (swap | {"version": 2}, "failed", "speaks version 1"),
        "time is up": (swap | {"timeout_ms": -1}, "busy", "the time is up"),
    }


def test_each_refusal_of_the_agent_has_its_cause() -> None:
    """And each cause is in use."""
    sources = "".join(path.read_text() for path in Path(sessions.__file__).parent.rglob("*.java"))
    assert {*re.findall(r'Refused\.(?:changed|busy|later)\("(\w+)", ', sources)} < {*REFUSAL_CAUSES}
    assert [cause for cause in REFUSAL_CAUSES if f'"{cause}"' not in sources] == []


def test_groups_that_are_asked_for_a_few_at_a_time(
    swapping: Swapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of a cleaning that has thousands: the checkpoint moves with the last of them."""
    monkeypatch.setattr(swaps, "_REQUEST_MAX", 4)  # two groups of one source
    session, ends = swapping.session(), list[int]()

    def is_swapped() -> bool:
        swap = swapping.stage_copies(groups_max=5)
        ends.append(swap.round_end)
        return swap.by(session).outcome == "swapped"

    wait_until(is_swapped, 60)  # its cleaner may be at work between two requests
    assert swapping.first_dirty_offset(TOPIC) == ends[-1]
    swapping.transactions.end(commit=False)
    swapping.check_in_order()


def test_the_compiler_that_spark_brings_makes_an_agent_that_swaps_as_well(
    swapping: Swapping, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no JDK. The same sources give the same bytes."""
    package = tmp_path / "source" / "cleanerd" / "broker_agent"
    shutil.copytree(Path(sessions.__file__).parent / "java", package / "java")
    monkeypatch.setattr(hatch_build, "_javac", lambda: None)
    made = set()
    for _ in range(2):
        assert hatch_build.build_agent(tmp_path / "source")
        made.add((package / "cleanerd-agent.jar").read_bytes())
    (content,) = made
    jar = AgentJar(content, (package / "cleanerd-agent.jar.sha256").read_text().strip())
    assert jar != agent_jar()
    monkeypatch.setattr(sessions, "agent_jar", lambda: jar)
    session = swapping.session()
    swapping.swap(session)
    swapping.transactions.end(commit=False)
    swapping.check_in_order()


def test_thousands_of_swaps_leave_the_broker_as_large_as_it_was(swapping: Swapping) -> None:
    """Heap, classes, threads and descriptors; by ten sessions."""

    def swap_often(times: int) -> None:
        session = swapping.session()
        for _ in range(times):
            swap = swapping.stage_copies(groups_max=1)
            wait_until(lambda swap=swap: swap.by(session).outcome == "swapped", 30)
        session.close()

    swap_often(200)
    before = resources(swapping.broker.pid)
    for _ in range(10):
        swap_often(SWAPS // 10)
    wait_until(
        lambda: not grown(before, resources(swapping.broker.pid)),
        60,
        lambda: f"{before} {resources(swapping.broker.pid)}",
    )
    swapping.transactions.end(commit=False)
    swapping.check_in_order()


def grown(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """What is more than a broker that works would explain."""
    allowed = {"threads": 2, "descriptors": 8, "classes": 40, "heap_bytes": 8 << 20}
    return {name: after[name] - n for name, n in before.items() if after[name] - n > allowed[name]}


def resources(pid: int | None) -> dict[str, int]:
    """Of a JVM, after a collection."""

    def jcmd(*words: str) -> str:
        return run_tool([required_program("jcmd"), str(pid), *words]).stdout

    jcmd("GC.run")
    heap = re.findall(r"(?:generation|object space).*?used (\d+)K", jcmd("GC.heap_info"))
    return {
        "threads": len(list(Path(f"/proc/{pid}/task").iterdir())),
        "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "classes": int(re.findall(r"Total = \d+ +(\d+)", jcmd("VM.classloader_stats"))[0]),
        "heap_bytes": 1024 * sum(map(int, heap)),
    }


def test_what_does_not_fit_is_refused_and_nothing_is_touched(swapping: Swapping) -> None:
    """By the broker's own knowledge, under the log's own lock: the request itself need not be right."""
    for _ in range(30):  # segments behind the last stable offset
        swapping.transactions.write()
    unstable = swapping.stage_copies(TXN_TOPIC)._request()
    swap = swapping.stage_copies(groups_max=3)._request()
    wait_until(lambda: not list(swapping.directory().glob("*.deleted")), 30)
    session = swapping.session()
    requests = {**hostile(swap), "unstable": (unstable, "later", "and the last stable offset")}

    def live() -> dict[str, int]:
        return {path.name: path.stat().st_ino for path in swapping.directory().iterdir()}

    before = live()
    for name, (request, outcome, reason) in requests.items():
        answer = session.ask(request, 30)
        while "LogCleaningInProgress" in answer["reason"]:  # its cleaner looks at every log, again and again
            answer = session.ask(request, 30)
        assert (answer["outcome"], reason in answer["reason"]) == (outcome, True), (name, answer)
        assert (answer["cause"] == "other") == (outcome == "failed"), (name, answer)
        assert live() == before, name
    swapping.swap(session)
    assert swapping.complaints() == []
    swapping.transactions.end(commit=False)
    swapping.check()
    swapping.let_own_cleaner_go_on()  # nothing is left paused


@contextmanager
def not_to_be_renamed(path: Path) -> Iterator[None]:
    run_tool([required_program("chattr"), "+i", str(path)])
    try:
        yield
    finally:
        run_tool([required_program("chattr"), "-i", str(path)])


def test_a_failing_disk_is_seen_as_what_it_is(swapping: Swapping) -> None:
    """Before the broker has begun, the log is as it was. In the middle, the broker gives the directory up, as for its own
    cleaner, and its next start finishes what was begun.
    """
    swapping.transactions.end(commit=False)
    session, directory = swapping.session(), swapping.directory()
    swap = swapping.stage_copies(groups_max=3)
    live = sorted(directory.glob("*.log"))
    with not_to_be_renamed(directory / f"{0:020}.timeindex.cleanerd"):
        answer = answered(swap, session)
    assert answer.outcome == "failed"
    assert "could not be opened" in answer.reason
    assert sorted(directory.glob("*.log")) == live
    assert not list(directory.glob("*.cleaned"))
    swapping.check_in_order()

    swap = swapping.stage_copies(groups_max=3)
    with not_to_be_renamed(live[0]):
        with contextlib.suppress(
            NoWayIn
        ):  # its only directory: the broker ends, perhaps before it has answered
            answer = answered(swap, session)
            assert answer.outcome == "failed"
            assert "failed while it replaced segments" in answer.reason
        with pytest.raises(RuntimeError, match="the broker ended"):
            wait_until(lambda: swapping.broker.poll(), 60)
        assert "could not be replaced" in "".join(swapping.complaints())
    swapping.broker.start()
    assert swapping.errors() == []
    swapping.check()


@pytest.mark.soak
def test_kill_9_at_any_moment_of_a_swap(swapping: Swapping) -> None:
    """Whatever the broker had done: after its start every key is there, and what was staged is in no one's way."""
    rng = random.Random(33)
    swapping.transactions.end(commit=False)
    left = Counter[str]()
    for _ in range(KILLS):
        broker = swapping.broker
        swap, session = swapping.stage_copies(), swapping.session()
        waiting = rng.randrange(len(swap.groups))

        def kill(
            pid: int | None = broker.pid, waiting: int = waiting, delay_s: float = rng.uniform(0, 0.002)
        ) -> None:
            while len(list(swapping.directory().glob("*.manifest.cleanerd"))) > waiting:
                pass
            threading.Event().wait(delay_s)
            os.kill(pid or 0, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            answered(swap, session)
        except NoWayIn:
            left["killed in the middle"] += 1
        killer.join()
        broker.kill()
        names = [path.name for path in swapping.directory().iterdir()]
        for suffix in (".manifest.cleanerd", ".cleaned", ".swap", ".deleted"):
            left[suffix] += any(name.endswith(suffix) for name in names)
        broker.start()
        assert swapping.errors() == []
        swapping.check()
        for path in swapping.directory().glob("*.cleanerd"):
            path.unlink()
    print(left)
    assert left["killed in the middle"] > KILLS // 4, left
