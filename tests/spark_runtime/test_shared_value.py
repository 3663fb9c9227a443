"""What tasks share lies in a file that they map, and comes out as it was put in (architecture 4)."""

import multiprocessing
from pathlib import Path

import numpy as np
import psutil
import pytest

from cleanerd.kernels.newest import key_set, look_up, mark_superseded, new_set
from cleanerd.spark_runtime.shared_value import SharedFile

FORK = multiprocessing.get_context("fork")


def fingerprints(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 2**63, (count, 2), np.uint64)


def test_a_value_comes_out_as_it_was(tmp_path: Path) -> None:
    """Arrays of any type, size and order, empty ones too, and what is no array."""
    value = {
        "none": None,
        ("a", 1): np.arange(7, dtype=np.int64),
        "odd": np.arange(13, dtype=np.uint8),
        "empty": np.empty((0, 2), np.uint64),
        "flags": np.array([True, False]),
        "rows": np.zeros(3, np.dtype([("a", "i8"), ("b", "u1")])),
        "columns": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "every other": np.arange(10)[::2],
    }
    found = SharedFile.of(str(tmp_path), value).value
    assert found.keys() == value.keys()
    assert found["none"] is None
    for key in value.keys() - {"none"}:
        np.testing.assert_array_equal(found[key], value[key])
        assert found[key].dtype == value[key].dtype
        assert found[key].flags.writeable
        assert found[key].flags.aligned


def test_a_worker_changes_its_own_copy_only(tmp_path: Path) -> None:
    shared = SharedFile.of(str(tmp_path), np.arange(5))
    mine = shared.value
    mine[:] = 9
    np.testing.assert_array_equal(shared.value, np.arange(5))


def test_what_was_mapped_outlives_its_file(tmp_path: Path) -> None:
    """The directory of a job goes as soon as the job has its answers, or is given up while a task still works."""
    shared = SharedFile.of(str(tmp_path), fingerprints(100_000, 1))
    found = shared.value
    Path(shared.path).unlink()
    np.testing.assert_array_equal(found, fingerprints(100_000, 1))


@pytest.mark.soak
def test_arrays_are_in_memory_once(tmp_path: Path) -> None:
    """However many workers ask for a set of keys: they map the same pages, and copy none of them."""
    table = new_set(200_000)
    mark_superseded(fingerprints(200_000, 2), 0, table)
    shared = SharedFile.of(str(tmp_path), {0: key_set({0: table}, 1)})

    def ask(connection: object) -> None:
        keys = shared.value[0]
        found = look_up(keys, fingerprints(200_000, 2), np.zeros(200_000, np.int32))
        (mapping,) = [
            area for area in psutil.Process().memory_maps(grouped=False) if area.path == shared.path
        ]
        connection.send((int(found.sum()), mapping.anonymous))  # type: ignore[attr-defined]

    receiving, sending = FORK.Pipe(duplex=False)
    worker = FORK.Process(target=ask, args=(sending,))
    worker.start()
    sending.close()
    assert receiving.recv() == (200_000, 0)
    worker.join()
