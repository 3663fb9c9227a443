"""Two keys bound the memory of a cleaning: log.cleaner.dedupe.buffer.size and log.cleaner.io.buffer.size (rule 4.39)."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from cleanerd.format.codecs import Codec
from tests.harness.logs.synthetic import Shape, write_log

MIB = 1 << 20
CHUNK_BYTES, LEAST_DEDUPE_BYTES = 4 * MIB, 4 * MIB
LEAST_IO_BYTES = 2 * MIB + CHUNK_BYTES * 5 // 2
"""What a task takes where its share of log.cleaner.io.buffer.size is less."""
SPARE_BYTES = 24 * MIB
"""What the allocator keeps (16 MiB), and what one chunk needs while it is walked."""
_CLEANERD = "import sys; from cleanerd.cli.main import main; sys.exit(main())"


def peaks(root: psutil.Process) -> Iterator[tuple[int, int]]:
    """Process and resident bytes at its peak: of a command and its Python processes, as the kernel has kept them."""
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.Error, OSError, IndexError):  # one that has ended has no memory
            if "python" in Path(process.exe()).name:
                status = Path(f"/proc/{process.pid}/status").read_text()
                yield process.pid, int(status.partition("VmHWM:")[2].split()[0]) << 10


def worker_peak_bytes(log: Path, *sizes: str) -> int:
    """The largest process of a command with one worker, but for the command itself."""
    log_dir = log.with_name("log dir")
    shutil.copytree(log, log_dir / "t-0")
    topic = ("cleanup.policy=compact", "cleanerd.compression=topic", "compression.type=uncompressed")
    settings = ("log.cleaner.threads=1", f"cleanerd.chunk.bytes={CHUNK_BYTES}", *sizes)
    options = [*(f"--topic-set=t:{one}" for one in topic), *(f"--set={one}" for one in settings)]
    found: dict[int, int] = {}
    with subprocess.Popen(
        [sys.executable, "-c", _CLEANERD, "clean", "--log-dir", log_dir, "--force", *options],
        stdout=subprocess.PIPE, text=True,
    ) as command:  # fmt: skip
        while command.poll() is None:
            with suppress(psutil.Error):
                found |= peaks(psutil.Process(command.pid))
            with suppress(subprocess.TimeoutExpired):
                command.wait(0.01)
        assert command.stdout is not None
        assert "committed" in command.stdout.read()
    shutil.rmtree(log_dir)
    return max(peak for pid, peak in found.items() if pid != command.pid)


@pytest.mark.soak
def test_two_keys_bound_the_memory_of_a_worker(tmp_path: Path) -> None:
    """Of what it holds for keys, and of what it writes. The floor of the second is what one chunk needs."""
    small, keys, growing = tmp_path / "small", tmp_path / "keys", tmp_path / "growing"
    write_log(small, 128, Shape(keys=7, value_bytes=10), 1)
    write_log(keys, 4_700_032, Shape(keys=4_000_001, value_bytes=10), 1)  # 75 MB of fingerprints
    compressed = Shape(keys=290_001, value_bytes=1000, codec=Codec.ZSTD, random_bytes=20)
    write_log(growing, 400_000, compressed, 1)  # 10 MB; a chunk of it becomes more than 80 MB
    dedupe = f"log.cleaner.dedupe.buffer.size={LEAST_DEDUPE_BYTES}"
    base_bytes = worker_peak_bytes(small, dedupe)
    bound_bytes = base_bytes + LEAST_DEDUPE_BYTES + SPARE_BYTES
    assert worker_peak_bytes(keys, dedupe) < bound_bytes + LEAST_IO_BYTES
    assert worker_peak_bytes(growing, dedupe) < bound_bytes + LEAST_IO_BYTES
    large = worker_peak_bytes(growing, dedupe, f"log.cleaner.io.buffer.size={64 * MIB}")
    assert bound_bytes + LEAST_IO_BYTES < large < bound_bytes + 64 * MIB
