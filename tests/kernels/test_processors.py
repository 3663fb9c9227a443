"""Kernels for another processor than this one: numba compiles for the one that `NUMBA_CPU_NAME` names."""

import os
import subprocess
import sys
from pathlib import Path

import crc32c as crc32c_package
import numpy as np
import pytest

from cleanerd.kernels import native
from cleanerd.kernels.native import crc32c, crc32c_of_three
from tests.kernels.small_log import SmallLog


@pytest.mark.soak
def test_a_processor_without_the_instruction_has_the_table(tmp_path: Path) -> None:
    """An instruction that the compiler's processor lacks ends the process: LLVM cannot select it."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(tmp_path)],
        env=os.environ | {"NUMBA_CPU_NAME": "generic"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def check(directory: Path) -> None:
    """The same checksums as the package's, and a cleaned log that agrees with the twin."""
    assert native.crc_step8 is native.crc_step8_table
    data = bytes(range(256)) * 4
    buffer = np.frombuffer(bytearray(data), np.uint8)
    places = [(start, 14 * start) for start in range(60)]
    expected = [crc32c_package.crc32c(data[start:end]) for start, end in places]
    assert [int(crc32c(buffer, start, end)) for start, end in places] == expected
    three = crc32c_of_three(buffer, *places[7], *places[20], *places[59])
    assert list(map(int, three)) == [expected[7], expected[20], expected[59]]
    log = SmallLog(directory)
    for number in range(40):
        log.append(number % 7, number % 3, value=b"%d" % number * 9)
        if number % 10 == 9:
            log.roll()
    log.clean_twice(0)


if __name__ == "__main__":
    check(Path(sys.argv[1]))
