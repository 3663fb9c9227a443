"""A daemon below strace, which makes system calls on some files fail or last."""

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness.daemon.processes import DaemonProcess
from tests.harness.programs import need

PATIENCE_S = 600  # a JVM below strace, on a busy machine, may need a second start
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
    """Beginning of a command line: what follows meets the fault in these calls (comma between) on these files.

    Names are made, changed and taken away below the descriptor of a directory: of such calls name that.
    """
    options = f"-f -D --seccomp-bpf -o /dev/null -e trace={calls} -e inject={calls}:{fault}".split()
    return (need("strace", "strace"), *options, *(word for path in paths for word in ("-P", str(path))))


def staged_files(partition: Path) -> list[Path]:
    """What the cleaning of a log stages."""
    bases = {int(log.stem) + one for log in partition.glob("*.log") for one in range(3)}
    return [partition / f"{base:020d}{kind}.cleanerd" for base in sorted(bases) for kind in STAGED_KINDS]


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
