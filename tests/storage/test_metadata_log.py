"""The metadata log: spec disk F1 to F5, with the sample frames that a real controller wrote (F3)."""

import errno
import os
from pathlib import Path
from uuid import UUID

import pytest

from cleanerd.env.files import READ_MAX_BYTES, RealFiles
from cleanerd.errors import BadUsage, CleanerdError, CorruptFile, DirOffline, SourceChanged
from cleanerd.format.control import ControlType
from cleanerd.storage.metadata_log import by_node, find_metadata, read_metadata
from tests.harness.logs.metadata import (
    ABORT,
    BEGIN,
    BROKER,
    END,
    OTHER_ID,
    SAMPLE_CONFIG,
    SAMPLE_ID,
    SAMPLE_TOPIC,
    SKIPPED,
    TOPIC,
    batch,
    broker,
    config,
    control,
    log,
    read,
    remove,
    snapshot,
    topic,
    voters,
)


def test_f4_config_is_a_last_writer_map(tmp_path: Path) -> None:
    """Null deletes, the empty text is a value; other resource types do not matter."""
    frames = [
        SAMPLE_TOPIC,
        SAMPLE_CONFIG,
        config(TOPIC, "m-a", "cleanup.policy", "compact"),
        config(TOPIC, "m-a", "retention.ms", "5"),
        config(TOPIC, "m-a", "retention.ms", None),
        config(TOPIC, "m-a", "never.set", None),
        config(BROKER, "", "log.cleaner.threads", "2"),
        config(BROKER, "1", "log.cleaner.threads", ""),
        config(16, "m-a", "interval.ms", "1"),
        SKIPPED,
    ]
    found = read(log(tmp_path, log_0=batch(0, frames)))
    assert found.topic_ids == {"m-a": SAMPLE_ID}
    assert found.topic_configs == {"m-a": {"cleanup.policy": "compact"}}
    assert found.broker_configs == {"": {"log.cleaner.threads": "2"}, "1": {"log.cleaner.threads": ""}}


def test_f4_removed_topic_takes_its_config_along(tmp_path: Path) -> None:
    """RemoveTopicRecord carries only the id; a new topic of that name starts without overrides."""
    frames = [SAMPLE_TOPIC, SAMPLE_CONFIG, topic("n", OTHER_ID), remove(SAMPLE_ID)]
    found = read(log(tmp_path / "a", log_0=batch(0, frames)))
    assert (found.topic_ids, found.topic_configs) == ({"n": OTHER_ID}, {})
    again = read(log(tmp_path / "b", log_0=batch(0, [*frames, topic("m-a", UUID(int=9))])))
    assert again.topic_ids == {"n": OTHER_ID, "m-a": UUID(int=9)}
    assert again.topic_configs == {}


@pytest.mark.parametrize(
    ("tail", "value"),
    [([END], "new"), ([ABORT], "old"), ([], "old"), ([ABORT, BEGIN, END], "old")],
    ids=["ended", "aborted", "unfinished", "aborted, then another"],
)
def test_f4_metadata_transactions(tmp_path: Path, tail: list[bytes], value: str) -> None:
    """Records count when their transaction ends, also batches later; not at all when it is aborted."""
    begin = batch(0, [config(TOPIC, "t", "k", "old"), BEGIN])
    rest = batch(2, [config(TOPIC, "t", "k", "new"), *tail])
    assert read(log(tmp_path, log_0=begin + rest)).topic_configs == {"t": {"k": value}}


def test_f1_control_batches_are_skipped(tmp_path: Path) -> None:
    data = batch(0, [SAMPLE_TOPIC]) + control(1, ControlType.LEADER_CHANGE) + batch(2, [SAMPLE_CONFIG])
    assert read(log(tmp_path, log_0=data)).topic_configs == {"m-a": {"cleanup.policy": "compact,delete"}}


def test_f5_newest_snapshot_then_the_log_from_its_end(tmp_path: Path) -> None:
    """Records below the end offset are in the snapshot or undone by it; segments may overlap it."""
    old = [config(TOPIC, "t", f"k{offset}", "log") for offset in range(8)]
    found = read(
        log(
            tmp_path,
            snapshot_3=snapshot(config(TOPIC, "t", "s3", "")),
            snapshot_6=snapshot(config(TOPIC, "t", "s6", "")),
            log_0=batch(0, old[:2]),
            log_2=batch(2, old[2:4]),
            log_4=batch(4, old[4:]),
        )
    )
    assert found.topic_configs == {"t": {"s6": "", "k6": "log", "k7": "log"}}


