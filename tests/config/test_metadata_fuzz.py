"""Metadata of the cluster with a byte that is wrong never widens what is touched (spec disk F).

A reading is an error, or what intact records say: everything, or everything but the very last batch of the log, which a
broker may be writing. A topic that is not named is left alone, so a reading without any topic is as good as an error.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from cleanerd.config.model import ClusterMetadata
from cleanerd.errors import CleanerdError
from tests.harness.logs.metadata import (
    OTHER_ID,
    SAMPLE_ID,
    TOPIC,
    batch,
    config,
    log,
    read,
    remove,
    snapshot,
    topic,
)

pytestmark = pytest.mark.soak

POLICY = "cleanup.policy"


@dataclass(frozen=True)
class Source:
    """Files of a metadata log, and which of them is bent."""

    files: dict[str, bytes]
    bent: str


LOG = (
    batch(0, [topic("t", SAMPLE_ID), config(TOPIC, "t", POLICY, "compact")]),
    batch(2, [topic("u", OTHER_ID), config(TOPIC, "u", POLICY, "delete")]),
    batch(4, [config(TOPIC, "t", POLICY, "delete"), config(TOPIC, "t", "retention.ms", "-1")]),
    batch(6, [config(TOPIC, "u", "retention.ms", "-1"), config(TOPIC, "u", POLICY, "compact")]),
    batch(8, [remove(OTHER_ID)]),
)
SNAPSHOT = snapshot(
    topic("t", SAMPLE_ID), config(TOPIC, "t", POLICY, "compact"), config(TOPIC, "t", "retention.ms", "-1")
)
SOURCES = {
    "log": Source({"log_0": b"".join(LOG)}, "log_0"),
    "closed segment": Source({"log_0": b"".join(LOG[:3]), "log_6": b"".join(LOG[3:])}, "log_0"),
    "snapshot": Source({"snapshot_4": SNAPSHOT, "log_4": LOG[2]}, "snapshot_4"),
    "log after a snapshot": Source({"snapshot_4": SNAPSHOT, "log_4": LOG[2] + LOG[3]}, "log_4"),
    "snapshot beside the log": Source({"snapshot_4": SNAPSHOT, "log_0": b"".join(LOG[:4])}, "snapshot_4"),
}
LAST = {"log": LOG[-1], "log after a snapshot": LOG[3]}

Said = tuple[dict[str, object], dict[str, dict[str, str]]]


def said(metadata: ClusterMetadata) -> Said:
    return dict(metadata.topic_ids), {name: dict(found) for name, found in metadata.topic_configs.items()}


def what_intact_records_say(directory: Path, name: str) -> list[Said]:
    source = SOURCES[name]
    allowed = [said(read(log(directory / "whole", **source.files)))]
    if name in LAST:
        shorter = source.files[source.bent].removesuffix(LAST[name])
        allowed.append(said(read(log(directory / "shorter", **{**source.files, source.bent: shorter}))))
    if name == "snapshot beside the log":
        without = {"log_0": source.files["log_0"]}
        allowed.append(said(read(log(directory / "without", **without))))
    return allowed


@pytest.mark.parametrize("name", SOURCES)
def test_no_byte_can_be_wrong_unnoticed(tmp_path: Path, name: str) -> None:
    """Every byte, two ways: what no CRC covers (base offset, length, epoch) stands there."""
    whole = SOURCES[name].files[SOURCES[name].bent]
    for position in range(len(whole)):
        for mask in (0x01, 0x80):
            data = bytearray(whole)
            data[position] ^= mask
            check(tmp_path, name, bytes(data))


@cache
def _allowed(tmp_path: Path, name: str) -> list[Said]:
    return what_intact_records_say(tmp_path, name)


def check(tmp_path: Path, name: str, bent: bytes) -> None:
    allowed = _allowed(tmp_path, name)
    try:
        found = said(read(log(tmp_path / "bent", **{**SOURCES[name].files, SOURCES[name].bent: bent})))
    except CleanerdError:
        return
    assert found in allowed or not found[0], "a topic that is configured other than intact records say"
