"""Frames of metadata records: spec disk F2 and F3, with samples that a real controller wrote."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanerd.format.errors import FormatError
from cleanerd.format.metadata_records import (
    BrokerRecord,
    ConfigRecord,
    PartitionChange,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
    TransactionMark,
    parse_metadata_record,
    parse_partition_record,
)
from tests.harness.logs.metadata import (
    ABORT,
    BROKER,
    END,
    SAMPLE_CONFIG,
    SAMPLE_ID,
    SAMPLE_TOPIC,
    SKIPPED,
    TOPIC,
    broker,
    change,
    config,
    partition,
    remove,
)


def test_sample_frames_of_a_real_controller() -> None:
    """F3: the TopicRecord and ConfigRecord of topic m-a."""
    assert parse_metadata_record(SAMPLE_TOPIC) == TopicRecord("m-a", SAMPLE_ID)
    assert parse_metadata_record(SAMPLE_CONFIG) == ConfigRecord(
        TOPIC, "m-a", "cleanup.policy", "compact,delete"
    )


@pytest.mark.parametrize(
    ("frame", "record"),
    [
        (remove(SAMPLE_ID), RemoveTopicRecord(SAMPLE_ID)),
        (config(BROKER, "", "k", None), ConfigRecord(BROKER, "", "k", None)),
        (config(BROKER, "1", "k", ""), ConfigRecord(BROKER, "1", "k", "")),
        (bytes.fromhex("01 17 00 01 00 03 02 6162"), TransactionMark.BEGIN),
        (END, TransactionMark.END),
        (ABORT, TransactionMark.ABORT),
        (SKIPPED, None),
        *((broker(7, 25, version), BrokerRecord(7, 25)) for version in range(5)),
        (broker(7, None), BrokerRecord(7, None)),
        (broker(7, 25, version=5), None),
        (bytes.fromhex("01 ff01 07 deadbeef"), None),
    ],
)
def test_frames(frame: bytes, record: object) -> None:
    """F2: null and empty strings differ, tagged fields and unknown api keys are skipped."""
    assert parse_metadata_record(frame) == record


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (b"\x02" + SAMPLE_TOPIC[1:], "frame version 1"),
        (SAMPLE_TOPIC[:2] + b"\x01" + SAMPLE_TOPIC[3:], "message version 0"),
        (SAMPLE_TOPIC + b"\x00", "the end of the frame"),
        (b"\x01\x02\x00\x00" + bytes(17), "a string"),
        (b"", "a whole metadata record"),
        (config(TOPIC, "t", "k", "v")[:-4] + b"\xc3\x28\x28\x00", "a whole metadata record"),
    ],
)
def test_malformed_frames(frame: bytes, expected: str) -> None:
    """What cannot be understood is never skipped: it could be an override."""
    with pytest.raises(FormatError, match=expected):
        parse_metadata_record(frame)


@given(st.integers(0, len(SAMPLE_CONFIG) - 1))
def test_no_prefix_of_a_frame_is_a_frame(size_bytes: int) -> None:
    with pytest.raises(FormatError):
        parse_metadata_record(SAMPLE_CONFIG[:size_bytes])


@given(st.text(), st.text(), st.none() | st.text())
def test_config_records_of_any_text(name: str, key: str, value: str | None) -> None:
    assert parse_metadata_record(config(TOPIC, name, key, value)) == ConfigRecord(TOPIC, name, key, value)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_partitions_of_every_release(version: int) -> None:
    """F3: version 1 has directories (KIP-858), version 2 eligible leaders (KIP-966)."""
    whole = partition(SAMPLE_ID, 4, [1, 2, 3], [1, 3], adding=[3], removing=[1], epoch=6, version=version)
    expected = PartitionRecord(SAMPLE_ID, 4, (1, 2, 3), (1, 3), removing=(1,), adding=(3,), epoch=6)
    assert parse_partition_record(whole) == expected
    assert parse_partition_record(change(SAMPLE_ID, 4, version=version)) == PartitionChange(SAMPLE_ID, 4)
    changed = change(SAMPLE_ID, 4, isr=[], replicas=[2], removing=[], adding=[5], version=version)
    assert parse_partition_record(changed) == PartitionChange(SAMPLE_ID, 4, (2,), (), (), (5,))


def test_partitions_that_a_real_controller_wrote() -> None:
    """A single replica of node 1; at a clean stop it leaves the in-sync replicas and is an eligible leader."""
    topic_id = UUID("349a05da-31a2-4d5c-96af-47fd0ad9f148")
    made = "010302 00000000 349a05da31a24d5c96af47fd0ad9f148 0200000001 0200000001 01 01 00000001 00000000 00000000"
    made += "02 cb9a115c7fb5c74736bc7d6def1065cc 00"
    assert parse_partition_record(bytes.fromhex(made)) == PartitionRecord(topic_id, 0, (1,), (1,), (), (), 0)
    stopped = "010502 00000000 349a05da31a24d5c96af47fd0ad9f148 04 00 01 01 01 04 ffffffff 06 05 0200000001 07 05 0200000001"
    assert parse_partition_record(bytes.fromhex(stopped)) == PartitionChange(topic_id, 0, isr=())


@pytest.mark.parametrize("frame", [SAMPLE_TOPIC, SAMPLE_CONFIG, SKIPPED, broker(1, 25)])
def test_what_changes_no_replicas_is_passed_over(frame: bytes) -> None:
    assert parse_partition_record(frame) is None


def test_what_ends_partitions_or_holds_their_changes_back() -> None:
    assert parse_partition_record(remove(SAMPLE_ID)) == RemoveTopicRecord(SAMPLE_ID)
    assert parse_partition_record(ABORT) is TransactionMark.ABORT


@given(st.sampled_from([partition(SAMPLE_ID, 0, [1, 2]), change(SAMPLE_ID, 0, isr=[1])]), st.data())
def test_no_prefix_of_a_partition_is_one(frame: bytes, data: st.DataObject) -> None:
    """Up to where the tagged fields of a PartitionRecord begin, which are skipped."""
    end = len(frame) - (4 if frame[1] == 3 else 0)
    with pytest.raises(FormatError):
        parse_partition_record(frame[: data.draw(st.integers(0, end - 1))])


def test_changes_of_partitions_are_no_reason_to_read_the_configuration_again() -> None:
    """They are frequent: `storage.replicas` follows them."""
    assert parse_metadata_record(partition(SAMPLE_ID, 0, [1, 2])) is None
    assert parse_metadata_record(change(SAMPLE_ID, 0, isr=[1])) is None