@pytest.mark.parametrize(
    "damaged",
    [
        snapshot(SAMPLE_TOPIC, footer=False),
        snapshot(SAMPLE_TOPIC)[:-5],
        b"",
        snapshot(SAMPLE_TOPIC)[:90] + bytes(30),
    ],
    ids=["no footer", "torn footer", "empty", "damaged"],
)
def test_f5_incomplete_snapshot_is_passed_over(tmp_path: Path, damaged: bytes) -> None:
    """The one before it and more of the log say the same."""
    directory = log(
        tmp_path,
        snapshot_1=snapshot(config(TOPIC, "t", "k", "1")),
        snapshot_3=damaged,
        log_1=batch(1, [config(TOPIC, "t", "k", "2"), SKIPPED, config(TOPIC, "t", "k", "3")]),
    )
    (directory / "00000000000000000009-0000000003-123.checkpoint.part").write_bytes(b"x")
    (directory / "00000000000000000008-0000000003.checkpoint.deleted").write_bytes(b"x")
    assert read(directory).topic_configs == {"t": {"k": "3"}}


def test_snapshot_without_any_later_log(tmp_path: Path) -> None:
    """A node that has just fetched a snapshot."""
    assert read(log(tmp_path, snapshot_9=snapshot(SAMPLE_TOPIC))).topic_ids == {"m-a": SAMPLE_ID}


@pytest.mark.parametrize(
    "tail",
    [
        *(batch(1, [SAMPLE_CONFIG])[:size_bytes] for size_bytes in (1, 17, 60, 61, -1)),
        bytes(100),
        batch(1, [SAMPLE_CONFIG])[:-3] + bytes(3),
    ],
)
def test_f5_last_batch_may_be_torn_or_unwritten(tmp_path: Path, tail: bytes) -> None:
    """A live broker may be writing it, or a power failure has left blocks that were never written."""
    found = read(log(tmp_path, log_0=batch(0, [SAMPLE_TOPIC]) + tail))
    assert (found.topic_ids, found.topic_configs) == ({"m-a": SAMPLE_ID}, {})


def test_damage_before_the_last_batch_is_an_error(tmp_path: Path) -> None:
    """A shorter answer could lack an override, so there is none."""
    bad = bytearray(batch(0, [SAMPLE_CONFIG]))
    bad[-3] ^= 1
    with pytest.raises(CorruptFile, match="at byte 17"):
        read(log(tmp_path / "followed", log_0=bytes(bad) + batch(1, [SAMPLE_TOPIC])))
    with pytest.raises(CorruptFile):
        read(log(tmp_path / "not the last segment", log_0=bytes(bad), log_1=batch(1, [SAMPLE_TOPIC])))
    with pytest.raises(CorruptFile, match="a whole batch"):
        read(log(tmp_path / "torn", log_0=batch(0, [SAMPLE_TOPIC])[:-1], log_1=batch(1, [SAMPLE_CONFIG])))
    with pytest.raises(CorruptFile, match="frame version 1 at byte 0 of the record at offset 1"):
        read(log(tmp_path / "frame", log_0=batch(0, [SAMPLE_TOPIC, b"\x02"])))


GAPS = {
    "between segments": {"log_0": batch(0, [SKIPPED]), "log_5": batch(5, [SKIPPED])},
    "no snapshot": {"log_5": batch(5, [SKIPPED])},
    "after the snapshot": {"snapshot_4": snapshot(SKIPPED), "log_5": batch(5, [SKIPPED])},
    "between batches": {"log_0": batch(0, [SKIPPED]) + batch(2, [SKIPPED])},
}


@pytest.mark.parametrize("files", GAPS.values(), ids=GAPS)
def test_gap_is_an_error(tmp_path: Path, files: dict[str, bytes]) -> None:
    with pytest.raises(CorruptFile, match="a batch at offset"):
        read(log(tmp_path, **files))


class Vanishing(RealFiles):
    """The first `times` reads find nothing, as when a broker deletes files after the listing."""

    def __init__(self, times: int) -> None:
        self.times = times

    def read(self, path: str, max_bytes: int = READ_MAX_BYTES) -> bytes:
        if self.times:
            self.times -= 1
            raise FileNotFoundError(2, "No such file or directory", path)
        return super().read(path, max_bytes)


def test_vanishing_files_are_listed_anew(tmp_path: Path) -> None:
    """A bounded number of times; then the caller may try later."""
    directory = str(log(tmp_path, log_0=batch(0, [SAMPLE_TOPIC])))
    assert read_metadata(Vanishing(2), directory).topic_ids == {"m-a": SAMPLE_ID}
    with pytest.raises(SourceChanged):
        read_metadata(Vanishing(3), directory)


def test_unreadable_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DirOffline, match="Not a directory"):
        read(tmp_path / "file")


