"""Which logs get a retention pass, and in which state they are meanwhile (rules 1.28-1.31; C034-C036, C140).

C037 (an uncleanable log gets none) is for whoever names the logs of a pass: the pass does not know of trouble.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest

from cleanerd.cleaning.retain import Retained
from cleanerd.config.load import Configuration, resolve
from cleanerd.config.sources import read_sources
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.deletions import PendingDeletions
from cleanerd.daemon.work.retention import Retention
from cleanerd.daemon.work.states import PartitionStates
from cleanerd.env.clock import FixedNow
from cleanerd.env.files import RealFiles
from cleanerd.errors import SourceChanged
from cleanerd.format import names
from cleanerd.storage.generation import begin_truncation, read_generation
from tests.cleaning.logs import lock_of_another, segment
from tests.cleaning.retained import NOW_MS, TP, bases, stop_broker, write_log

CLOCK = FixedNow(NOW_MS)


class Passes:
    """A daemon as far as retention is concerned; it remembers what became of the log."""

    def __init__(self, log_dir: Path, policy: str, broker: Mapping[str, str] | None = None) -> None:
        self.log = LogId(str(log_dir), TP)
        self.states = PartitionStates(CLOCK)
        self.pending = PendingDeletions(RealFiles(), CLOCK)
        self.outcomes: list[tuple[Retained | None, str | None]] = []
        self.busy: list[bool] = []  # whether nobody could have taken the log when it lost segments
        self.configuration = configured(policy, broker or {})
        self.retention = Retention(
            states=self.states,
            files=RealFiles(),
            clock=CLOCK,
            configuration=lambda: self.configuration,
            dispose=self._dispose,
            done=lambda _, retained, reason: self.outcomes.append((retained, reason)),
        )

    def _dispose(self, paths: tuple[str, ...], due_ms: int) -> None:
        self.busy.append(not self.states.try_start(self.log))
        self.pending.add(paths, due_ms)

    def run(self) -> int:
        """How many segments went."""
        self.outcomes.clear()
        self.retention.run([self.log])
        return sum(retained.segments for retained, _ in self.outcomes if retained is not None)

    def is_free(self) -> bool:
        if not self.states.try_start(self.log):
            return False
        self.states.done_cleaning(self.log)
        return True


def configured(policy: str, broker: Mapping[str, str]) -> Configuration:
    topic = {"cleanup.policy": policy, "retention.ms": "1000", "file.delete.delay.ms": "500"}
    return resolve(read_sources(None, broker.items(), [("t", key, value) for key, value in topic.items()]))


@pytest.mark.parametrize(("policy", "segments"), [("delete", 2), ("compact,delete", 2), ("compact", 0)])
def test_c034_c035_c036_every_policy_gets_its_pass_and_nobody_works_on_the_log_meanwhile(
    tmp_path: Path, policy: str, segments: int
) -> None:
    write_log(tmp_path)
    passes = Passes(tmp_path, policy)
    assert passes.run() == segments
    assert bases(tmp_path) == [0, 5, 10][segments:]
    assert all(passes.busy)
    assert passes.is_free(), "released afterwards"
    assert passes.pending.next_due_ms == (NOW_MS + 500 if segments else None)


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_1_28_1_30_a_log_that_somebody_works_on_is_left_out(tmp_path: Path, policy: str) -> None:
    write_log(tmp_path)
    passes = Passes(tmp_path, policy)
    assert passes.states.try_start(passes.log)
    assert passes.run() == 0
    passes.states.done_cleaning(passes.log)
    assert passes.run() == 2


@pytest.mark.parametrize(("policy", "segments"), [("delete", 2), ("compact,delete", 0), ("compact", 0)])
def test_c140_1_31_without_a_cleaner_compacted_logs_get_no_retention(
    tmp_path: Path, policy: str, segments: int
) -> None:
    """What is left then is Kafka's scheduler, which never touches them."""
    write_log(tmp_path)
    assert Passes(tmp_path, policy, {"log.cleaner.enable": "false"}).run() == segments


def test_1_30_released_also_after_a_failure(tmp_path: Path) -> None:
    directory = write_log(tmp_path)
    (directory / names.LEADER_EPOCH_CHECKPOINT).write_bytes(b"damaged")
    for policy in ("delete", "compact,delete"):
        passes = Passes(tmp_path, policy)
        assert passes.run() == 0
        [(retained, reason)] = passes.outcomes
        assert retained is None
        assert reason is not None
        assert names.LEADER_EPOCH_CHECKPOINT in reason
        assert passes.is_free()


def test_a_truncation_whose_writer_died_counts_as_ended(tmp_path: Path) -> None:
    """While the writer lives it holds `.lock`, and the log is left alone."""
    directory = write_log(tmp_path)
    files = RealFiles()
    begin_truncation(files, str(directory), "token", like=str(segment(directory, 0)))
    passes = Passes(tmp_path, "delete")
    with lock_of_another(tmp_path / names.LOCK):
        assert passes.run() == 0
    with pytest.raises(SourceChanged):
        read_generation(files, str(directory))
    assert passes.run() == 2
    assert read_generation(files, str(directory)) == "token"


def test_the_logs_of_a_live_broker_are_its_own(tmp_path: Path) -> None:
    write_log(tmp_path)
    stop_broker(tmp_path, 15)
    passes = Passes(tmp_path, "delete")
    with lock_of_another(tmp_path / names.LOCK):
        assert passes.run() == 0
    assert passes.outcomes == []
    assert passes.run() == 3
