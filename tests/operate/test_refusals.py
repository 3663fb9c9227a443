"""What a host may refuse: every command works without, or says in a line what is short. No traceback reaches a user."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cleanerd.cli.ctl.verbs import VERBS
from tests.harness.logs.troubled import write_logs
from tests.harness.programs import missing, need

BIN = Path(sys.executable).parent
GOLDEN = Path(__file__).parents[1] / "golden" / "logs"
WITHOUT_SPARK = {
    "version": ("--version",),
    "config check": ("config", "check", "--set", "log.dirs=logs"),
    "config show": ("config", "show", "--set", "log.dirs=logs"),
    "config reference": ("config", "reference"),
    "completion": ("completion", "bash"),
    "verify": ("verify", "--log-dir", "logs"),
    "salvage": ("salvage", "logs/plain-0", "--output", "copy"),
    "broker check": ("broker", "check", "--log-dir", "logs"),
}
CLEAN = ("clean", "--force", "--log-dir", "logs", "--set", "log.cleanup.policy=compact")
ADVICE = (
    "flock,faccessat2,copy_file_range,sync_file_range,mincore,fadvise64,madvise,pidfd_open,memfd_create,close_range,inotify_init1,"
    "inotify_add_watch,sched_setaffinity,sched_setscheduler,ioprio_set,setpriority,statx,rseq,getrandom,mlock,mlockall,setns,"
    "unshare,prctl,sysinfo,io_uring_setup,kill,tgkill"
)
"""Calls without which everything is as with them, only slower or without events."""
HARD = {
    "processes and threads": ("clone,clone3,fork,vfork", "EAGAIN"),
    "processes that end": ("wait4", "EPERM"),
    "which cores there are": ("sched_getaffinity", "EPERM"),
    "sockets": ("socket,socketpair", "EAFNOSUPPORT"),
    "pairs of sockets": ("socketpair", "EPERM"),
    "new directories": ("mkdir,mkdirat", "EROFS"),
    "renames": ("rename,renameat,renameat2,link,linkat", "EPERM"),
    "the owner of files": ("chown,fchown,fchownat,chmod,fchmod,fchmodat", "EPERM"),
    "syncs": ("fsync,fdatasync,sync_file_range", "EIO"),
    "room": ("ftruncate,fallocate,pwrite64,pwritev", "ENOSPC"),
}
"""What some commands cannot do without: those name it."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN, tmp_path / "logs")
    return tmp_path


def ran(
    place: Path, *command: object, before: tuple[str, ...] = (), **environment: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*before, *map(str, command)], cwd=place, env=os.environ | environment, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=300,
    )  # fmt: skip


def refusing(calls: str, error: str) -> tuple[str, ...]:
    """What a command begins with so that the kernel refuses it these calls."""
    strace = (need("strace", "strace"), "-f", "--seccomp-bpf", "-qq", "-o", os.devnull)
    if subprocess.run([*strace, "-e", "trace=flock", "true"], capture_output=True).returncode:
        missing("strace may not trace here")
    return (*strace, "-e", f"trace={calls}", "-e", f"inject={calls}:error={error}")


@pytest.mark.fault("calls, file systems and processes that a host refuses")
@pytest.mark.parametrize("command", WITHOUT_SPARK)
def test_calls_that_old_kernels_and_sandboxes_refuse_are_not_needed(place: Path, command: str) -> None:
    """Seccomp profiles answer EPERM, old kernels and gVisor ENOSYS."""
    words = (BIN / "cleanerd", *WITHOUT_SPARK[command])
    expected = ran(place, *words)
    for error in ("EPERM", "ENOSYS"):
        shutil.rmtree(place / "copy", ignore_errors=True)
        found = ran(place, *words, before=refusing(ADVICE, error))
        assert (found.returncode, found.stdout) == (expected.returncode, expected.stdout), found.stderr
        assert "Traceback" not in found.stderr


