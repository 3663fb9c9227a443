"""The judge finds what it is there to find: for each promise the product is broken on purpose, and the judge names it.

Each mutation is found within the given number of seeds; the words are those of the promise.
"""

import os
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cleanerd.cleaning import choose, plan, rounds
from cleanerd.cleaning.plan import plan_cleaning
from cleanerd.daemon.rules.log_states import LogStates
from cleanerd.daemon.work.schedule import Next, Schedule
from cleanerd.kernels.tables import Producers
from cleanerd.pipeline import index, job, rewrite, small_log, tasks, whole_log
from cleanerd.storage.stability import read_stability
from cleanerd.storage.staged import unlink_staged
from cleanerd.tools.client import reader
from tests.simulation.disk import REAL
from tests.simulation.play import play
from tests.simulation.rules import Violation
from tests.simulation.world import World

pytestmark = pytest.mark.soak
SEEDS = 120
Patch = pytest.MonkeyPatch


def found(words: str, change: Callable[[World], object] = lambda _: None, *, first: int = 0) -> None:
    """A mutation of the code shows in one of the seeds, in these words. `first`: it was found there once, so begin there."""
    for seed in (*range(first, SEEDS), *range(first)):
        try:
            play(seed, 150, change)
        except Violation as violation:
            problem = str(violation).splitlines()[-1]
            print(f"seed {seed}: {problem}")
            assert re.search(words, problem)
            return
    pytest.fail(f"not found in {SEEDS} seeds")


@pytest.mark.parametrize("ending", [".log.cleanerd", ".txnindex", "-0"])
def test_it_finds_a_forgotten_sync(ending: str) -> None:
    """Of a staged segment, of a transaction index, of the directory of a log."""

    def forget(world: World) -> None:
        world.disk.forgets_fsync = lambda path: path.endswith(ending)

    found("", forget)


def _plans(monkeypatch: Patch, **changed: Callable[[Any, Any], object]) -> None:
    """Every plan is another one: fields of its work from (work, configuration of the topic)."""

    def plan(files: Any, candidate: Any, **options: Any) -> Any:
        made = plan_cleaning(files, candidate, **options)
        fields = {name: value(made.work, candidate.config) for name, value in changed.items()}
        return replace(made, work=replace(made.work, **fields))

    monkeypatch.setattr("cleanerd.cleaning.clean.plan_cleaning", plan)


def test_it_finds_a_horizon_that_is_too_early(monkeypatch: Patch) -> None:
    """Rule 4.27: now + delete.retention.ms, and a quarter of that is not enough."""

    def too_early(now_ms: int, topic: Any, *, waits: bool) -> int:
        return plan.new_horizon_ms(now_ms, topic, waits=waits) - topic.delete_retention_ms * 3 // 4

    monkeypatch.setattr(rounds, "new_horizon_ms", too_early)
    found("the delete horizon of the batch at .* must be")


def test_it_finds_what_goes_before_its_horizon(monkeypatch: Patch) -> None:
    """Rules 4.15 and 4.19, with a clock that is a quarter of an hour fast."""
    _plans(monkeypatch, expired_ms=lambda work, _: work.expired_ms + 900_000)
    found("(tombstone|marker) .* before its delete horizon", first=20)


def test_it_finds_markers_that_go_before_their_data(monkeypatch: Patch) -> None:
    """Rule 4.21: while a record of a committed transaction is there, so is its marker."""
    real = index.log_context
    for module in (job, small_log):
        monkeypatch.setattr(module, "log_context", lambda log, _: real(log, range(1 << 12)))
    found("the marker at .* is gone, of its data .* is there", first=5)


