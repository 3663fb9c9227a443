"""Blocks that lie in files between two steps are those that were shipped (architecture 4)."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanerd.spark_runtime.block_store import StoredBytes, block_file, load, travelling

SIZES = st.lists(st.integers(0, 300), max_size=8)


def blocks(sizes: list[int]) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.integers(0, 256, size, np.uint8) for size in sizes]


@given(SIZES)
def test_every_block_comes_back(tmp_path_factory: pytest.TempPathFactory, sizes: list[int]) -> None:
    """In any order, empty ones, too."""
    directory = tmp_path_factory.mktemp("blocks")
    expected = blocks(sizes)
    with block_file(str(directory)) as put:
        shipped = [put(block) for block in expected]
    for one, block in list(zip(shipped, expected, strict=True))[::-1]:
        assert isinstance(one, StoredBytes)
        assert one.nbytes == block.nbytes
        np.testing.assert_array_equal(load(one), block)


def test_without_a_directory_blocks_travel() -> None:
    (block,) = blocks([3])
    with travelling() as put:
        assert put(block) is block
        assert load(put(block)) is block


def test_tasks_write_to_files_of_their_own(tmp_path: Path) -> None:
    """One that ships nothing writes none."""
    first, second = blocks([40, 50])
    directory = str(tmp_path)
    with block_file(directory) as put, block_file(directory) as put_other, block_file(directory):
        shipped = put(first), put_other(second)
    np.testing.assert_array_equal(load(shipped[0]), first)
    np.testing.assert_array_equal(load(shipped[1]), second)
    assert len(os.listdir(tmp_path)) == 2


def test_a_file_that_ends_inside_a_block_is_an_error(tmp_path: Path) -> None:
    (block,) = blocks([160])
    with block_file(str(tmp_path)) as put:
        shipped = put(block)
    assert isinstance(shipped, StoredBytes)
    os.truncate(shipped.path, 100)
    with pytest.raises(EOFError, match="60 bytes before the end of a block"):
        shipped.load()
