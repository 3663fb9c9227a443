"""Text files of a log directory: checkpoints, partition.metadata, meta.properties, UUIDs (spec disk A)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanerd.format.checkpoint import (
    EpochEntry,
    parse_leader_epochs,
    parse_offset_checkpoint,
    render_leader_epochs,
    render_offset_checkpoint,
)
from cleanerd.format.errors import FormatError
from cleanerd.format.meta_properties import MetaProperties, parse_meta_properties
from cleanerd.format.names import TopicPartition
from cleanerd.format.partition_metadata import parse_partition_metadata, render_partition_metadata
from cleanerd.format.uuid_text import parse_uuid, render_uuid

topics = st.text("abcXYZ019._-", min_size=1, max_size=20)
partitions = st.builds(TopicPartition, topics, st.integers(0, 2**31 - 1))


def test_offset_checkpoint_sample():
    """Spec disk A7."""
    offsets = {TopicPartition("topicA", 0): 1234, TopicPartition("topicB", 3): 99}
    content = b"0\n2\ntopicA 0 1234\ntopicB 3 99\n"
    assert parse_offset_checkpoint(content) == offsets
    assert render_offset_checkpoint(offsets) == content


@given(st.dictionaries(partitions, st.integers(0, 2**63 - 1), max_size=10))
def test_offset_checkpoint_round_trip(offsets):
    """Any topics and offsets; and line by line what all lines at once are."""
    content = render_offset_checkpoint(offsets)
    assert parse_offset_checkpoint(content) == offsets
    assert parse_offset_checkpoint(content.replace(b" ", b"  ")) == offsets


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", {}),
        (b"0\n0\n", {}),
        (b"0\n0", {}),
        (b"0\n1\na 0 5", {TopicPartition("a", 0): 5}),
        (b"0\r\n1\r\na 0 5\r\n", {TopicPartition("a", 0): 5}),
        (b"0\n1\na\t 0  5 \n", {TopicPartition("a", 0): 5}),
        (b"0\n2\na 0 5\na 0 6\n", {TopicPartition("a", 0): 6}),
        (b"0\n1\n\xc3\xa4 0 5\n", {TopicPartition("ä", 0): 5}),
    ],
)
def test_offset_checkpoint_leniency(content, expected):
    """What a broker reads, we read: an empty file, other newlines, runs of blanks, duplicates."""
    assert parse_offset_checkpoint(content) == expected


@pytest.mark.parametrize(
    ("content", "position", "expected"),
    [
        (b"\n", 0, "a number"),
        (b"1\n0\n", 0, "version 0"),
        (b"x\n0\n", 0, "a number"),
        (b"0", 1, "the number of entries"),
        (b"0\n", 2, "the number of entries"),
        (b"0\nx\n", 2, "a number"),
        (b"0\n-1\n", 2, "-1 entries"),
        (b"0\n2\na 0 5\n", 2, "2 entries"),
        (b"0\n0\na 0 5\n", 2, "0 entries"),
        (b"0\n2\na 0 5\n\n", 10, "3 fields"),
        (b"0\n1\na 0\n", 4, "3 fields"),
        (b"0\n1\na 0 5 6\n", 4, "3 fields"),
        (b"0\n1\n a 0 5\n", 4, "3 fields"),
        (b"0\n1\na x 5\n", 4, "a number"),
        (b"0\n2\na 0 5\nb 0 y\n", 10, "a number"),
        (b"0\n1\na 0 1_0\n", 4, "a number"),
        (b"0\n1\na 2147483648 5\n", 4, "a number"),
        (b"0\n1\na 0 9223372036854775808\n", 4, "a number"),
        (b"0\n1\na 0 99999999999999999999999\n", 4, "a number"),
        (b"0\n1\n\xff 0 5\n", 4, "UTF-8"),
        ("0\n1\na 0 ٣\n".encode(), 4, "a number"),
    ],
)
def test_offset_checkpoint_damage_rule_7_16b(content, position, expected):
    """Version, count, fields and numbers; one kind of error for all of them, unlike Kafka's."""
    with pytest.raises(FormatError, match=expected) as caught:
        parse_offset_checkpoint(content)
    assert caught.value.position == position


