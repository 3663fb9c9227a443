"""Where a key lies: every file that may hold a record of it, and what becomes of each."""

import errno
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from cleanerd.format.batch import encode_batch
from cleanerd.format.checkpoint import render_offset_checkpoint
from cleanerd.format.control import ControlType, encode_end_txn_marker
from cleanerd.format.names import FileKind, TopicPartition
from cleanerd.format.record import Record
from cleanerd.format.txn_index import AbortedTxn, render_txn_index
from cleanerd.tools.insight import live
from cleanerd.tools.insight.digest import Question, digest_logs
from cleanerd.tools.insight.find import Occurrence, find
from cleanerd.tools.insight.findings import KINDS
from cleanerd.tools.insight.processes import INLINE_BYTES, readers
from tests.harness.logs.logdirs import GOLDEN, random_partition, segment
from tests.harness.logs.troubled import lock_of_another
from tests.tools.insight.test_digest import TIME_MS, data, marker
from tests.tools.insight.test_doctor import look

CLEAN = ("--topic", "t", "--partition", "0", "--force")


def write(log_dir: Path) -> Path:
    """A closed segment, the active one from offset 6 on, and an open transaction at 9."""
    directory = log_dir / "t-0"
    directory.mkdir()
    closed = [
        data(0, "a", "1"),
        data(1, "a", "2"),
        data(2, "a", "3", is_transactional=True),
        marker(3, ControlType.ABORT),
        data(4, "b", "1"),
        data(5, "c", None),
    ]
    active = [
        data(6, "a", "4"),
        data(7, "b", "2"),
        data(8, "b", None),
        data(9, "a", "5", is_transactional=True),
        data(10, "a", "6"),
    ]
    segment(directory, 0).write_bytes(b"".join(closed))
    segment(directory, 0, FileKind.TXN_INDEX).write_bytes(render_txn_index([AbortedTxn(1, 2, 3, 4)]))
    segment(directory, 6).write_bytes(b"".join(active))
    return directory


def states(log_dir: Path, *keys: bytes) -> dict[tuple[bytes, int], str]:
    found = find([str(log_dir)], keys)
    assert found.failed == {}
    return {(one.key, one.offset): one.state for one in found.occurrences}


def test_what_each_record_is(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "log-start-offset-checkpoint").write_bytes(
        render_offset_checkpoint({TopicPartition("t", 0): 1})
    )
    assert states(tmp_path, b"a", b"b", b"c", b"d") == {
        (b"a", 0): "below log start",
        (b"a", 1): "superseded",
        (b"a", 2): "aborted",
        (b"a", 6): "newest",
        (b"a", 9): "open transaction",
        (b"a", 10): "uncommitted",
        (b"b", 4): "superseded",
        (b"b", 7): "superseded",
        (b"b", 8): "tombstone",
        (b"c", 5): "tombstone",
    }


def test_what_was_aborted_behind_an_open_transaction_waits_for_its_end(tmp_path: Path) -> None:
    """No cleaning goes beyond the last stable offset (rule 1.8), so no command makes it go."""
    directory, other = write(tmp_path), {"producer_id": 2, "producer_epoch": 0}
    record = Record(11, TIME_MS, b"a", b"7", ())
    opened = encode_batch([record], base_offset=11, base_sequence=0, transactional=True, **other)
    end = encode_end_txn_marker(ControlType.ABORT, offset=12, timestamp_ms=0, coordinator_epoch=0, **other)
    with segment(directory, 6).open("ab") as file:
        file.write(opened + end)
    segment(directory, 6, FileKind.TXN_INDEX).write_bytes(render_txn_index([AbortedTxn(2, 11, 12, 9)]))
    segment(directory, 13).write_bytes(data(13, "b", "3"))
    (*_, found) = find([str(tmp_path)], [b"a"]).occurrences
    assert (found.offset, found.state, found.clean_options) == (11, "aborted", None)
    assert found.goes == "not before the transaction that is open at 9 ends"


