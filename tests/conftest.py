"""Options that switch on the tests which need more than Python: a broker, long runs.

==========  =======================  ==========================================
marker      environment              without it
==========  =======================  ==========================================
`broker`    CLEANERD_TEST_BROKER=1   skipped; with it, missing Java is an error
`soak`      CLEANERD_TEST_SOAK=1     skipped
==========  =======================  ==========================================

Two more are about programs of the system (`tests.harness.programs`): with CLEANERD_TEST_OPERATE=1 a test whose program
is missing fails instead of being skipped, with CLEANERD_TEST_CONTAINER=1 the container image is built and run.

Property tests draw the same examples in every run; `--hypothesis-seed=N` draws others.
"""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

import cleanerd.kernels  # noqa: F401  # settles where compiled kernels are kept, before a test imports numba
from cleanerd.spark_runtime.lazy_spark import LazySpark
from tests.harness.spark.sessions import SESSION
from tests.rotation import header, rotate

# No deadline for an example: it would measure the load of the machine. Time is a matter of the measurements in tests/bench.
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")

ROOT = Path(__file__).parent
LONGEST = (
    "operate/test_container.py",
    "daemon/test_faults.py",
    "broker/test_releases.py",
    "operate/test_newer_python.py",
    "broker/test_roundtrip.py",
    "spark_runtime/test_lazy_spark.py",
)
"""With everything switched on, four to sixteen minutes each, the last one a minute in which nothing happens: begun at the
end, each would end alone.
"""

FILES_BETWEEN = 6
"""So many files, and one of three workers has got through the one with the cluster."""

SWITCHES = {
    "broker": "run the tests that start a real Kafka broker",
    "soak": "run the tests that take many seconds each",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """One option per switch: `--broker`, `--soak`."""
    for name, text in SWITCHES.items():
        parser.addoption(f"--{name}", action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """A script that starts us in the background has SIGINT ignored, and so would the processes of tests that send it one.

    Some hundred processes are started: what they import is compiled once, whatever the environment says. And files are run
    in our order: by itself xdist takes those with the most tests first.
    """
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def is_on(config: pytest.Config, name: str) -> bool:
    """Whether the option or the environment asks for this marker."""
    return bool(config.getoption(name)) or os.environ.get(f"CLEANERD_TEST_{name.upper()}") == "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what nobody asked for."""
    off = {name: pytest.mark.skip(reason=f"needs --{name}") for name in SWITCHES if not is_on(config, name)}
    for item in items:
        for name, skip in off.items():
            if item.get_closest_marker(name) is not None:
                item.add_marker(skip)
    rotate(config, items)
    items[:] = sorted(spread_clusters(items), key=lambda item: rank(item.path))


def pytest_report_header() -> Sequence[str]:
    """Which part of the long tests is run (`tests.rotation`)."""
    return header()


@cache
def rank(file: Path) -> int:
    """When a file is run: the longest first, and last those that end the shared session. Its next use takes four seconds of
    a core to start another.
    """
    name = file.relative_to(ROOT).as_posix()
    if name in LONGEST:
        return LONGEST.index(name)
    return len(LONGEST) + ("spark.stop()" in file.read_text())


def spread_clusters(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The items in their order, but files whose tests need a cluster of brokers apart from each other: workers take one file
    after the other, and several clusters at a time are more than a small machine has cores for.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    need = [path for path, own in files.items() if any("cluster" in _fixtures(item) for item in own)]
    order = [path for path in files if path not in need]
    for number, path in enumerate(need):
        order.insert(number * FILES_BETWEEN, path)
    return [item for path in order for item in files[path]]


def _fixtures(item: pytest.Item) -> Sequence[str]:
    return getattr(item, "fixturenames", ())


@pytest.fixture(scope="session")
def spark() -> Iterator[LazySpark]:
    """What all tests of a run share."""
    yield SESSION
    SESSION.stop()