def test_leader_epochs_sample():
    """Format A7 with epoch and start offset."""
    content = b"0\n2\n0 0\n3 105\n"
    assert parse_leader_epochs(content) == (EpochEntry(0, 0), EpochEntry(3, 105))
    assert parse_leader_epochs(content) == ((0, 0), (3, 105))
    assert render_leader_epochs([(0, 0), (3, 105)]) == content
    assert parse_leader_epochs(b"") == ()


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (b"1 5\n1 6\n", [(1, 5)]),
        (b"1 5\n1 4\n", [(1, 4)]),
        (b"2 5\n1 6\n", [(1, 6)]),
        (b"1 5\n2 5\n", [(2, 5)]),
        (b"1 5\n2 4\n", [(2, 4)]),
        (b"0 0\n1 5\n2 7\n3 5\n", [(0, 0), (3, 5)]),
    ],
)
def test_leader_epochs_that_do_not_rise_are_read_as_a_broker_reads_them(lines, expected):
    """It assigns one entry after the other, and each removes those before it that it contradicts."""
    content = b"0\n%d\n" % lines.count(b"\n") + lines
    assert list(parse_leader_epochs(content)) == expected


@pytest.mark.parametrize("lines", [b"-1 5\n", b"1 -5\n"])
def test_leader_epochs_are_not_negative(lines):
    """A broker refuses to load such a log."""
    with pytest.raises(FormatError, match="an epoch and offset of 0 or more"):
        parse_leader_epochs(b"0\n1\n" + lines)


def test_partition_metadata_is_43_bytes_without_newline():
    """Spec disk A6."""
    topic_id = parse_uuid("PH77tX_fTKGncMks08HTVw")
    content = b"version: 0\ntopic_id: PH77tX_fTKGncMks08HTVw"
    assert len(content) == 43
    assert render_partition_metadata(topic_id) == content
    assert parse_partition_metadata(content) == topic_id
    assert parse_partition_metadata(b"version:   1\r\ntopic_id:\tPH77tX_fTKGncMks08HTVw\n") == topic_id


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"version: 0",
        b"version: 0\n",
        b"version: -1\ntopic_id: PH77tX_fTKGncMks08HTVw",
        b"version:0\ntopic_id: PH77tX_fTKGncMks08HTVw",
        b"topic_id: PH77tX_fTKGncMks08HTVw\nversion: 0",
        b"version: 0\ntopic_id: PH77tX_fTKGncMks08HTV",
        b"version: 0\ntopic_id: PH77tX+fTKGncMks08HTVw",
        b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
        b"version: 0\ntopic_id: PH77tX_fTKGncMks08HTVw\nmore: 1",
        b"\xff\xfe",
    ],
)
def test_partition_metadata_damage(content):
    with pytest.raises(FormatError):
        parse_partition_metadata(content)


@given(st.uuids(allow_nil=True))
def test_uuid_text_round_trip(value):
    """22 characters that a shell need not quote."""
    text = render_uuid(value)
    assert len(text) == 22
    assert parse_uuid(text) == value


META = b"""#
#Fri Oct 25 12:00:00 UTC 2024
node.id=1
directory.id=PH77tX_fTKGncMks08HTVw
version=1
cluster.id=Sas8\\:x
"""


def test_meta_properties_version_1():
    """Spec disk A2: comments, escapes, any order."""
    expected = MetaProperties(1, "Sas8:x", 1, parse_uuid("PH77tX_fTKGncMks08HTVw"))
    assert parse_meta_properties(META) == expected


def test_meta_properties_version_0():
    """The version may be absent, the node id is called broker.id."""
    assert parse_meta_properties(b"broker.id=7\n") == MetaProperties(0, None, 7, None)
    assert parse_meta_properties(b"") == MetaProperties(0, None, None, None)


@pytest.mark.parametrize(
    "content",
    [
        b"version=2\n",
        b"version=x\n",
        b"version=1\ncluster.id=c\n",
        b"version=1\nnode.id=1\n",
        b"version=1\nnode.id=one\ncluster.id=c\n",
        b"broker.id=\xb2\n",
        b"broker.id=" + b"9" * 5000 + b"\n",
        b"directory.id=short\n",
        b"cluster.id=\\u12\n",
    ],
)
def test_meta_properties_damage(content):
    with pytest.raises(FormatError):
        parse_meta_properties(content)
