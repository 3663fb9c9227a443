"""File and directory names: the good ones, and the near misses that must be left alone (spec disk A5, A6)."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanerd.format.names import (
    DirKind,
    FileKind,
    SegmentFileName,
    Suffix,
    TopicPartition,
    in_other_digits,
    of_attempt,
    parse_partition_dir,
    parse_segment_file,
    taken_for_another,
    without_attempt,
)


@given(st.integers(0, 2**63 - 1), st.sampled_from(FileKind), st.sampled_from(Suffix))
def test_segment_file_round_trip(base_offset, kind, suffix):
    name = SegmentFileName(base_offset, kind, suffix)
    assert parse_segment_file(str(name)) == name
    assert len(str(name).split(".", maxsplit=1)[0]) == 20
    assert parse_segment_file(str(name.with_suffix(Suffix.SWAP))) == name.with_suffix(Suffix.SWAP)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".log",
        "0.log",
        "0000000000000000000.log",
        "000000000000000000000.log",
        "0000000000000000000x.log",
        "-0000000000000000001.log",
        " 00000000000000000000.log",
        "00000000000000000000.log ",
        "00000000000000000000.log\n",
        "\u0660" * 20 + ".log",
        "99999999999999999999.log",
        "09223372036854775808.log",
        "00000000000000000000",
        "00000000000000000000log",
        "00000000000000000000.LOG",
        "00000000000000000000.logs",
        "00000000000000000000.log.",
        "00000000000000000000.log.tmp",
        "00000000000000000000.log.swap.deleted",
        "00000000000000000000.log.cleanerd.swap",
        "00000000000000000000.swap",
        "00000000000000000000.checkpoint",
        "00000000000000000000-0000000001.checkpoint",
        "leader-epoch-checkpoint",
        "foo.cleaned",
    ],
)
def test_foreign_file_names(name):
    assert parse_segment_file(name) is None


@pytest.mark.parametrize(
    ("name", "topic", "partition", "kind"),
    [
        ("a-0", "a", 0, DirKind.CURRENT),
        ("__consumer_offsets-49", "__consumer_offsets", 49, DirKind.CURRENT),
        ("a-b-1", "a-b", 1, DirKind.CURRENT),
        ("a--1", "a-", 1, DirKind.CURRENT),
        ("a.b-delete-3", "a.b-delete", 3, DirKind.CURRENT),
        ("a-2147483647", "a", 2**31 - 1, DirKind.CURRENT),
        (f"a-1.{'0f' * 16}-delete", "a", 1, DirKind.DELETE),
        (f"a-1.{'0f' * 16}-stray", "a", 1, DirKind.STRAY),
        (f"a.b-1.{'0f' * 16}-future", "a.b", 1, DirKind.FUTURE),
    ],
)
def test_partition_directories(name, topic, partition, kind):
    """Parsed at the last dash; the three suffixes tell directories that are never cleaned."""
    assert parse_partition_dir(name) == (TopicPartition(topic, partition), kind)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a",
        "-0",
        "a-",
        "a-x",
        "a-1x",
        "a-1 ",
        "a-1\n",
        "a-+1",
        "a-2147483648",
        "a-10000000000",
        f"a-1{'0' * 5000}",
        "a-1-delete",
        f"a-1.{'0F' * 16}-delete",
        f"a-1.{'0f' * 15}-delete",
        f"a-1.{'0f' * 16}-deleted",
        f"a.{'0f' * 16}-delete",
        "remote-log-index-cache",
        "lost+found",
        ".lock",
    ],
)
def test_foreign_directory_names(name):
    assert parse_partition_dir(name) is None


def test_the_part_of_an_attempt_has_a_name_of_its_own():
    """It is no file of a segment, but staged all the same; nothing else is taken for one."""
    part = f"/dir/{7:020d}.part.cleanerd"
    mine, other = of_attempt(part, "0123456789abcdef"), of_attempt(part, "fedcba9876543210")
    assert mine == f"/dir/{7:020d}.0123456789abcdef.part.cleanerd"
    assert len({part, mine, other}) == 3
    assert parse_segment_file(os.path.basename(mine)) is None
    assert without_attempt(mine) == without_attempt(other) == part
    for foreign in (
        mine.upper(),
        mine[:-1],
        f"{7:020d}.0123.part.cleanerd",
        f"{7:020d}.0123456789abcdef.log.cleanerd",
    ):
        assert without_attempt(foreign) == foreign


def test_digits_of_other_locales_are_seen() -> None:
    """Spec disk A6: a JVM in an Arabic or Bengali locale names segments in those digits, and reads any."""
    arabic = "".join(chr(0x660 + int(digit)) for digit in "00000000000000000042")
    for name in (f"{arabic}.log", f"0{arabic[1:]}.timeindex", f"{arabic}.log.deleted"):
        assert parse_segment_file(name) is None
        assert in_other_digits(["00000000000000000000.log", name]) == name
    assert in_other_digits(["00000000000000000000.log", "caf\u00e9.log", f"{arabic}.txt", arabic]) is None


def test_what_a_broker_takes_for_another_segment() -> None:
    """Spec disk A6: any number before the first dot; a segment that is there already may be merged with another one."""
    there = "00000000000000000005.log"
    for name in (
        "7.log",
        "-7.log",
        "000000000000000000007.log",
        "7.bak.log",
        "7.cleaned",
        "5.log.swap",
        "5.log",
        "00000000000000000005.bak.log",
    ):
        assert taken_for_another([there, name]) == name
    harmless = (
        "7.index",
        "7.log.deleted",
        "backup.log",
        "7.log.cleanerd",
        f"{1 << 64}.log",
    )
    assert taken_for_another([there, *harmless]) is None
