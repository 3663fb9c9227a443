"""Keys and values of the coordinators: bytes that a broker of version 4.3 wrote, beside what its own decoder says."""

import pytest

from cleanerd.format.errors import FormatError
from cleanerd.tools.insight.coordinator_records import (
    CONSUMER_OFFSETS,
    TRANSACTION_STATE,
    parse_coordinator_key,
    parse_coordinator_record,
)

WRITTEN = [
    (
        CONSUMER_OFFSETS,
        "0001000762696c6c696e6700017400000000",
        "000400000000000000080000000001000001a202e0a0910100108c7c2b74b7d64e10b673e85a5368cdf8",
        (1, {"group": "billing", "topic": "t", "partition": 0}, 4),
        {"offset": 8, "leaderEpoch": 0, "metadata": "", "commitTimestamp": 1795344605329,
         "topicId": "jHwrdLfWThC2c-haU2jN-A"},
    ),
    (
        CONSUMER_OFFSETS,
        "0002000762696c6c696e67",
        "00030008636f6e73756d657200000002ffffffff000001a202e0a09500000000",
        (2, {"group": "billing"}, 3),
        {"protocolType": "consumer", "generation": 2, "protocol": None, "leader": None,
         "currentStateTimestamp": 1795344605333, "members": []},
    ),
    (CONSUMER_OFFSETS, "000300077265706f727473", "00000000000300", (3, {"groupId": "reports"}, 0), {"epoch": 3}),
    (
        CONSUMER_OFFSETS,
        "000600077265706f727473",
        "000000000002010008000001a202e0a147",
        (6, {"groupId": "reports"}, 0),
        {},  # of no interest here
    ),
    (
        TRANSACTION_STATE,
        "0000000974782d6f7264657273",
        "0001000000000000000000000000ea600102046f7574020000000000000001a202e0a6db000001a202e0a6db0100080000000000000000",
        (0, {"transactionalId": "tx-orders"}, 1),
        {"producerId": 0, "previousProducerId": 0, "producerEpoch": 0, "transactionTimeoutMs": 60000, "transactionStatus": 1,
         "transactionPartitions": [{"topic": "out", "partitionIds": [0]}],
         "transactionLastUpdateTimestampMs": 1795344606939, "transactionStartTimestampMs": 1795344606939},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("topic", "key", "value", "head", "fields"), WRITTEN)
def test_what_a_broker_wrote(topic: str, key: str, value: str, head: tuple, fields: dict) -> None:
    found = parse_coordinator_record(topic, bytes.fromhex(key), bytes.fromhex(value))
    assert (found.type, found.key, found.version) == head
    assert found.value == fields


def test_a_tombstone_has_no_value() -> None:
    found = parse_coordinator_record(CONSUMER_OFFSETS, bytes.fromhex("0002000762696c6c696e67"), None)
    assert (found.key, found.version, found.value) == ({"group": "billing"}, None, None)


OLD = [
    (0, "0000 0000000000000007 0002 6d64 0000000000000009", {"offset": 7, "metadata": "md", "commitTimestamp": 9}),
    (
        1,
        "0001 0000000000000007 0002 6d64 0000000000000009 000000000000000b",
        {"offset": 7, "metadata": "md", "commitTimestamp": 9, "expireTimestamp": 11},
    ),
    (2, "0002 0000000000000007 0002 6d64 0000000000000009", {"offset": 7, "metadata": "md", "commitTimestamp": 9}),
    (
        3,
        "0003 0000000000000007 00000005 0002 6d64 0000000000000009",
        {"offset": 7, "leaderEpoch": 5, "metadata": "md", "commitTimestamp": 9},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("version", "value", "fields"), OLD)
def test_offsets_of_older_brokers(version: int, value: str, fields: dict) -> None:
    key = bytes.fromhex("0001000762696c6c696e6700017400000000")
    found = parse_coordinator_record(CONSUMER_OFFSETS, key, bytes.fromhex(value.replace(" ", "")))
    assert (found.version, found.value) == (version, fields)


def test_unknown_types_and_versions_and_null_keys_are_errors() -> None:
    with pytest.raises(FormatError, match="type of key"):
        parse_coordinator_key(CONSUMER_OFFSETS, bytes.fromhex("0063 0000"))
    with pytest.raises(FormatError, match="a key without null"):
        parse_coordinator_key(CONSUMER_OFFSETS, bytes.fromhex("0003 ffff"))
    with pytest.raises(FormatError, match="version up to 4"):
        parse_coordinator_record(CONSUMER_OFFSETS, bytes.fromhex("0002000762696c6c696e67"), b"\x00\x09")
