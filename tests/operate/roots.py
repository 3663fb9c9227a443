"""A root of its own for what is installed: commands run in it as in a fresh login of root."""

import os
import shutil
import subprocess
from pathlib import Path

from tests.harness.programs import ROOT, missing, run

TREE = "srv/tree"  # a copy of this one: where it lies may be a mount of its own
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "SYSTEMD_OFFLINE": "1",
}
KEPT = (
    "PIP_INDEX_URL",
    "PIP_CONSTRAINT",
    "PIP_CERT",
    "SSL_CERT_FILE",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)


class Root:
    """A changed root; commands run in it as in a fresh login of root."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, script: str, *, check: bool = True) -> "subprocess.CompletedProcess[str]":
        environment = ENVIRONMENT | {name: os.environ[name] for name in KEPT if name in os.environ}
        words = [f"{name}={value}" for name, value in environment.items()]
        return run(
            "chroot", self.path, "env", "-i", *words, "bash", "-euc", script, check=check, timeout_s=900
        )

    def has(self, name: str) -> bool:
        return os.path.lexists(self.path / name.removeprefix("/"))


def mount(*words: object) -> None:
    try:
        run("mount", *words)
    except AssertionError as error:
        missing(f"a root of its own needs to mount: {error}")


def copy_tree(root: Path) -> None:
    for name in run("git", "ls-files", "-z").stdout.split("\0")[:-1]:
        (root / TREE / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / TREE / name)
