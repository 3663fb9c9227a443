"""Installed as README says: in a root of its own, an overlay over this machine's that goes away.

There is no running systemd in it, which SYSTEMD_OFFLINE tells systemctl: units are enabled and not started.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.programs import ROOT, missing, need, run
from tests.operate.roots import TREE, Root, copy_tree, mount

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

UNITS = ("cleanerd.service", "cleanerd.socket")
WRITE_LOG = """
from cleanerd.tools.client.producer import Producer
from cleanerd.tools.client.writer import LogWriter
with LogWriter("/srv/logs", "orders", 0, segment_bytes=1 << 20) as writer:
    producer = Producer(writer)
    for key in [b"a", b"b"] * 500:
        producer.put(key, b"value", 1)
    writer.roll()
"""


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    """The machine's own root, with all changes in memory."""
    if os.geteuid() != 0:
        missing("a root of its own needs root")
    memory, merged = tmp_path / "memory", tmp_path / "root"
    memory.mkdir()
    merged.mkdir()
    mounted = []
    try:
        mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", memory)
        mounted.append(memory)
        for name in ("upper", "work"):
            (memory / name).mkdir()
        mount(
            "-t",
            "overlay",
            "overlay",
            "-o",
            f"lowerdir=/,upperdir={memory}/upper,workdir={memory}/work",
            merged,
        )
        mounted.append(merged)
        for name in ("dev", "proc"):
            mount("--rbind", "--make-rslave", f"/{name}", merged / name)
            mounted.append(merged / name)
        copy_tree(merged)
        yield Root(merged)
    finally:
        for path in reversed(mounted):
            run("umount", "--recursive", "--lazy", path, check=False)


def is_ready_to_start(root: Root) -> None:
    """What the units name is there, with the owners that they expect."""
    program = need("systemd-analyze", "systemd")
    for unit in UNITS:
        assert root(f"{program} verify --man=no {unit} 2>&1").stdout == ""
    assert root("stat -c '%U %a' /run/cleanerd /var/cache/cleanerd").stdout == "kafka 750\n" * 2
    assert root("cleanerctl --version; cleanerd --version").stdout.split()[::2] == ["cleanerctl", "cleanerd"]


def test_readme_installs_a_service(root: Root) -> None:
    text = (ROOT / "README.md").read_text().partition("## Install it as a service")[2]
    found = re.search(r"```sh\n(.*?)```", text, re.DOTALL)
    assert found is not None
    root(f"rm -rf /opt/cleanerd; cd /{TREE}\n{found[1]}")
    is_ready_to_start(root)
    assert root("systemctl is-enabled cleanerd.service cleanerd.socket").stdout == "enabled\nenabled\n"
    # With the Java runtime that came along: none is on the path, nor in the environment.
    root(
        f"rm -rf /usr/lib/jvm /usr/bin/java; mkdir -p /srv/logs\n/opt/cleanerd/bin/python - <<'END'\n{WRITE_LOG}\nEND"
    )
    said = root("cleanerd clean --force --log-dir /srv/logs --set log.cleanup.policy=compact").stdout
    assert re.search(r"orders-0 +committed .* superseded 998", said), said


def test_pip_installs_it_from_an_index_of_ones_own(tmp_path: Path) -> None:
    """Wheel and source distribution, into an empty environment, with nothing on the path: neither needs a compiler."""
    index, home, logs = tmp_path / "index", tmp_path / "home", tmp_path / "logs"
    run(sys.executable, "-m", "hatchling", "build", "-d", index, timeout_s=300)
    (wheel,), constraints = index.glob("*.whl"), ROOT / "constraints.txt"
    pip_wheel = ("-m", "pip", "wheel", "--quiet", "--wheel-dir", index, "--constraint", constraints)
    run(sys.executable, *pip_wheel, wheel, "hatchling", timeout_s=900)
    run(sys.executable, "-m", "venv", home)

    def alone(*words: object) -> str:
        return run("env", "-i", "PATH=/nonexistent", home / "bin" / "python", *words, timeout_s=600).stdout

    def agent_after(*options: str) -> str:
        alone("-m", "pip", "install", "--quiet", "--no-index", "--find-links", index, *options, "cleanerd")
        return alone("-c", "from cleanerd.broker_agent.jar import agent_jar; print(agent_jar().sha256)")

    agent = agent_after()
    assert agent == agent_after("--no-deps", "--force-reinstall", "--no-binary", "cleanerd")
    logs.mkdir()
    alone("-c", WRITE_LOG.replace("/srv/logs", str(logs)))
    clean = ("clean", "--force", "--log-dir", logs, "--set", "log.cleanup.policy=compact")
    assert re.search(
        r"orders-0 +committed .* superseded 998", run(home / "bin" / "cleanerd", *clean, timeout_s=900).stdout
    )
