"""The workloads of the benchmark: what a seed makes is always the same, and is what the table says."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cleanerd.format.batch import decode_batch, iterate_batches
from cleanerd.format.codecs import Codec
from cleanerd.format.offset_index import parse_offset_index
from tests.bench.contents import contents
from tests.bench.neighbours import resident_bytes
from tests.bench.processes import PAGE_BYTES
from tests.bench.sides import place
from tests.bench.workloads import WORKLOADS, Built, Workload, build

SCALE = 1 / 1024


def tiny(name: str) -> Workload:
    return replace(WORKLOADS[name].scaled(SCALE), logs=min(WORKLOADS[name].logs, 2))


def digest(built: Built) -> str:
    found = hashlib.sha256()
    for path in sorted(built.directory.rglob("*")):
        if path.is_file() and path.suffix != ".json":
            found.update(str(path.relative_to(built.directory)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


@pytest.mark.parametrize("name", ["W1", "W2", "W3", "W4", "W5", "W6", "W7", "W8", "W9"])
def test_a_seed_makes_the_same_bytes(name: str, tmp_path: Path) -> None:
    first, again, other = (
        build(tiny(name), seed, tmp_path / where) for seed, where in ((1, "a"), (1, "b"), (2, "a"))
    )
    assert digest(first) == digest(again) != digest(other)
    assert first.logs == again.logs


@pytest.mark.parametrize("name", ["W1", "W2", "W3", "W4", "W7"])
def test_the_log_is_what_its_account_says(name: str, tmp_path: Path) -> None:
    built = build(tiny(name), 1, tmp_path)
    codec = {"W3": Codec.LZ4, "W4": Codec.ZSTD}.get(name, Codec.NONE)
    newest: dict[bytes, int] = {}
    count = 0
    for path in built.log_files():
        data = path.read_bytes()
        starts = [position for position, _, _ in iterate_batches(data)]
        for start in starts:
            header, records = decode_batch(data, start)
            assert header.codec == codec
            for record in records:
                assert record.offset == count
                assert record.key is not None
                newest[record.key] = count
                count += 1
        index = parse_offset_index(path.with_suffix(".index").read_bytes(), int(path.stem))
        assert len(index.positions)
        assert set(index.positions.tolist()) <= set(starts)
    (log,) = built.logs
    assert (log.records, log.survivors, log.end) == (count, len(newest), count)
    assert built.bytes == sum(path.stat().st_size for path in built.log_files())
    assert contents([built.directory / "0"]).records == count


def test_what_is_clean_fills_segments_of_its_own_with_every_key_once(tmp_path: Path) -> None:
    built = build(tiny("W7"), 1, tmp_path)
    (log,) = built.logs
    bases = [int(path.stem) for path in built.log_files()]
    assert log.clean_end in bases
    keys = [
        record.key
        for path in built.log_files()
        if int(path.stem) < log.clean_end
        for position, _, _ in iterate_batches(path.read_bytes())
        for record in decode_batch(path.read_bytes(), position)[1]
    ]
    assert len(keys) == len(set(keys)) == log.clean_end
    assert 0 < log.records - log.survivors < 0.05 * log.records


@pytest.mark.parametrize("name", [name for name in WORKLOADS if "-" in name])
def test_a_variant_has_the_bytes_of_its_workload(name: str, tmp_path: Path) -> None:
    plain = build(tiny(WORKLOADS[name].data_name), 1, tmp_path)
    times = {path: path.stat().st_mtime_ns for path in plain.log_files()}
    variant = build(tiny(name), 1, tmp_path)
    assert variant.workload.name == name
    assert {path: path.stat().st_mtime_ns for path in variant.log_files()} == times, "made once for both"


@pytest.mark.parametrize(("name", "share"), [("W1", 1), ("W1-cold", 0)])
def test_a_round_finds_a_log_in_the_page_cache_or_on_the_disk_alone(
    name: str, share: int, tmp_path: Path
) -> None:
    built = build(tiny(name), 1, tmp_path)
    built.copy(0, tmp_path / "copy")
    files = list((tmp_path / "copy").glob("*.log"))
    place(built, files)
    if resident_bytes(files) and share == 0:
        pytest.skip("a file system without a page cache of its own (tmpfs)")
    pages = sum(-(-path.stat().st_size // PAGE_BYTES) for path in files)
    assert resident_bytes(files) == share * pages * PAGE_BYTES


def test_a_copy_has_the_same_bytes_and_times_and_no_index_if_so_asked(tmp_path: Path) -> None:
    built = build(tiny("W1-noindex"), 1, tmp_path / "cache")
    built.copy(0, tmp_path / "copy")
    (original,) = built.log_files()
    copy = tmp_path / "copy" / original.name
    assert copy.read_bytes() == original.read_bytes()
    assert copy.stat().st_mtime_ns == original.stat().st_mtime_ns
    assert [path.stat().st_size for path in (tmp_path / "copy").glob("*.index")] == [0]  # the active one
    assert build(tiny("W1"), 1, tmp_path / "cache").directory == built.directory


def test_a_lost_record_and_an_older_value_change_the_contents(tmp_path: Path) -> None:
    built = build(tiny("W1"), 1, tmp_path)
    whole = contents([built.directory / "0"])
    (path,) = built.log_files()
    data = np.fromfile(path, np.uint8)
    size = next(size for _, size, _ in iterate_batches(data.tobytes()))
    path.write_bytes(data[size:].tobytes())
    lost = contents([built.directory / "0"])
    assert lost.records == whole.records - 128
    assert lost.digest != whole.digest
