"""The judge finds what is there to find about several log directories: the product is broken on purpose, and the judge names
the promise.

As `test_mutations`, in worlds that all have two or three.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from cleanerd.daemon.inventory.inventory import Inventory
from cleanerd.daemon.loops.scanner import Scanner
from cleanerd.daemon.work.ownership import Ownership
from cleanerd.errors import DirOffline
from cleanerd.format import names
from cleanerd.storage import log_dir as log_dir_module
from cleanerd.storage.checkpoints import read_offsets, update_cleaner_checkpoint
from cleanerd.storage.log_dir import LogDir
from tests.simulation import moving, stage
from tests.simulation.test_mutations import found

pytestmark = pytest.mark.soak
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _all_with_several(monkeypatch: Patch) -> None:
    monkeypatch.setattr(stage, "LOG_DIRS", (2, 2, 3))


@pytest.fixture
def brokers(monkeypatch: Patch) -> None:
    """All belong to a broker, which moves its replicas."""
    monkeypatch.setattr(stage, "KAFKA_SHARE", 1.0)


@pytest.mark.trap("checkpoint entries of another directory")
def test_it_finds_a_checkpoint_with_entries_of_all_directories(monkeypatch: Patch) -> None:
    def update(files: Any, log_dir: str, offsets: Mapping[Any, Any], *, is_live: bool = False) -> None:
        disk = os.path.dirname(os.path.dirname(log_dir))
        everywhere = (f"{disk}/{name}/logs/{names.CLEANER_OFFSET_CHECKPOINT}" for name in os.listdir(disk))
        entries = [entry for path in everywhere for entry in read_offsets(files, path).items()]
        update_cleaner_checkpoint(files, log_dir, {**dict(entries), **offsets}, is_live=is_live)

    monkeypatch.setattr(log_dir_module, "update_cleaner_checkpoint", update)
    found("gets an entry of .*, which is not there")


def test_it_finds_a_second_entry(brokers: None, monkeypatch: Patch) -> None:
    """Of a replica that a broker without a cleaner has moved."""
    monkeypatch.setattr(moving, "CLEANER_SHARE", 0.0)
    monkeypatch.setattr(LogDir, "siblings", lambda _, **__: iter(()))
    found("gets an entry of .* has one")


def test_it_finds_a_scan_that_ends_at_a_directory_that_fails(monkeypatch: Patch) -> None:
    """As of a daemon whose thread dies of it."""
    real = Ownership.take

    def take(self: Ownership, log_dirs: Sequence[str]) -> dict[str, str]:
        for reason in real(self, log_dirs).values():
            raise DirOffline(reason)
        return {}

    monkeypatch.setattr(Ownership, "take", take)
    found("DirOffline")


def test_it_finds_a_daemon_that_waits_until_all_directories_work(monkeypatch: Patch) -> None:
    real = Scanner._online
    monkeypatch.setattr(Scanner, "_online", lambda self: [] if self._obstacles.offline else real(self))
    found("something waits for ever", first=5)


def test_it_finds_a_directory_that_keeps_others_from_being_recorded(monkeypatch: Patch) -> None:
    real = LogDir.siblings

    def careless(self: LogDir, **how: bool) -> Iterator[LogDir]:
        for path in self.log_dirs:
            replace(self, path=path)._broker()
        return real(self, **how)

    monkeypatch.setattr(LogDir, "siblings", careless)
    found("something waits for ever", first=3)


def test_it_finds_a_directory_that_is_not_recovered_when_it_is_back(monkeypatch: Patch) -> None:
    """What retention took there, and an earlier daemon has not yet deleted, lies there for ever. A commit that was
    interrupted does not: the committer has a directory recovered, too, where something is staged.
    """
    real = Scanner.scan

    def scan(self: Scanner) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Ownership, "recover", lambda *_: True)
            real(self)

    monkeypatch.setattr(Scanner, "scan", scan)
    found("something waits for ever", first=19)


def test_it_finds_a_log_that_is_cleaned_while_its_broker_moves_it(brokers: None, monkeypatch: Patch) -> None:
    """Rule 2.10."""
    monkeypatch.setattr(LogDir, "elsewhere", lambda *_: {})
    monkeypatch.setattr(Inventory, "moving_to", lambda *_: None)
    found(
        "came back|the delete horizon of the batch|tombstone|marker|the last batch of producer|is lost",
        first=36,
    )