def test_it_finds_a_record_that_is_lost(monkeypatch: Patch) -> None:
    """Rule 4.19: as two keys with one fingerprint would."""
    real = index.resolve

    def resolve(blocks: Any) -> Any:
        bits, table = real(blocks)
        for one in bits:
            one[: len(one) // 8] = True
        return bits, table

    for module in (index, tasks):
        monkeypatch.setattr(module, "resolve", resolve)
    found("is lost|tombstone .* before its delete horizon")  # whichever is among the first


def _rewrites_committed(world: World, content: Callable[[bytes], bytes]) -> None:
    """A segment becomes something else just before it gets its name: cleanerd itself has verified it by then."""
    real = world.disk.before

    def before(operation: str, path: str) -> None:
        real(operation, path)
        source = path.partition(" -> ")[0]
        if operation == "rename" and source.endswith(".log.swap"):
            stat = os.stat(source)
            with open(REAL.open(source, os.O_RDWR), "r+b") as file:
                changed = content(file.read())
                file.seek(0)
                file.write(changed)
            REAL.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    world.disk.before = before


def test_it_finds_offsets_that_move() -> None:
    """No checksum is over the base offset of a batch."""

    def move(content: bytes) -> bytes:
        return content and (int.from_bytes(content[:8], "big") + 1).to_bytes(8, "big") + content[8:]

    found("offsets .* after|lies .* written was|is gone", lambda world: _rewrites_committed(world, move))


def test_it_finds_batches_out_of_order() -> None:
    """Two neighbours of one size exchanged."""

    def exchange(content: bytes) -> bytes:
        size = 12 + int.from_bytes(content[8:12], "big") if content else 0
        one, other, rest = content[:size], content[size : 2 * size], content[2 * size :]
        is_alike = len(other) == size and other[8:12] == one[8:12]
        return other + one + rest if is_alike else content

    found("offsets .* after", lambda world: _rewrites_committed(world, exchange))


def test_it_finds_lost_state_of_producers(monkeypatch: Patch) -> None:
    """Rule 4.17."""
    none = Producers(*(np.zeros(0, np.int64) for _ in range(3)))
    _plans(monkeypatch, producers=lambda *_: none)
    found("the last batch of producer .*")


def test_it_finds_a_cleaner_that_knows_no_aborted_transactions(monkeypatch: Patch) -> None:
    """Their records supersede what was committed. Nor does it notice that their transactions end with ABORT."""
    monkeypatch.setattr(whole_log, "unlisted_abort", lambda *_: None)
    for module in (index, rewrite):
        monkeypatch.setattr(
            module, "mark_aborted", lambda batches, *_: np.zeros(len(getattr(batches, "rows", batches)), bool)
        )
    found("is lost|was aborted|tombstone .* before its delete horizon|the marker at .* is gone, of its data")


def test_it_finds_a_reader_that_sees_aborted_records(monkeypatch: Patch) -> None:
    monkeypatch.setattr(reader, "_read_aborted", lambda _: {})
    found("a reader of committed records gets")


def test_it_finds_a_cleaner_that_knows_no_open_transactions(monkeypatch: Patch) -> None:
    def careless(files: Any, snapshot: Any, **options: Any) -> Any:
        stability = read_stability(files, snapshot, **options)
        return replace(stability, last_stable_offset=snapshot.high_watermark)

    monkeypatch.setattr(choose, "read_stability", careless)
    found("the bound is|is lost")  # between two rounds the loss shows before the bound is asked for


def test_it_finds_a_recovery_that_leaves_half(monkeypatch: Patch) -> None:
    """The second one then finds something to do."""
    first = lambda partition, names: unlink_staged(partition, names[:1])  # noqa: E731
    monkeypatch.setattr("cleanerd.storage.recover.unlink_staged", first)
    found("a second recovery changed", first=23)


def test_it_finds_a_hold_that_is_not_obeyed(monkeypatch: Patch) -> None:
    monkeypatch.setattr(LogStates, "held", lambda *_: 0)
    found("under hold", first=14)


def test_it_finds_what_waits_for_ever(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Schedule, "next", lambda _: Next(None))
    found("something waits for ever")
