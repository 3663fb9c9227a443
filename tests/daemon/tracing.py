"""A daemon below strace, which makes system calls on some files fail or last."""

import errno
import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cleanerd.format.names import FileKind, SegmentFileName, Suffix
from tests.daemon.processes import DaemonProcess
from tests.operate.tools import need

PATIENCE_S = 300
STAGED_KINDS = (".log", ".index", ".timeindex", ".part")
RENAMES = "rename,renameat,renameat2"
SYNCS = "fsync,fdatasync"


def failing(error: int) -> str:
    """The call fails and does nothing."""
    return f"error={errno.errorcode[error]}"


def lasting(seconds: float) -> str:
    """The call works, and takes so long."""
    return f"delay_exit={int(seconds * 1_000_000)}"


def injecting(calls: str, fault: str, paths: Iterable[Path]) -> tuple[str, ...]:
    """Beginning of a command line: what follows meets the fault in these calls (comma between) on these files."""
    options = f"-f -D --seccomp-bpf -o /dev/null -e trace={calls} -e inject={calls}:{fault}".split()
    return (need("strace", "strace"), *options, *(word for path in paths for word in ("-P", str(path))))


def staged_files(partition: Path) -> list[Path]:
    """What the cleaning of a log stages."""
    bases = {int(log.stem) + one for log in partition.glob("*.log") for one in range(3)}
    return [partition / f"{base:020d}{kind}.cleanerd" for base in sorted(bases) for kind in STAGED_KINDS]


def committed_files(partition: Path) -> list[Path]:
    """Names that the segments of a log have in a commit, one after the other."""
    bases = sorted(int(log.stem) for log in partition.glob("*.log"))
    kinds = (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX)
    named = itertools.product(bases, kinds, (Suffix.CLEANED, Suffix.SWAP))
    return [partition / str(SegmentFileName(*name)) for name in named]


class Traced(DaemonProcess):
    """A daemon below strace; its pid is its own."""

    tracing: tuple[str, ...] = ()
    start_s = PATIENCE_S

    def arguments(self) -> list[str]:
        return [*self.tracing, *super().arguments()]


@contextmanager
def traced(
    directory: Path, tracing: tuple[str, ...], *log_dirs: Path, **settings: object
) -> Iterator[DaemonProcess]:
    """One that is ready; killed at the end, if it still lives."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    daemon = Traced(directory, list(log_dirs), {"cleanerd.retry.max": 100, **named})
    daemon.tracing = tracing
    with daemon:
        yield daemon.start()
