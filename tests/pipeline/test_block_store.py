"""Blocks that lie in files between index and resolve are those that were shipped (architecture 4)."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanerd.pipeline.block_store import StoredBlock, block_writer
from cleanerd.pipeline.index import Block
from cleanerd.pipeline.values import PackedBits
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.spark_runtime.scratch import scratch_directory

SIZES = st.lists(st.integers(0, 300), max_size=8)


def blocks(sizes: list[int]) -> list[Block]:
    """Every other one with records that are known to be superseded."""
    rng = np.random.default_rng(1)
    return [
        Block(
            PackedBits.of(np.arange(2 * size) % 2 == 0) if number % 2 else None,
            rng.integers(0, 2**64, (size, 2), np.uint64),
            size // 2,
        )
        for number, size in enumerate(sizes)
    ]


def assert_same(found: Block, expected: Block) -> None:
    assert np.array_equal(found.fingerprints, expected.fingerprints)
    assert found.fingerprints.shape == expected.fingerprints.shape
    assert (found.superseded, found.clean) == (expected.superseded, expected.clean)


@given(SIZES)
def test_every_block_comes_back(tmp_path_factory: pytest.TempPathFactory, sizes: list[int]) -> None:
    """In any order, empty ones, too."""
    directory = tmp_path_factory.mktemp("blocks")
    expected = blocks(sizes)
    with block_writer(str(directory)) as put:
        shipped = [put(block) for block in expected]
    for one, block in list(zip(shipped, expected, strict=True))[::-1]:
        assert isinstance(one, StoredBlock)
        assert_same(one.load(), block)


def test_without_a_directory_blocks_travel() -> None:
    (block,) = blocks([3])
    with block_writer(None) as put:
        assert put(block) is block
        assert put(block).load() is block


def test_tasks_write_to_files_of_their_own(tmp_path: Path) -> None:
    first, second = blocks([40, 50])
    with block_writer(str(tmp_path)) as put, block_writer(str(tmp_path)) as put_other:
        shipped = put(first), put_other(second)
    assert_same(shipped[0].load(), first)
    assert_same(shipped[1].load(), second)
    assert len(os.listdir(tmp_path)) == 2


def test_a_file_that_ends_inside_a_block_is_an_error(tmp_path: Path) -> None:
    (block,) = blocks([10])
    with block_writer(str(tmp_path)) as put:
        shipped = put(block)
    assert isinstance(shipped, StoredBlock)
    os.truncate(shipped.path, 100)
    with pytest.raises(EOFError, match="60 bytes before the end of a block"):
        shipped.load()


def test_the_directory_lasts_as_long_as_its_job(spark: LazySpark) -> None:
    """For this user alone, and nothing is left of it, whatever happens inside."""
    context = spark.context()

    def job() -> None:
        with scratch_directory(context, is_one_machine=True) as directory:
            assert directory is not None
            seen.append(directory)
            assert os.stat(directory).st_mode & 0o077 == 0
            with block_writer(directory) as put:
                put(blocks([5])[0])
            raise KeyError

    seen: list[str] = []
    with pytest.raises(KeyError):
        job()
    assert not os.path.exists(seen[0])
    with scratch_directory(context, is_one_machine=False) as directory:
        assert directory is None
