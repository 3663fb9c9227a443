"""Debian 13 with its own Python, 3.13: what the README does there, and tests of each layer.

All other tests run with the oldest Python.
"""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.operate.roots import TREE, Root, copy_tree, mount
from tests.operate.tools import need, run

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]

SUITE = "trixie", "3.13"
OF_THE_HOST = ("/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt")
INSTALL = "pip install --quiet --constraint constraints.txt -e '.[jre,test]'"
TESTS = (
    "tests/policy tests/format tests/kernels/test_cases_cleaning.py tests/storage/test_commit.py "
    "tests/pipeline/test_small_log.py tests/cleaning/test_one_shot.py tests/daemon/test_service.py"
)


@pytest.fixture
def debian(tmp_path: Path) -> Iterator[Root]:
    debootstrap, root = need("debootstrap", "debootstrap"), tmp_path / "debian"
    packages = "--include=python3,python3-venv"
    run(debootstrap, "--variant=minbase", packages, SUITE[0], root, timeout_s=600)
    for name in OF_THE_HOST:
        (root / name[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(name, root / name[1:])
    copy_tree(root)
    cache = run(sys.executable, "-m", "pip", "cache", "dir").stdout.strip()
    places = {"/dev": "dev", "/proc": "proc", cache: "srv/cache"}
    (root / "srv/cache").mkdir()
    try:
        for source, place in places.items():
            if Path(source).exists():
                mount("--rbind", "--make-rslave", source, root / place)
        yield Root(root)
    finally:
        for place in places.values():
            run("umount", "--recursive", "--lazy", root / place, check=False)


def test_it_is_installed_shown_and_tested(debian: Root) -> None:
    assert debian("python3 --version").stdout.startswith(f"Python {SUITE[1]}.")
    debian(
        f"cd /{TREE}; unset PIP_CONSTRAINT; python3 -m venv .venv; PIP_CACHE_DIR=/srv/cache .venv/bin/{INSTALL}"
    )
    assert "No key was lost" in debian(f"/{TREE}/.venv/bin/cleanerd demo").stdout
    said = debian(f"cd /{TREE}; .venv/bin/pytest -q -p no:cacheprovider {TESTS}").stdout
    assert " passed" in said.splitlines()[-1]