def node(log_dir: Path, *, cluster: str = "c", node_id: int = 1, metadata: bool = False) -> str:
    """A log directory with `meta.properties`."""
    log_dir.mkdir(parents=True)
    (log_dir / "meta.properties").write_text(f"version=1\ncluster.id={cluster}\nnode.id={node_id}\n")
    if metadata:
        log(log_dir / "__cluster_metadata-0", log_0=batch(0, [SAMPLE_TOPIC]))
    return str(log_dir)


def test_metadata_log_dir_counts_only_for_its_own_cluster(tmp_path: Path) -> None:
    """Overrides of another cluster, or of one that is not known, could cost data."""
    data = node(tmp_path / "data")
    same, other = node(tmp_path / "m", metadata=True), node(tmp_path / "o", cluster="x", metadata=True)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    assert find_metadata(RealFiles(), [data], same) is not None
    assert find_metadata(RealFiles(), [data], other) is None
    assert find_metadata(RealFiles(), [str(foreign)], same) is None


def test_directory_without_owner_may_have_metadata(tmp_path: Path) -> None:
    """A copy without meta.properties: the node is then not known."""
    log(tmp_path / "__cluster_metadata-0", log_0=batch(0, [SAMPLE_TOPIC]))
    found = find_metadata(RealFiles(), [str(tmp_path)], str(tmp_path))
    assert found is not None
    assert found.node_id is None


@pytest.mark.parametrize("other", [{"cluster": "x"}, {"node_id": 2}])
def test_directories_of_different_nodes_are_refused(tmp_path: Path, other: dict[str, object]) -> None:
    """One run, one node: its overrides would be applied to the other's logs."""
    dirs = [node(tmp_path / "a"), node(tmp_path / "b", **other)]  # type: ignore[arg-type]
    with pytest.raises(BadUsage, match="different nodes"):
        find_metadata(RealFiles(), dirs, dirs[0])


def test_directories_are_told_apart_by_node(tmp_path: Path) -> None:
    """Those of nobody, or whose owner cannot be read, are with the only node; beside several they are no node's."""
    first, second = node(tmp_path / "a"), node(tmp_path / "b")
    other, namesake = node(tmp_path / "c", node_id=2), node(tmp_path / "d", cluster="x")
    nobodys, bad = str(tmp_path / "e"), node(tmp_path / "f")
    Path(bad, "meta.properties").write_text("version=7\n")
    alone = [first, nobodys, second, bad]
    assert by_node(RealFiles(), alone) == [tuple(alone)]
    of_three = [first, other, nobodys, second, namesake, bad]
    assert by_node(RealFiles(), of_three) == [(first, second), (other,), (nobodys,), (namesake,), (bad,)]


def test_a_node_whose_metadata_may_lie_where_nobody_can_read_is_not_taken_for_one_without(
    tmp_path: Path,
) -> None:
    """Its logs would be cleaned by defaults. A node that has its own goes on."""
    mine, others = node(tmp_path / "a"), node(tmp_path / "b", node_id=2)
    nobodys, bad = str(tmp_path / "c"), node(tmp_path / "d")
    for log_dir in (others, bad):
        Path(log_dir, "__cluster_metadata-0").mkdir()
    Path(bad, "meta.properties").write_text("version=7\n")
    nodes = by_node(RealFiles(), [mine, others, nobodys, bad])
    assert nodes == [(mine, bad), (others,), (nobodys,)]
    with pytest.raises(CorruptFile, match=f"^{bad}/meta.properties"):
        find_metadata(RealFiles(), nodes[0], mine)


@pytest.mark.parametrize(("content", "error"), [(None, DirOffline), ("version=1\n", CorruptFile)])
def test_meta_properties_that_cannot_be_read_are_an_error(
    tmp_path: Path, content: str | None, error: type[CleanerdError]
) -> None:
    """Whose directory it is must be known or absent: it is not one of nobody."""
    path = tmp_path / "meta.properties"
    path.mkdir() if content is None else path.write_text(content)
    with pytest.raises(error, match=r"meta\.properties"):
        find_metadata(RealFiles(), [str(tmp_path)], "/nowhere")


def test_a_log_dir_that_fails_keeps_nobody_from_metadata_that_lies_elsewhere(tmp_path: Path) -> None:
    """A1: it is in any of the directories. A daemon starts, and reloads, although one of them is broken."""
    bad, good = tmp_path / "bad", node(tmp_path / "good", node_id=4, metadata=True)
    (bad / "meta.properties").mkdir(parents=True)
    found = find_metadata(RealFiles(), [str(bad), node(tmp_path / "first", node_id=4), good], "/nowhere")
    assert found is not None
    assert (found.node_id, found.directory) == (4, f"{good}/__cluster_metadata-0")