@pytest.mark.parametrize(
    ("watermark", "goes"),
    [
        (13, "not before the transaction that is open at 9 ends"),
        (8, "not before the high watermark (8) is above"),
    ],
)
def test_a_cleaning_takes_whole_segments_below_the_last_stable_offset(
    watermark: int, goes: str, tmp_path: Path
) -> None:
    """Rule 1.9: what is superseded only from the segment in which that lies waits, and no roll makes it go."""
    segment(write(tmp_path), 11).write_bytes(data(11, "d", "1") + data(12, "d", "2"))
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\n")
    (tmp_path / "replication-offset-checkpoint").write_bytes(
        render_offset_checkpoint({TopicPartition("t", 0): watermark})
    )
    found = {one.offset: one for one in find([str(tmp_path)], [b"a", b"b"]).occurrences}
    assert (found[0].goes, found[0].clean_options) == ("with the next cleaning", CLEAN)
    for offset in 1, 4:
        assert (found[offset].state, found[offset].goes, found[offset].clean_options) == (
            "superseded",
            goes,
            None,
        )


def test_what_makes_it_go_now(tmp_path: Path) -> None:
    """A record that is superseded from the active segment, or lies in it, waits for a roll."""
    write(tmp_path)
    found = find([str(tmp_path)], [b"a", b"b", b"c"])
    roll = (*CLEAN, "--roll")
    assert {(one.key, one.offset): one.clean_options for one in found.occurrences if one.clean_options} == {
        (b"a", 0): CLEAN,
        (b"a", 1): roll,
        (b"a", 2): CLEAN,
        (b"b", 4): roll,
        (b"b", 7): roll,
    }


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ("t-0/{}.log.deleted", "deleted_file"),
        ("t-0/{}.log.cleaned", "interrupted_cleaning"),
        ("t-0/{}.log.cleanerd", "staged"),
        ("t-0/{}.part.cleanerd", "staged"),
        ("t-0/{}.0123456789abcdef.part.cleanerd", "staged"),
        ("t-0.0123456789abcdef0123456789abcdef-delete/{}.log", "delete_directory"),
        ("t-0.0123456789abcdef0123456789abcdef-stray/{}.log", "stray_directory"),
        ("t-0.0123456789abcdef0123456789abcdef-future/{}.log", "future_directory"),
    ],
)
def test_what_is_left_over(place: str, code: str, tmp_path: Path) -> None:
    """It counts for no state of another record."""
    write(tmp_path)
    path = tmp_path / place.format(f"{3:020d}")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(encode_batch([Record(11, TIME_MS, b"x", b"old")], base_offset=11))
    found = find([str(tmp_path)], [b"x"])
    assert found.failed == {}
    (one,) = found.occurrences
    assert (one.file.path, one.state, one.offset) == (str(path), "leftover", 11)
    assert one.goes == f"{KINDS[code].meaning}: {KINDS[code].remedy}"


def test_the_name_of_a_deleted_directory_is_cut(tmp_path: Path) -> None:
    """By its broker, to what a file system takes."""
    topic, end = "long" * 60, f"-12.{0:032x}-delete"
    path = tmp_path / f"{topic[: 255 - len(end)]}{end}" / f"{3:020d}.log"
    path.parent.mkdir()
    path.write_bytes(encode_batch([Record(11, TIME_MS, b"x", b"old")], base_offset=11))
    for topics, number in (((topic,), 1), ((), 1), (("other",), 0), ((topic[:100],), 0)):
        assert len(find([str(tmp_path)], [b"x"], topics, [12]).occurrences) == number


def test_a_swap_under_way_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log cannot be judged, but it is looked through."""
    monkeypatch.setattr(live, "_wait", lambda _: None)
    directory = write(tmp_path)
    segment(directory, 0).rename(f"{segment(directory, 0)}.swap")
    found = find([str(tmp_path)], [b"a"])
    assert {(one.offset, one.state) for one in found.occurrences} == {
        (0, "leftover"), (1, "leftover"), (2, "leftover"), (6, "unknown"), (9, "unknown"), (10, "unknown"),
    }  # fmt: skip
    assert "another cleaning is under way" in found.failed[str(directory)]


def test_a_directory_that_cannot_be_listed_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by another user than the broker's; for `doctor`, too."""
    write(tmp_path)
    (refused := tmp_path / "u-0").mkdir()
    listed = os.listdir

    def listdir(path: str) -> list[str]:
        if str(path) == str(refused):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return listed(path)

    monkeypatch.setattr(os, "listdir", listdir)
    found = find([str(tmp_path)], [b"a"])
    assert (len(found.occurrences), found.failed) == (6, {str(refused): f"{refused}: Permission denied"})
    (directory,) = look(tmp_path).directories
    assert "t-0" in [str(log.topic_partition) for log in directory.logs]
    assert "unreadable" in [one.code for one in directory.problems]


