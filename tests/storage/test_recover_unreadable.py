"""A commit that was begun and whose manifest cannot be read, in a directory that no broker will bring into order.

Every state in which a commit can be killed, its manifest replaced by garbage: the log ends as the old or the new one, or
nothing is touched.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cleanerd.env.files import RealFiles
from cleanerd.errors import CorruptFile
from cleanerd.format.batch import Record, encode_batch
from cleanerd.format.codecs import Codec
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.recover import recover, sound_end
from cleanerd.storage.staged import manifest_names
from cleanerd.tools.client.producer import Producer, ProducerRecord
from cleanerd.tools.client.writer import LogWriter
from tests.harness.disks.committing import check_refused, commit_all, recover_here
from tests.harness.disks.crashes import Action, at, distinct, killed, names, switched_off, with_survivors
from tests.harness.disks.simulated import SimDisk
from tests.harness.logs.model import (
    BY_NAME,
    DIRECTORY,
    SCENARIOS,
    Scenario,
    live_segments,
    read_committed,
    staged_disk,
)

THREE = BY_NAME["three sources"]
FILLED = [scenario for scenario in SCENARIOS if all(r.new.records for r in scenario.rewrites)]
EMPTY = [scenario for scenario in SCENARIOS if not scenario.rewrites[0].new.records]


def begun(scenario: Scenario) -> Iterator[SimDisk]:
    """Every state that a killed commit leaves, with all manifests damaged."""
    for copy in killed(staged_disk(scenario)[0], commit_all):
        for name in manifest_names(PartitionDir(copy, DIRECTORY)):
            copy.put(at(str(name)), b"garbage")
        copy.restart()
        yield copy


def outcome(scenario: Scenario, disk: SimDisk) -> str:
    """Check that the log is old, new, or new with sources that hold nothing any more."""
    found = live_segments(disk)
    assert read_committed(found) == read_committed(scenario.after(0))
    assert names(disk, ".cleaned", ".swap", ".deleted", ".cleanerd") == []
    for commits in range(len(scenario.rewrites) + 1):
        if found == scenario.after(commits) or (commits and found in with_survivors(scenario, commits)):
            return f"{commits} new"
    raise AssertionError(f"neither old nor new: {found}")


@pytest.mark.parametrize("scenario", FILLED, ids=str)
def test_begun_commit_without_manifest_ends_as_the_old_or_the_new_log(scenario: Scenario) -> None:
    """Past the commit point it is the new one, as without the damage."""
    outcomes = set()
    for disk in distinct(begun(scenario)):
        is_past = bool(names(disk, ".log.swap"))
        assert recover_here(disk) is None
        ended = outcome(scenario, disk)
        assert not is_past or ended != "0 new"
        outcomes.add(ended)
    assert outcomes == {f"{n} new" for n in range(len(scenario.rewrites) + 1)}


@pytest.mark.parametrize(
    "scenario", [THREE, BY_NAME["short output: last batch below later sources"]], ids=str
)
def test_interrupted_once_more_it_ends_the_same(scenario: Scenario) -> None:
    for disk in distinct(begun(scenario)):
        once = disk.copy()
        recover_here(once)
        ended = outcome(scenario, once)
        cuts = (cut for copy in killed(disk, recover_here) for cut in [copy, *switched_off(copy)])
        for cut in distinct(cuts):
            assert recover_here(cut) is None
            assert outcome(scenario, cut) == ended


@pytest.mark.parametrize("scenario", EMPTY, ids=str)
def test_empty_new_log_is_not_taken_on_trust(scenario: Scenario) -> None:
    """Damage makes empty files too: nothing is touched, the manifest stays for whoever looks at it."""
    refused = 0
    for disk in begun(scenario):
        before = disk.listing(DIRECTORY)
        if not names(disk, ".log.swap"):
            assert recover_here(disk) is None
            continue
        assert re.search("by hand: .* is empty", str(recover_here(disk)))
        kept = {name for name in before if not name.endswith(".cleanerd") or name.startswith(f"{0:020d}")}
        assert set(disk.list_names(DIRECTORY)) == kept
        assert names(disk, ".manifest.cleanerd")
        refused += 1
    assert refused


def past_the_commit_point(scenario: Scenario = THREE) -> SimDisk:
    """Some sources are `.deleted`, some live: both are needed if the swap is no good."""
    return next(d for d in begun(scenario) if names(d, ".log.swap") and names(d, ".log.deleted"))


DOUBTS: dict[str, tuple[Action, str]] = {
    # a broker would make an index full of zeros (spec disk D4)
    "no offset index": (lambda d: d.unlink(at(f"{0:020d}.index.swap")), "is without its .index"),
    "no time index": (lambda d: d.unlink(at(f"{0:020d}.timeindex.swap")), "is without its .timeindex"),
    # it would delete everything between them (D4.2)
    "two swaps": (lambda d: d.put(at(f"{40:020d}.log.swap"), b"40 x 1 - d\n"), "2 segments wait"),
    # the active segment must never be taken for a source (D4.4)
    "reaches the active one": (
        lambda d: d.put(at(f"{0:020d}.log.swap"), b"100 x 1 - d\n"),
        "no segment follows",
    ),
}


@pytest.mark.parametrize("doubt", DOUBTS)
def test_swap_in_doubt_is_refused_and_nothing_is_touched(doubt: str) -> None:
    disk = past_the_commit_point()
    damage, because = DOUBTS[doubt]
    damage(disk)
    check_refused(disk, because)


def test_damaged_swap_is_refused_and_nothing_is_touched() -> None:
    def damaged(path: str) -> int:
        raise CorruptFile(path, 17, "CRC 0x1", "0x2")

    def recovery(disk: SimDisk) -> str | None:
        return recover(PartitionDir(disk, DIRECTORY), is_kafka=False, next_offset=damaged)

    check_refused(past_the_commit_point(), "at byte 17", recovery)


# -- the end of a real segment --------------------------------------------------------------------------------


def write_swap(log_dir: Path, **options: object) -> str:
    """One segment of a real log under the name of a swap."""
    with LogWriter(str(log_dir), "t", 0, segment_bytes=1 << 30, start_offset=40) as writer:
        producer = Producer(writer, **options)  # type: ignore[arg-type]
        for n in range(20):
            producer.send([ProducerRecord(b"k%d" % n, b"v" * n * 50, n), ProducerRecord(b"l", None, n)])
    path = log_dir / "t-0" / f"{40:020d}.log"
    swap = path.with_name(f"{path.name}.swap")
    path.rename(swap)
    return str(swap)


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_end_of_a_real_segment(tmp_path: Path, magic: int, codec: Codec) -> None:
    assert sound_end(write_swap(tmp_path, magic=magic, codec=codec)) == 80


def test_end_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cleanerd.storage.segments.READ_BYTES", 64)
    assert sound_end(write_swap(tmp_path)) == 80


def test_end_of_an_empty_segment_is_its_base(tmp_path: Path) -> None:
    path = tmp_path / f"{40:020d}.log.swap"
    path.touch()
    assert sound_end(str(path)) == 40


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_no_damage_passes(tmp_path: Path, magic: int) -> None:
    """Any byte of the last batch but offset and, in magic 2, leader epoch; any missing tail."""
    path = Path(write_swap(tmp_path, magic=magic))
    good = path.read_bytes()
    sizes = [len(good) - n for n in range(1, 20)]
    for size in sizes:
        path.write_bytes(good[:size])
        with pytest.raises(CorruptFile) as caught:
            sound_end(str(path))
        assert caught.value.path == str(path)
    for n in range(1, 20):
        path.write_bytes(good[:-n] + bytes([good[-n] ^ 1]) + good[len(good) - n + 1 :])
        with pytest.raises(CorruptFile):
            sound_end(str(path))


@pytest.mark.parametrize("base", [0, 39, 59])
def test_offsets_below_the_base_or_not_rising_are_refused(tmp_path: Path, base: int) -> None:
    path = Path(write_swap(tmp_path))
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(encode_batch([Record(base, 0, b"k", b"v")], base_offset=base))
    with pytest.raises(CorruptFile, match="80 or more") as caught:
        sound_end(str(path))
    assert caught.value.position == size


def test_real_swap_without_manifest_is_adopted(tmp_path: Path) -> None:
    """The default reader, on a real directory: a damaged one is refused, a sound one finished."""
    directory = tmp_path / "t-0"
    with LogWriter(str(tmp_path), "t", 0, segment_bytes=1 << 30) as writer:
        for n in range(6):
            Producer(writer).put(b"k", b"v%d" % n)
            if n % 2:
                writer.roll()
    swap = encode_batch([Record(3, 0, b"k", b"v3")], base_offset=3)
    for suffix, content in {".log": swap, ".index": b"", ".timeindex": b""}.items():
        (directory / f"{0:020d}{suffix}.swap").write_bytes(content)
    (directory / f"{0:020d}.manifest.cleanerd").write_bytes(b"garbage")
    (directory / f"{2:020d}.log").rename(directory / f"{2:020d}.log.deleted")
    before = sorted(os.listdir(directory))
    (directory / f"{0:020d}.log.swap").write_bytes(swap[:-1] + b"x")
    assert "expected CRC" in (recover(PartitionDir(RealFiles(), str(directory)), is_kafka=False) or "")
    assert sorted(os.listdir(directory)) == before
    (directory / f"{0:020d}.log.swap").write_bytes(swap)
    assert recover(PartitionDir(RealFiles(), str(directory)), is_kafka=False) is None
    assert [n for n in sorted(os.listdir(directory)) if n.endswith(".log")] == [
        f"{b:020d}.log" for b in (0, 4, 6)
    ]
    assert (directory / f"{0:020d}.log").read_bytes() == swap
