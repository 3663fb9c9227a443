"""kill -9 as often as one likes: `python -m tests.kills [--count N]`.

A process of real files is killed, before one of its operations or at a random moment; then others take over, which are
killed as well now and then. Each protocol says what must be there afterwards. Where memory can hold files, they lie there:
what a kill leaves does not depend on the disk (what a power cut leaves does: `tests/sim`).
"""

import argparse
import functools
import itertools
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from cleanerd.cleaning.delete_records import delete_records
from cleanerd.cleaning.retain import retain_log
from cleanerd.config.load import resolve
from cleanerd.config.model import TopicConfig
from cleanerd.config.sources import read_sources
from cleanerd.env.clock import FixedNow
from cleanerd.env.files import Files
from cleanerd.errors import CleanerdError
from cleanerd.storage.checkpoints import read_checkpoints
from cleanerd.storage.log_dir import LogDir
from cleanerd.tools.client.writer import LogWriter, WriterOptions
from tests import kill_protocols
from tests.kill_protocols import SEGMENT_BYTES, Protocol, Records, records
from tests.storage import kill9_child
from tests.storage.kill9_child import FILES, TP, Suicidal, write_log
from tests.storage.test_kill9 import REPAIRS, Truth, killed, recovers_alone

CUT = 60
"""Offset of the truncations, and of the deletions of records: inside of a segment."""
NOW_MS, RETENTION_MS = 330, 250
RANDOM_SHARE = 0.2


def _truncate(log_dir: str, files: Files) -> None:
    options = WriterOptions(files=files)
    with LogWriter(log_dir, TP.topic, TP.partition, segment_bytes=SEGMENT_BYTES, options=options) as writer:
        writer.truncate(CUT)


def _reopen(log_dir: Path, before: Records) -> None:
    """Nothing below the cut has changed, and what is left above it is a piece of what was there."""
    with LogWriter(str(log_dir), TP.topic, TP.partition, segment_bytes=SEGMENT_BYTES) as writer:
        end = writer.log_end_offset
    found = records(log_dir)
    assert {n: r for n, r in before.items() if n < CUT} == {n: r for n, r in found.items() if n < CUT}
    assert found == {n: r for n, r in before.items() if n < end}


@functools.cache
def _topic() -> TopicConfig:
    sets = [(TP.topic, "cleanup.policy", "delete"), (TP.topic, "retention.ms", str(RETENTION_MS))]
    return resolve(read_sources(topic_assignments=sets)).topic(TP.topic)


def _retain(log_dir: str, files: Files) -> None:
    done = retain_log(
        LogDir.at(files, log_dir, FixedNow(NOW_MS)), TP, read_checkpoints(FILES, log_dir), _topic(), dry_run=False
    )  # fmt: skip
    assert not isinstance(done, CleanerdError), done


def _is_an_end(log_dir: Path, before: Records) -> None:
    """Whole segments are gone at the beginning, none that was young."""
    recovers_alone(log_dir)
    found = records(log_dir)
    assert found == {n: r for n, r in before.items() if n >= min(found)}
    assert min(found) <= 112, "the segments from there on hold younger records"


def _delete_records(log_dir: str, files: Files) -> None:
    log_dir_now = LogDir.at(files, log_dir, FixedNow(NOW_MS))
    assert delete_records(log_dir_now, TP, CUT, _topic()).log_start_offset == CUT


def _is_there_from_the_cut_on(log_dir: Path, before: Records) -> None:
    """The log start is the old or the new one; what is gone lies below it."""
    recovers_alone(log_dir)
    start, found = read_checkpoints(FILES, str(log_dir)).log_start.get(TP, 0), records(log_dir)
    assert start in (0, CUT)
    assert found == {n: r for n, r in before.items() if n >= min(found)}
    assert min(found) <= start


def _recovers(log_dir: Path, _: Records) -> None:
    recovers_alone(log_dir)