def test_a_rate_holds_for_all_readers_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a key and of a digest; 0.1 MB, read at 0.4 MB a second."""
    log = segment(write(tmp_path), 6)
    log.write_bytes(log.read_bytes() + data(11, "x", "y" * 100_000))
    for ask in (
        lambda: find([str(tmp_path)], [b"x"], bytes_per_s=4e5),
        lambda: digest_logs([str(tmp_path / "t-0")], Question(bytes_per_s=4e5)),
    ):
        began_s = time.monotonic()
        assert ask().failed == {}
        assert time.monotonic() - began_s > 0.24
    sized = [SimpleNamespace(size_bytes=INLINE_BYTES)]
    assert [readers(number * sized, 4) for number in (0, 1, 2, 9)] == [1, 1, 2, 4]


def test_damage_hides_what_it_covers_alone(tmp_path: Path) -> None:
    directory = write(tmp_path)
    log = segment(directory, 0)
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)
    found = find([str(tmp_path)], [b"a", b"c"])
    assert {one.offset for one in found.occurrences if one.key == b"c"} == {5}
    assert "are no sound batch" in found.failed[str(log)]


@pytest.mark.parametrize("base", [0, 6])
def test_a_batch_that_is_torn_may_hold_the_key(base: int, tmp_path: Path) -> None:
    """Also at the end of the log, unless a process may be writing it (rule D.19); zeros hold nothing."""
    log = segment(write(tmp_path), base)
    content = log.read_bytes()
    log.write_bytes(content[:-1])
    assert "are no sound batch" in find([str(tmp_path)], [b"a"]).failed[str(log)]
    with lock_of_another(tmp_path / ".lock"):
        assert find([str(tmp_path)], [b"a"]).failed.keys() == ({str(log)} if base == 0 else set())
    log.write_bytes(content + bytes(100))
    assert find([str(tmp_path)], [b"a"]).failed == {}


@pytest.mark.parametrize(
    "name", ["{}.log.bak", "x{}.log", "\N{ARABIC-INDIC DIGIT ZERO}{}.log", "t-0.{:032d}-delete/x{}.log"]
)
def test_what_has_the_name_of_no_segment_was_not_read(name: str, tmp_path: Path) -> None:
    """A copy that somebody left, or a segment of a broker that runs in another locale: it may hold the key (rule D.19)."""
    directory = write(tmp_path)
    path = tmp_path / name.format(0, 0) if "/" in name else directory / name.format(f"{3:020d}")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data(3, "x", "1"))
    found = find([str(tmp_path)], [b"x"])
    assert (found.occurrences, str(path) in found.failed) == ([], True)


def test_keys_of_every_length_in_every_format(tmp_path: Path) -> None:
    """Against plain Python, over random logs of all magics and codecs."""
    from tests.harness.kernels.reference import read_batches
    from tests.harness.logs.random_log import KEYS

    for seed in range(20):
        directory = random_partition(tmp_path / f"t-{seed}", seed)
        expected = {
            (record.key, record.offset)
            for batch in read_batches(segment(directory, 0).read_bytes())
            for record in batch.records
            if not batch.is_control and record.key in KEYS
        }
        found = find([str(tmp_path)], KEYS, partitions=[seed]).occurrences
        assert {(one.key, one.offset) for one in found} == expected, seed


def test_what_a_broker_left(tmp_path: Path) -> None:
    found: list[Occurrence] = find([str(GOLDEN)], [b"key-1"], ["transactions"]).occurrences
    assert [(one.offset, one.state) for one in found] == [
        (1, "superseded"),
        (8, "aborted"),
        (15, "newest"),
        (22, "aborted"),
    ]
