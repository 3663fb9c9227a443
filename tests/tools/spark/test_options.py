"""Options of `kafka-segments`: what they mean, and what is said about those that make no sense."""

from pathlib import Path

import pytest

from cleanerd.errors import BadUsage
from cleanerd.format.names import MAX_OFFSET, TopicPartition
from cleanerd.tools.spark.options import COLUMN_TYPES, COLUMNS, parse_options
from tests.harness.logs.logdirs import GOLDEN

PATH = str(GOLDEN)


def topics(**options: str) -> set[str]:
    found = parse_options({"path": PATH, **options}).partition_dirs()
    return {tp.topic for tp, _ in found}


def test_defaults() -> None:
    """Everything, as a consumer that is not told otherwise."""
    options = parse_options({"PATH": PATH})
    assert (options.isolation, options.columns, options.on_corrupt) == ("read_uncommitted", COLUMNS, "fail")
    assert options.bounds(TopicPartition("plain", 0)) == (0, MAX_OFFSET)
    assert {tp.topic for tp, _ in options.partition_dirs()} == {
        path.name.removesuffix("-0") for path in GOLDEN.iterdir() if path.is_dir()
    }


def test_selections() -> None:
    assert topics(subscribe="plain, zstd") == {"plain", "zstd"}
    assert topics(subscribePattern="snappy.*") == {"snappy", "snappy-bare"}
    assert topics(assign='{"plain": [0], "zstd": [1]}') == {"plain"}


def test_paths(tmp_path: Path) -> None:
    """Log directories, partition directories, globs; the same directory once; what is being deleted is none."""
    found = parse_options({"path": f"{PATH}/plain-0, {PATH}/sn*-0, {PATH}/plain-0"}).partition_dirs()
    assert [tp.topic for tp, _ in found] == ["plain", "snappy", "snappy-bare"]
    (tmp_path / f"t-0.{'0' * 32}-delete").mkdir()
    assert parse_options({"path": str(tmp_path)}).partition_dirs() == []
    with pytest.raises(BadUsage, match="nothing matches"):
        parse_options({"path": str(tmp_path / "nowhere")}).partition_dirs()


def test_a_partition_in_two_places_is_refused(tmp_path: Path) -> None:
    """Replicas of two brokers: each record would come twice."""
    for broker in ("a", "b"):
        (tmp_path / broker / "t-0").mkdir(parents=True)
    with pytest.raises(BadUsage, match=f"t-0 lies in {tmp_path}/a/t-0 and in {tmp_path}/b/t-0"):
        parse_options({"path": f"{tmp_path}/*"}).partition_dirs()


def test_offsets() -> None:
    """As Spark's Kafka source writes them."""
    options = parse_options(
        {
            "path": PATH,
            "startingOffsets": '{"t": {"0": 5, "1": -2}}',
            "endingOffsets": '{"t": {"0": 9, "1": -1}}',
        }
    )
    assert options.bounds(TopicPartition("t", 0)) == (5, 9)
    assert options.bounds(TopicPartition("t", 1)) == options.bounds(TopicPartition("t", 2)) == (0, MAX_OFFSET)


def test_times() -> None:
    """One for all wins over those of partitions, and these over offsets."""
    tp, other = TopicPartition("t", 0), TopicPartition("t", 1)
    given = {"startingOffsetsByTimestamp": '{"t": {"0": 70}}', "startingOffsets": '{"t": {"0": 5, "1": 6}}'}
    options = parse_options({"path": PATH, **given})
    assert (options.starting.timestamp_of(tp), options.bounds(tp)) == (70, (0, MAX_OFFSET))
    assert (options.starting.timestamp_of(other), options.bounds(other)) == (None, (6, MAX_OFFSET))
    options = parse_options({"path": PATH, **given, "startingTimestamp": "90", "endingTimestamp": "95"})
    assert (options.starting.timestamp_of(tp), options.ending.timestamp_of(other)) == (90, 95)


def test_columns() -> None:
    """What is included can be named."""
    options = {"path": PATH, "includeControl": "true", "includeHeaders": "true"}
    assert parse_options(options).columns == (*COLUMNS, "headers", "_is_control")
    assert parse_options({**options, "includeBatch": "true"}).columns == tuple(COLUMN_TYPES)
    assert parse_options({**options, "columns": "_is_control,key"}).columns == ("_is_control", "key")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"path": ""}, "path is required"),
        ({"subscribes": "t"}, "unknown option subscribes"),
        ({"subscribe": "t", "assign": "{}"}, "only one of"),
        ({"isolation": "serializable"}, "option isolation"),
        ({"columns": "key,colour"}, "option columns"),
        ({"columns": "headers"}, "option columns"),
        ({"subscribePattern": "("}, "option subscribePattern"),
        ({"assign": "[1]"}, "option assign"),
        ({"startingOffsets": "newest"}, "option startingOffsets"),
        ({"endingOffsets": '{"t": 5}'}, "option endingOffsets"),
        ({"startingTimestamp": "today"}, "option startingTimestamp"),
        ({"endingOffsetsByTimestamp": "5"}, "option endingOffsetsByTimestamp"),
        ({"columns": "_codec"}, "option columns"),
        ({"maxBytesPerPartition": "0"}, "option maxBytesPerPartition"),
        ({"includeHeaders": "yes"}, "option includeHeaders"),
    ],
)
def test_what_makes_no_sense(options: dict[str, str], told: str) -> None:
    with pytest.raises(BadUsage, match=told):
        parse_options({"path": PATH, **options})
