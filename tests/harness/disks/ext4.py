"""A real ext4 whose power can be cut: an image behind a loop device, and the ioctl by which file systems test their crashes.

After `cut` every call fails with EIO, and what was not synced is gone: all of it, or contents alone, where the journal was
written just before. `tests.harness.disks.simulated` plays every order of events; here it is what a kernel does.
"""

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness.programs import missing, need

_EXT4_IOC_SHUTDOWN, _LOG_FLUSH, _NO_LOG_FLUSH = 0x8004587D, 1, 2


class Ext4:
    """A file system in the file `image`, to be mounted at `place`."""

    def __init__(self, image: Path, place: Path) -> None:
        self._image, self.place = image, place
        place.mkdir(exist_ok=True)

    @classmethod
    def made(cls, directory: Path, size_bytes: int = 32 << 20) -> "Ext4":
        """A new one, with files for it below `directory`. Skips where it cannot be had."""
        if os.geteuid() != 0:
            missing("a file system of its own needs root")
        image = directory / "ext4.img"
        with image.open("wb") as file:
            file.truncate(size_bytes)
        subprocess.run([need("mkfs.ext4", "e2fsprogs"), "-q", "-m0", str(image)], check=True)
        return cls(image, directory / "ext4")

    def copied(self, directory: Path) -> "Ext4":
        """Another one that holds the same; this one is not mounted."""
        directory.mkdir(exist_ok=True)
        shutil.copy(self._image, directory / "ext4.img")
        return Ext4(directory / "ext4.img", directory / "ext4")

    @contextmanager
    def mounted(self) -> Iterator[Path]:
        """Mount it; at the end nothing may be open in it."""
        self.mount()
        try:
            yield self.place
        finally:
            self.unmount()

    def mount(self) -> None:
        """Mount it; skips where that is not permitted."""
        done = subprocess.run(
            ["mount", "-o", "loop", str(self._image), str(self.place)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            missing(f"mount is not permitted: {done.stderr.strip()}")

    def unmount(self, *, at_once: bool = False) -> None:
        """`at_once`: it is out of sight, although files in it are open. That is done as well when it fails otherwise."""
        out_of_sight = ["umount", "--lazy", str(self.place)]
        if at_once:
            subprocess.run(out_of_sight, check=True)
            self._leave_it_to_others()
            return
        subprocess.run(["sync", "--file-system", str(self.place)], capture_output=True, check=False)
        try:
            subprocess.run(["umount", str(self.place)], check=True)
        except (
            subprocess.CalledProcessError
        ):  # it must not outlive the test: its directory could not be deleted
            subprocess.run(out_of_sight, check=False)
            raise
        self._leave_it_to_others()

    def _leave_it_to_others(self) -> None:
        """A container that began meanwhile has it mounted, too: to mount this file again would show what has no power.

        It is as it was synced just before, or as the cut has left it: the end of a mount that others have, too, writes
        nothing.
        """
        copy = self._image.with_suffix(".next")
        shutil.copy(self._image, copy)
        copy.replace(self._image)

    def remount(self, how: str) -> bool:
        """Remount with an option; whether that was possible."""
        options = ["mount", "-o", f"remount,{how}", str(self.place)]
        return subprocess.run(options, capture_output=True, check=False).returncode == 0

    def fail(self) -> None:
        """The kernel meets an error in it, and does what the option `errors` says."""
        mounts = Path("/proc/mounts").read_text().splitlines()
        device = next(line.split()[0] for line in mounts if f" {self.place} " in line)
        Path(f"/sys/fs/ext4/{os.path.basename(device)}/trigger_fs_error").write_text("test")

    def cut(self, *, keeps_names: bool = False) -> None:
        """The power is gone. With `keeps_names` the journal was written before: names are new, contents may not be."""
        root = os.open(self.place, os.O_RDONLY)
        fcntl.ioctl(root, _EXT4_IOC_SHUTDOWN, struct.pack("I", _LOG_FLUSH if keeps_names else _NO_LOG_FLUSH))
        os.close(root)
