"""One install at a time in the cluster, and the journal that brings it to its end."""

import json
import random
from collections.abc import Generator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleanerd.env.files import RealFiles
from cleanerd.errors import CorruptFile
from cleanerd.install.cluster import Claimed, free_claim, take_claim
from cleanerd.install.journal import Journal
from cleanerd.install.values import Install, Outcome, Step
from tests.install.world import Clock, World, fresh_install
from tests.sim.disk import SimDisk, SwitchedOff


class _Turns:
    """The register of all, for one of them: every call takes time, in which others may have their turns."""

    def __init__(self, world: World, others: "list[Generator[None]]", rng: random.Random) -> None:
        self._world, self._others, self._rng = world, others, rng

    def _wait(self) -> None:
        self._world.clock.ms += self._rng.choice([5, 50, 700, 1700])
        if self._others and self._rng.randrange(2):
            next(self._others.pop(), None)

    def read_claim(self) -> str:
        self._wait()
        return self._world.claim

    def write_claim(self, text: str) -> None:
        self._wait()
        self._world.claim = text
        self._wait()


@settings(max_examples=300)
@given(st.integers(0, 2**32))
def test_two_never_have_the_claim_at_a_time(seed: int) -> None:
    """The second goes through all of its steps somewhere within those of the first."""
    rng, world, winners = random.Random(seed), World(is_calm=True), list[str]()

    def claim(name: str, others: "list[Generator[None]]") -> None:
        install = replace(fresh_install(), id=name)

        def pause(seconds: float) -> None:
            world.clock.ms += round(1000 * seconds)
            if others:
                next(others.pop(), None)

        try:
            take_claim(_Turns(world, others, rng), install, world.clock, pause)  # type: ignore[arg-type]
            winners.append(name)
        except Claimed:
            pass

    def second() -> Generator[None]:
        claim("b", [])
        yield

    claim("a", [second()])
    assert len(winners) <= 1


def test_a_claim_is_kept_by_its_install_and_freed_by_no_other() -> None:
    world, install = World(is_calm=True), fresh_install()
    other = replace(install, id="other")

    def pause(seconds: float) -> None:
        world.clock.ms += round(1000 * seconds)

    take_claim(world, install, world.clock, pause)
    take_claim(world, install, world.clock, pause)  # after a restart
    with pytest.raises(Claimed, match="another install is under way"):
        take_claim(world, other, world.clock, pause)
    free_claim(world, other)
    assert world.claim
    free_claim(world, install)
    assert world.claim == ""


def test_a_claim_after_a_pause_that_was_none_is_given_back() -> None:
    """As when the daemon stops meanwhile."""
    world = World(is_calm=True)
    with pytest.raises(Claimed, match="paused for"):
        take_claim(world, fresh_install(), Clock(), lambda _: None)
    assert world.claim == ""


def test_the_journal_is_the_old_or_the_new_one_whenever_the_power_fails() -> None:
    first = fresh_install()
    second = first.to(Step.ADDING, 7, is_moved=True, reason="so", outcome=Outcome.RETURNED)
    for operations in range(7):
        disk = SimDisk()
        disk.mkdir("/area")
        journal = Journal(disk, "/area/journal")
        journal.write(first)
        disk.restart()
        disk.stop_after = operations
        try:
            journal.write(second)
            wanted: tuple[Install | None, ...] = (second,)
        except SwitchedOff:
            wanted = (first, second)
        for kept in disk.power_cuts("/area"):
            after = disk.copy()
            after.power_cut("/area", kept)
            assert Journal(after, "/area/journal").read() in wanted


def test_a_damaged_journal_is_an_error_that_names_it(tmp_path) -> None:  # type: ignore[no-untyped-def]
    journal = Journal(RealFiles(), str(tmp_path / "journal"))
    assert journal.read() is None
    no_number = json.dumps({"version": 1, "install": {**fresh_install().fields(), "partition": "zero"}})
    endless = json.dumps({"version": 1, "install": {**fresh_install().fields(), "began_ms": float("inf")}})
    few = ("", "{}", '{"version": 9}', '{"version": 1, "install": {"id": 1}}', "[]", "[" * 100_000)
    for content in (*few, no_number, endless):
        (tmp_path / "journal").write_text(content)
        with pytest.raises(CorruptFile, match="journal of an install"):
            journal.read()
    journal.remove()
    assert journal.read() is None
