"""`cleanerd broker check`: one answer for each log directory, and an exit code for scripts."""

import json
from pathlib import Path

import pytest

from cleanerd.format import names
from tests.broker_agent.test_other_versions import OLD_RELEASE
from tests.harness.broker.jvms import NO_BROKER, compiled, jvm
from tests.harness.broker.releases import SWITCH, newest_release
from tests.harness.broker.swapping import Swapping, build_agent
from tests.harness.command_line import Run
from tests.harness.logs.troubled import lock_of_another


def test_a_directory_without_a_broker(run: Run, tmp_path: Path) -> None:
    ran = run("broker", "check", "--log-dir", str(tmp_path), "-o", "json")
    (row,) = json.loads(ran.out)["log_dirs"]
    assert (ran.code, row["reason"]) == (1, f"{tmp_path}: no broker runs there")


def test_a_process_that_is_no_broker(run: Run, tmp_path: Path) -> None:
    with lock_of_another(tmp_path / names.LOCK):
        ran = run("broker", "check", "--log-dir", str(tmp_path))
    assert ran.code == 1
    assert "is not a JVM: only a Kafka broker can swap segments" in " ".join(ran.out.split())
    assert "cleanerd.commit.live is off" in ran.err


@pytest.mark.broker
@pytest.mark.parametrize(
    ("options", "reason"),
    [((), NO_BROKER), (("-XX:+DisableAttachMechanism",), "start it without, or with -javaagent:")],
)
def test_a_jvm_that_cannot_be_asked(run: Run, tmp_path: Path, options: tuple[str, ...], reason: str) -> None:
    """What forbids it, and what would help (tests/broker_agent/test_attach.py has each way)."""
    build_agent()
    with jvm(compiled(tmp_path), *options, lock=tmp_path / names.LOCK):
        ran = run("broker", "check", "--log-dir", str(tmp_path), "--load", "-o", "json")
    (row,) = json.loads(ran.out)["log_dirs"]
    assert (ran.code, reason in row["reason"]) == (1, True), row


@pytest.mark.broker
@pytest.mark.parametrize("version", [OLD_RELEASE, newest_release()])
def test_a_broker_that_can_swap(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """What it answers: of brokers with collections of Scala and of Java. A link to its directory will do."""
    monkeypatch.setenv(SWITCH, version)
    link = tmp_path / "link"
    with Swapping(tmp_path) as world:
        link.symlink_to(world.log_dir)
        unasked = run("broker", "check", "--log-dir", str(link), "-o", "json")
        (row,) = json.loads(unasked.out)["log_dirs"]
        assert (unasked.code, row["is_asked"]) == (1, False)
        assert "the agent was not loaded" in row["reason"]
        assert "--load" in unasked.err
        assert not (world.log_dir / ".cleanerd-agent.jar").exists()
        ran = run("broker", "check", "--log-dir", str(link), "--load", "-o", "json")
        shown = run("broker", "check", "--log-dir", str(world.log_dir), "--load")
        (row,) = json.loads(ran.out)["log_dirs"]
        assert (ran.code, row) == (
            0,
            {
                "log_dir": str(link),
                "pid": world.broker.pid,
                "node_id": int(world.broker.properties["node.id"]),
                "release": version,
                "capabilities": ["cleaner", "describe", "lease", "request_queue", "roll", "swap"],
                "broker_log_dirs": [str(world.log_dir)],
                "reason": None,
                "is_asked": True,
            },
        )
        assert f"Kafka {version}, node {row['node_id']}, process {row['pid']}" in shown.out
        assert f"describe, lease, request_queue, roll, swap  {world.log_dir}" in shown.out