@pytest.mark.fault("calls, file systems and processes that a host refuses")
@pytest.mark.soak
@pytest.mark.parametrize(
    ("command", "refusal"),
    [
        *((command, refusal) for command in WITHOUT_SPARK for refusal in HARD),
        *((f"ctl {verb.name}", "sockets") for verb in VERBS),
    ],
)
def test_what_a_command_needs_and_does_not_get_is_a_line(place: Path, command: str, refusal: str) -> None:
    if command in WITHOUT_SPARK:
        words: tuple[object, ...] = (BIN / "cleanerd", *WITHOUT_SPARK[command])
    else:
        words = (
            BIN / "cleanerctl",
            "--socket",
            place / "none",
            command.removeprefix("ctl "),
            "orders-0",
            "5",
        )
    expected = ran(place, *words)
    shutil.rmtree(place / "copy", ignore_errors=True)
    found = ran(place, *words, before=refusing(*HARD[refusal]))
    assert "Traceback" not in found.stderr, found.stderr
    assert found.returncode in (expected.returncode, 1), found.stderr
    assert found.returncode == expected.returncode or found.stderr.startswith(("cleanerd: ", "cleanerctl: "))


@pytest.mark.fault("calls, file systems and processes that a host refuses")
@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("refusal", ["advice", *HARD])
def test_a_cleaning_works_without_or_says_what_is_short(tmp_path: Path, refusal: str) -> None:
    write_logs(tmp_path / "logs", "orders")
    before = refusing(ADVICE, "EPERM") if refusal == "advice" else refusing(*HARD[refusal])
    found = ran(tmp_path, BIN / "cleanerd", *CLEAN, before=before)
    assert "Traceback" not in found.stderr, found.stderr
    if refusal == "advice":
        assert found.returncode == 0, found.stdout + found.stderr
        assert "committed" in found.stdout
    else:
        assert found.returncode in (0, 1)
        assert found.returncode == 0 or found.stderr.startswith("cleanerd: ") or "failed" in found.stdout


@pytest.mark.fault("calls, file systems and processes that a host refuses")
@pytest.mark.soak
@pytest.mark.parametrize("command", [*WITHOUT_SPARK, "clean"])
@pytest.mark.parametrize("hidden", ["temporary directories", "/proc"])
def test_in_a_container_that_lacks_a_file_system(place: Path, command: str, hidden: str) -> None:
    """readOnlyRootFilesystem without a volume at /tmp; no /proc. What only reads needs neither."""
    places = ("/tmp", "/var/tmp", "/dev/shm", "/run") if hidden != "/proc" else ("/proc",)
    if any(BIN.is_relative_to(one) for one in places):
        pytest.skip(f"the installation itself lies below one of {', '.join(places)}")
    own = Path("/srv") / f"cleanerd-test-{os.getpid()}"
    shutil.copytree(place, own)
    try:
        mounts = " && ".join(f"mount -t tmpfs -o ro none {one}" for one in places)
        before = (need("unshare", "util-linux"), "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh")
        if subprocess.run([*before, "true"], capture_output=True).returncode:
            missing("namespaces may not be made here")
        words = (BIN / "cleanerd", *(CLEAN if command == "clean" else WITHOUT_SPARK[command]))
        there = [str(word).replace("logs", f"{own}/logs").replace("copy", f"{own}/copy") for word in words]
        home = {"HOME": "/nonexistent", "XDG_CACHE_HOME": "/nonexistent", "TMPDIR": "/tmp"}
        found = ran(Path("/proc"), *there, before=before, **home)
        assert "Traceback" not in found.stderr, found.stderr
        if command == "clean":
            assert found.returncode == 1
            said = "/proc, which is not mounted" if hidden == "/proc" else "TMPDIR"
            assert said in found.stdout + found.stderr
        else:
            assert found.returncode == ran(place, *words).returncode, found.stdout + found.stderr
    finally:
        shutil.rmtree(own, ignore_errors=True)
