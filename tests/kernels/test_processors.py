"""Kernels for another processor than this one: numba compiles for the one that `NUMBA_CPU_NAME` names."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import crc32c as crc32c_package
import numpy as np
import pytest

from cleanerd.kernels import crc
from cleanerd.kernels.crc import crc32c, crc32c_of_three
from tests.harness.kernels.small_log import SmallLog

_FEATURES = {"generic": "", "haswell": "+sse4.2,+crc32,+pclmul,+popcnt,+avx,+avx2,+bmi,+bmi2,+fma"}


@pytest.mark.soak
@pytest.mark.parametrize("name", _FEATURES)
def test_a_processor_without_the_instruction_has_another_way(tmp_path: Path, name: str) -> None:
    """An instruction that the compiler's processor lacks ends the process: LLVM cannot select it."""
    if name == "haswell" and platform.machine() != "x86_64":
        pytest.skip("a processor of x86-64")
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(tmp_path), name],
        env=os.environ | {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": _FEATURES[name]},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def check(directory: Path, name: str) -> None:
    """The same checksums as the package's, and with no instruction at all a cleaned log that agrees with the twin."""
    assert not crc.IS_FOLDING
    assert (crc.crc_step8 is crc.crc_step8_table) == (name == "generic")
    data = bytes(range(256)) * 4
    buffer = np.frombuffer(bytearray(data), np.uint8)
    places = [(start, 14 * start) for start in range(60)]
    expected = [crc32c_package.crc32c(data[start:end]) for start, end in places]
    assert [int(crc32c(buffer, start, end)) for start, end in places] == expected
    three = crc32c_of_three(buffer, *places[7], *places[20], *places[59])
    assert list(map(int, three)) == [expected[7], expected[20], expected[59]]
    if name != "generic":
        return
    log = SmallLog(directory)
    for number in range(40):
        log.append(number % 7, number % 3, value=b"%d" % number * 9)
        if number % 10 == 9:
            log.roll()
    log.clean_twice(0)


if __name__ == "__main__":
    check(Path(sys.argv[1]), sys.argv[2])