PROTOCOLS = {
    "truncation": Protocol(_truncate, _reopen),
    "retention": Protocol(_retain, _is_an_end),
    "deletion of records": Protocol(_delete_records, _is_there_from_the_cut_on),
    "recovery": Protocol(
        kill_protocols.recover_log, _recovers, kill_protocols.begin_commit, is_cleaning=True
    ),
    **kill_protocols.MORE,
}


def _run(name: str, log_dir: str, operations: int, pipe: Connection) -> None:
    files = Suicidal(operations)
    pipe.send("begins")
    PROTOCOLS[name].run(log_dir, files)
    pipe.send(files.done)


class Place:
    """Copies of a log, one after the other."""

    def __init__(self, root: Path) -> None:
        self._original, self._copy = root / "original", root / "copy"
        self._original.mkdir()
        write_log(self._original, seed=7)
        self.truth, self.before = Truth(self._original), records(self._original)

    def fresh(self) -> Path:
        """A copy; the last one is gone."""
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self._original, self._copy)
        return self._copy


def _measured(
    target: Callable[..., None], place: Place, prepare: Callable[[Path, int], None] = lambda *_: None
) -> tuple[int, float]:
    """Operations, and seconds of the fastest of some runs: others may be busy on this machine."""
    took_s, operations = [], 0
    for turn in range(5):
        log_dir = place.fresh()
        prepare(log_dir, turn)
        began_s = time.monotonic()
        operations = killed(target, log_dir, -1) or 0
        took_s.append(time.monotonic() - began_s)
    assert operations
    return operations, min(took_s)


def _moments(operations: int, duration_s: float, chance: random.Random) -> Iterator[tuple[int, float | None]]:
    """Before each operation in turn, and in between at a random moment."""
    for operation in itertools.cycle(range(operations)):
        if chance.random() < RANDOM_SHARE:
            yield -1, chance.random() * duration_s
        yield operation, None


def kill_commits(place: Place, count: int) -> int:
    """Kill commits of a whole cleaning, and recoveries; how many died."""
    chance, repairs, kills = random.Random(count), itertools.cycle(REPAIRS), 0
    for own, delay_s in _moments(*_measured(kill9_child.run, place), chance):
        log_dir = place.fresh()
        kills += killed(kill9_child.run, log_dir, own, delay_s) is None
        for repair in next(repairs):
            repair(log_dir)
        place.truth.check(log_dir)
        if kills >= count:
            return kills
    raise AssertionError


def kill(name: str, place: Place, count: int) -> int:
    """Kill one of the other protocols; how often it died."""
    chance, kills, target = random.Random(name), 0, functools.partial(_run, name)
    protocol = PROTOCOLS[name]
    moments = _moments(*_measured(target, place, protocol.prepare), chance)
    for turn, (own, delay_s) in enumerate(moments):
        log_dir = place.fresh()
        protocol.prepare(log_dir, turn)
        kills += killed(target, log_dir, own, delay_s) is None
        protocol.check(log_dir, place.before)
        if protocol.is_cleaning:
            place.truth.check(log_dir)
        if chance.random() < 0.1:
            protocol.run(str(log_dir), FILES)  # it can be done again
        if kills >= count:
            return kills
    raise AssertionError


def main() -> int:
    """Kill until there were enough; the first thing that is wrong ends it."""
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="kills in all (default: %(default)s)")
    parser.add_argument("--only", choices=PROTOCOLS, help="one protocol instead of all")
    options = parser.parse_args()
    names = [options.only] if options.only else list(PROTOCOLS)
    count = -(-options.count // (len(names) + (not options.only)))
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    kills: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(dir=memory, prefix="cleanerd-kills-") as root:
        place = Place(Path(root))
        for name in names:
            kills[name] = kill(name, place, count)
            print(f"{name}: {kills[name]}", flush=True)
        if not options.only:
            kills["staging and commit"] = kill_commits(place, count)
    print(f"{kills.total()} kills: {dict(kills)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
