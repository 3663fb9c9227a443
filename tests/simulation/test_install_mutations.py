"""The judge finds what is there to find about installs: the product is broken on purpose, and the judge says which promise.

As `test_mutations`, in worlds that all are in a cluster.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cleanerd.daemon.work.installs import Installs
from cleanerd.install import driver, machine, prepare
from cleanerd.install.area import Area
from cleanerd.install.machine import advance
from cleanerd.install.values import Install, Observation, PlaceContent, Step
from tests.simulation import stage
from tests.simulation import world as worlds
from tests.simulation.test_mutations import found
from tests.simulation.world import World

pytestmark = pytest.mark.soak
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _all_in_clusters(monkeypatch: Patch) -> None:
    monkeypatch.setattr(stage, "KAFKA_SHARE", 1.0)
    monkeypatch.setattr(worlds, "CLUSTER_SHARE", 1.0)


def test_it_finds_a_driver_that_forgets_to_put_the_replica_back(monkeypatch: Patch) -> None:
    def careless(install: Install, *seen: Any) -> Install | None:
        after = advance(install, *seen)
        return machine._clear(after, 0) if after is not None and after.step is Step.ADDING else after

    monkeypatch.setattr(driver, "advance", careless)
    found("the replicas of .* must be")


def test_it_finds_another_list_than_the_old_one(monkeypatch: Patch) -> None:
    """Its order is who is preferred to lead."""
    real = driver.offer

    def offer(*what: Any) -> Any:
        made = real(*what)
        return replace(made, install=replace(made.install, replicas=made.install.replicas[::-1]))

    def why_not(install: Install, seen: Observation, *more: Any) -> str | None:
        return machine.why_not(replace(install, replicas=seen.cluster.replicas), seen, *more)

    monkeypatch.setattr("cleanerd.daemon.work.installs.offer", offer)
    monkeypatch.setattr(driver, "why_not", why_not)
    found("the replicas of .* must be|waits for ever")


def test_it_finds_a_journal_that_is_not_synced() -> None:
    """A power cut leaves none, or half of one: nobody puts the replica back."""

    def forget(world: World) -> None:
        world.disk.forgets_fsync = lambda path: ".cleanerd-install-" in path

    words = "the replicas of .* must be|waits for ever|claim was not given back|has left|the journal of an install"
    found(words, forget)


def _with(monkeypatch: Patch, change: Callable[[Any], object]) -> None:
    """Every prepared directory is another one."""
    real = prepare.plan

    def plan(*what: Any) -> Any:
        made = real(*what)
        change(made)
        return made

    monkeypatch.setattr(driver, "plan", plan)


def test_it_finds_a_prepared_directory_without_a_segment(monkeypatch: Patch) -> None:
    _with(monkeypatch, lambda made: made.segments.pop(sorted(made.segments)[len(made.segments) // 2]))
    found("is lost|must be|the last batch of producer|is gone")


def test_it_finds_a_prepared_directory_without_its_last_segment(monkeypatch: Patch) -> None:
    _with(monkeypatch, lambda made: made.segments.pop(max(made.segments)))
    found("was prepared up to .*, must be|is lost|the last batch of producer")


def test_it_finds_an_install_while_others_are_behind(monkeypatch: Patch) -> None:
    monkeypatch.setattr(driver, "why_not", lambda *_: None)
    found("in sync")


def test_it_finds_two_installs_at_a_time(monkeypatch: Patch) -> None:
    monkeypatch.setattr(driver, "take_claim", lambda *_: None)
    found("a replica is taken out, and the claim is")


def test_it_finds_a_claim_that_is_kept(monkeypatch: Patch) -> None:
    monkeypatch.setattr(driver, "free_claim", lambda *_: None)
    found("the claim was not given back")


def test_it_finds_a_directory_that_is_taken_from_under_a_broker(monkeypatch: Patch) -> None:
    """As soon as it has it."""
    real = driver.Driver.step

    def step(self: driver.Driver) -> Install | None:
        if self.install.step is Step.ADDING and self.area.place(self.install) is PlaceContent.OURS:
            self.area.take_away(self.install)
        return real(self)

    monkeypatch.setattr(driver.Driver, "step", step)
    found("beside a live broker")


def test_it_finds_a_stop_that_forgets_an_install(monkeypatch: Patch) -> None:
    """Neither brought to its end nor left for the next process."""

    def close(installs: Installs, _: float) -> None:
        if installs._driver is not None:
            installs._driver.area.journal.remove()

    monkeypatch.setattr(Installs, "close", close)
    found("the replicas of .* must be|waits for ever|claim was not given back|has left")


def test_it_finds_what_an_install_leaves(monkeypatch: Patch) -> None:
    """As one that is killed when its journal is gone, and what it leaves is not looked for."""
    real_clear, real_rmtree = Area.clear, shutil.rmtree

    def clear(area: Area, install: Install, **more: Any) -> None:
        def rmtree(path: str, **how: Any) -> None:
            if path != area.path:
                real_rmtree(path, **how)

        with monkeypatch.context() as patch:
            patch.setattr(shutil, "rmtree", rmtree)
            real_clear(area, install, **more)

    monkeypatch.setattr(Area, "clear", clear)
    monkeypatch.setattr(Area, "sweep", lambda _: None)
    found("waits for ever|has left")


def test_it_finds_a_mark_that_is_left(monkeypatch: Patch) -> None:
    real = Area.clear

    def clear(area: Area, install: Install, **more: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Area, "place", lambda *_: PlaceContent.OTHER)
            real(area, install, **more)

    monkeypatch.setattr(Area, "clear", clear)
    found("has left")
