"""Keys on several partitions of a topic."""

import json
from base64 import b64decode
from collections import defaultdict
from pathlib import Path

import pytest

from cleanerd.cli.main import main
from cleanerd.format.batch import encode_batch
from cleanerd.format.record import Record
from cleanerd.tools.client.reader import read_records
from cleanerd.tools.insight.spread import default_partition, find_spread
from tests.tools.insight.logdirs import segment

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the import of the library
VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def test_keys_belong_where_kafkas_default_partitioner_puts_them() -> None:
    """The hashes of Kafka's own test."""
    expected = {key: vector & 0x7FFFFFFF for key, vector in VECTORS.items()}
    assert {key: default_partition(key, 1 << 31) for key in VECTORS} == expected


def write(log_dir: Path, partition: int, records: list[tuple[bytes, bytes | None, int]]) -> str:
    directory = log_dir / f"t-{partition}"
    directory.mkdir(parents=True)
    made = [Record(i, time_ms, key, value, ()) for i, (key, value, time_ms) in enumerate(records)]
    segment(directory, 0).write_bytes(encode_batch(made, base_offset=0))
    return str(directory)


def expanded_topic(log_dir: Path) -> dict[int, str]:
    """Written with one partition, then with three; some keys came back, one was deleted where it lay before."""
    old = [(b"k%d" % i, b"old", i) for i in range(60)]
    parts = defaultdict(list, {0: [*old, (b"k7", None, 500)]})
    for i in range(0, 60, 2):
        key = b"k%d" % i
        parts[default_partition(key, 3)].append((key, b"new", 1000 + i))
    parts[2].append((b"k7", b"new", 600))
    return {partition: write(log_dir, partition, records) for partition, records in parts.items()}


def test_what_an_expanded_topic_leaves_behind(tmp_path: Path) -> None:
    """Against the records of all partitions in a dict; each copy but the newest, and what belongs where."""
    directories = expanded_topic(tmp_path)
    newest: dict[bytes, dict[int, Record]] = defaultdict(dict)
    for partition, directory in directories.items():
        for record in read_records(directory):
            newest[record.key or b""][partition] = record
    expected = {
        key: {p: record.offset for p, record in copies.items() if record.value is not None}
        for key, copies in newest.items()
        if sum(record.value is not None for record in copies.values()) > 1
    }
    found = find_spread(directories)
    assert {one.key: {copy.partition: copy.offset for copy in one.copies} for one in found.listed} == expected
    assert found.keys == (len(expected), 0)
    assert b"k7" not in expected
    for one in found.listed:
        assert one.home == one.copies[0].partition == default_partition(one.key, 3)
        assert list(one.steps()) == [{"write": "tombstone", "partition": 0}]
    assert 0 < found.bytes < 60 * 80


def test_the_newest_value_is_written_home_first(tmp_path: Path) -> None:
    key = b"k1"
    home = default_partition(key, 2)
    times = {home: 5, 1 - home: 9}
    directories = {p: write(tmp_path, p, [(key, b"v", time_ms)]) for p, time_ms in times.items()}
    (one,) = find_spread(directories).listed
    assert list(one.steps()) == [
        {"write": "copy", "partition": home, "of": 1 - home, "offset": 0},
        {"write": "tombstone", "partition": 1 - home},
    ]


def test_a_sample_of_keys(tmp_path: Path) -> None:
    """The same keys on both partitions are in the sample, whatever their number."""
    records = [(b"key-%d" % i, b"v", i) for i in range(4000)]
    directories = {p: write(tmp_path, p, records[: 4000 - 2000 * p]) for p in (0, 1)}
    found = find_spread(directories, keys_max=600)
    assert abs(found.keys.value - 2000) < 3 * found.keys.error
    assert len(found.listed) < 600


def test_the_plan_is_a_line_for_each_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directories = expanded_topic(tmp_path / "logs")
    plan = tmp_path / "plan.jsonl"
    assert main(["inspect", f"--log-dir={tmp_path / 'logs'}", "--repair-plan", str(plan)]) == 0
    lines = [json.loads(line) for line in plan.read_text().splitlines()]
    listed = find_spread(directories).listed
    assert {b64decode(line["key_base64"]) for line in lines} == {one.key for one in listed}
    assert lines[0]["steps"] == [{"write": "tombstone", "partition": 0}]
    assert f"t: {len(listed)} keys are on several of its 3 partitions" in capsys.readouterr().err