def test_a_log_dir_that_fails_is_an_error_where_the_metadata_may_be_there(tmp_path: Path) -> None:
    """Without what the cluster overrides, a compacted topic could pass for one that is deleted after a week."""
    bad, good = tmp_path / "bad", node(tmp_path / "good")
    (bad / "meta.properties").mkdir(parents=True)
    assert find_metadata(RealFiles(), [str(bad), good], good) is None
    (bad / "__cluster_metadata-0").mkdir()
    with pytest.raises(DirOffline, match=r"meta\.properties"):
        find_metadata(RealFiles(), [str(bad), good], good)


def test_of_a_dead_log_dir_nothing_is_known(tmp_path: Path) -> None:
    """Beside a broker's it may have the metadata; alone, or beside a writer's, it is nobody's."""
    good, writers = node(tmp_path / "good"), str(tmp_path)

    class Dead(RealFiles):
        def exists(self, path: str) -> bool:
            if "/dead/" in path:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return super().exists(path)

    assert find_metadata(Dead(), ["/dead/logs"], "/nowhere") is None
    assert find_metadata(Dead(), ["/dead/logs", writers], "/nowhere") is None
    with pytest.raises(DirOffline, match="/dead/logs"):
        find_metadata(Dead(), ["/dead/logs", good], "/nowhere")


@pytest.mark.parametrize(
    ("level", "release"),
    [
        (None, None),
        (7, "3.3"),
        (8, "3.4"),
        (11, "3.5"),
        (14, "3.6"),
        (19, "3.7"),
        (20, "3.8"),
        (21, "3.9"),
        (22, "4.0"),
        (25, "4.0"),
        (27, "4.1"),
        (29, "4.2"),
        (30, "4.3"),
        (33, "4.4"),
        (34, None),
    ],
)
def test_the_release_is_the_one_as_which_the_broker_was_last_started(
    tmp_path: Path, level: int | None, release: str | None
) -> None:
    """F3: a broker names the highest metadata.version that it knows, each time it starts; others do so as well."""
    frames = [broker(1, 20), broker(2, 20), broker(1, level), broker(2, 20)]
    directory = str(log(tmp_path, log_0=batch(0, frames)))
    assert read_metadata(RealFiles(), directory, 1).release == release
    assert read_metadata(RealFiles(), directory).release is None, "whose directory it is is not known"


QUORUMS = {
    "alone": ('{"currentVoters":[{"voterId":1}],"data_version":0}', None, False),
    "of two": ('{"currentVoters":[{"voterId":1},{"voterId":2}],"data_version":0}', None, True),
    "observer": ('{"currentVoters":[{"voterId":2}],"data_version":0}', None, True),
    "asks": ('{"currentVoters":[],"data_version":0}', None, True),
    "upgraded": ('{"currentVoters":[{"voterId":1}],"data_version":0}', voters(1, 2), True),
    "alone by the log": ('{"leaderId":1,"data_version":1}', voters(1), False),
    "of two by the log": ('{"leaderId":1,"data_version":1}', voters(1, 2), True),
    "observer by the log": ('{"leaderId":1,"data_version":1}', voters(3), True),
    "unknown": (None, None, True),
}


@pytest.mark.parametrize(("quorum_state", "record", "has_other_voters"), QUORUMS.values(), ids=QUORUMS)
def test_whether_other_nodes_may_change_the_metadata(
    tmp_path: Path, quorum_state: str | None, record: bytes | None, has_other_voters: bool
) -> None:
    """A8, C2: the voters are in `quorum-state`, from kraft.version 1 on in the log; the last record holds."""
    data = batch(0, [SAMPLE_TOPIC])
    if record is not None:
        data += control(1, ControlType.KRAFT_VOTERS, voters(1, 2, 3, 4))
        data += control(2, ControlType.KRAFT_VOTERS, record)
    directory = log(tmp_path, log_0=data)
    if quorum_state is not None:
        (directory / "quorum-state").write_text(quorum_state)
    assert read_metadata(RealFiles(), str(directory), 1).has_other_voters == has_other_voters


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"currentVoters":[1]}',
        '{"currentVoters":5}',
        '{"currentVoters":[{"voterId":1e400}]}',
        "[" * 99_999,
    ],
)
def test_damaged_quorum_state_is_an_error(tmp_path: Path, text: str) -> None:
    directory = log(tmp_path, log_0=batch(0, [SAMPLE_TOPIC]))
    (directory / "quorum-state").write_text(text)
    with pytest.raises(CorruptFile, match=r"quorum-state: at byte 0: expected the JSON of a quorum's state"):
        read(directory)


def test_malformed_record_of_voters_is_an_error(tmp_path: Path) -> None:
    directory = log(tmp_path, log_0=control(0, ControlType.KRAFT_VOTERS, voters(1, 2)[:-3]))
    with pytest.raises(CorruptFile, match="a whole record of voters"):
        read(directory)
