"""Debian 13 with its own Python, 3.13: the package and what the README does there, and tests of each layer.

All other tests run with the oldest Python.
"""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.programs import need, run
from tests.operate.roots import TREE, Root, copy_tree, mount
from tests.operate.test_install import is_ready_to_start

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]

SUITE = "trixie", "3.13"
UNIT = "/usr/lib/systemd/system/cleanerd.service"
OF_THE_HOST = ("/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt")
PIP = "unset PIP_CONSTRAINT"  # a file of the host
INSTALL = f"/opt/cleanerd/bin/pip install --quiet --constraint constraints.txt -e '/{TREE}[jre,test]'"
TESTS = (
    "tests/policy tests/format tests/kernels/test_cases_cleaning.py tests/proofs/test_old_or_new.py "
    "tests/pipeline/test_small_log.py tests/cleaning/test_one_shot.py tests/daemon/test_service.py"
)


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Root]:
    debootstrap, root = need("debootstrap", "debootstrap"), tmp_path_factory.mktemp("debian")
    packages = "--include=python3,python3-venv,systemd"
    run(debootstrap, "--variant=minbase", packages, SUITE[0], root, timeout_s=600)
    for name in OF_THE_HOST:
        (root / name[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(name, root / name[1:])
    copy_tree(root)
    cache = run(sys.executable, "-m", "pip", "cache", "dir").stdout.strip()
    places = {"/dev": "dev", "/proc": "proc", cache: "root/.cache/pip"}
    (root / "root/.cache/pip").mkdir(parents=True)
    try:
        for source, place in places.items():
            if Path(source).exists():
                mount("--rbind", "--make-rslave", source, root / place)
        debian = Root(root)
        debian(f"{PIP}; /{TREE}/etc/debian/build.sh")
        yield debian
    finally:
        for place in places.values():
            run("umount", "--recursive", "--lazy", root / place, check=False)


def test_the_package_is_installed_upgraded_removed_and_purged(debian: Root) -> None:
    """With its units, for the Python of this Debian, and a Java runtime of its own."""
    install = f"dpkg -i /{TREE}/dist/cleanerd_*.deb"
    assert "systemctl enable --now cleanerd" in debian(install).stdout
    is_ready_to_start(debian)
    assert f"python3 (>= {SUITE[1]})" in debian("dpkg-query -W -f='${Depends}' cleanerd").stdout
    assert debian("systemctl is-enabled cleanerd.service || true").stdout == "disabled\n"
    assert debian("ls /usr/share/man/man1/cleanerctl.1.gz").stdout
    assert debian("grep -rlI /tmp/tmp /opt/cleanerd/bin || true").stdout == "", "where it was built"
    debian("mkdir -p /etc/kafka /srv/logs; echo log.dirs=/srv/logs >/etc/kafka/server.properties")
    checked = debian("cleanerd config check --config /etc/kafka/server.properties 2>&1").stdout
    assert "the configuration is valid" in checked
    assert "No key was lost" in debian("cleanerd demo").stdout

    debian("systemctl enable cleanerd.service; install -D /dev/null /var/lib/cleanerd/history.sqlite")
    debian(install)
    assert debian("systemctl is-enabled cleanerd.service").stdout == "enabled\n"
    debian("dpkg -r cleanerd")
    assert not debian.has("/usr/bin/cleanerd")
    assert not debian.has("/etc/systemd/system/multi-user.target.wants/cleanerd.service")
    assert debian.has("/var/lib/cleanerd/history.sqlite")
    debian("dpkg -P cleanerd")
    for name in ("/opt/cleanerd", "/var/lib/cleanerd", "/var/cache/cleanerd", UNIT):
        assert not debian.has(name), name


def test_each_layer_works_with_this_python(debian: Root) -> None:
    assert debian("python3 --version").stdout.startswith(f"Python {SUITE[1]}.")
    debian(f"{PIP}; dpkg -i /{TREE}/dist/cleanerd_*.deb; cd /{TREE}; {INSTALL}")
    said = debian(f"cd /{TREE}; /opt/cleanerd/bin/pytest -q -p no:cacheprovider {TESTS}").stdout
    assert " passed" in said.splitlines()[-1]
