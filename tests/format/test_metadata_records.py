"""Frames of metadata records: spec disk F2 and F3, with samples that a real controller wrote."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanerd.format.errors import FormatError
from cleanerd.format.metadata_records import (
    BrokerRecord,
    ConfigRecord,
    RemoveTopicRecord,
    TopicRecord,
    TransactionMark,
    parse_metadata_record,
)
from tests.storage.metadata import (
    ABORT,
    BROKER,
    END,
    SAMPLE_CONFIG,
    SAMPLE_ID,
    SAMPLE_TOPIC,
    SKIPPED,
    TOPIC,
    broker,
    config,
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
