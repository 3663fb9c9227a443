"""Where an install keeps its things: a directory of ours beside the log directory, on its file system.

=============  ========================================================================================================
name           what it is
=============  ========================================================================================================
`journal`      what is done and what is to be done (`install.journal`)
`prepared/`    the partition directory that is to be; complete when the journal is there
`rejected/`    one that was taken away again from under the partition's name
=============  ========================================================================================================

Not in the log directory itself: a broker does not start beside a directory that is no partition's (spec disk A1). The mark
in the prepared directory tells it from any that a broker has made; a broker ignores it, as any name that it does not know.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from cleanerd.env.files import Files
from cleanerd.env.space import floor_bytes, space_of
from cleanerd.errors import CleanerdError
from cleanerd.format.errors import FormatError
from cleanerd.format.names import (
    META_PROPERTIES,
    PARTITION_METADATA,
    DirKind,
    parse_partition_dir,
)
from cleanerd.format.partition_metadata import parse_partition_metadata
from cleanerd.format.uuid_text import render_uuid
from cleanerd.install.journal import Journal
from cleanerd.install.values import Install, PlaceContent

_MARK = "cleanerd-install"


class NotInstallable(CleanerdError):
    """This result cannot be given to the running broker, and why; it goes on waiting for a restart."""


@dataclass(frozen=True, slots=True)
class Area:
    """That of a log directory."""

    files: Files
    log_dir: str

    @property
    def path(self) -> str:
        """The directory of ours."""
        parent, name = os.path.split(os.path.normpath(self.log_dir))
        return os.path.join(parent, f".cleanerd-install-{name}")

    @property
    def prepared(self) -> str:
        """The prepared partition directory."""
        return os.path.join(self.path, "prepared")

    @property
    def journal(self) -> Journal:
        """Its journal."""
        return Journal(self.files, os.path.join(self.path, "journal"))

    def check_place(self, log_dirs: Sequence[str]) -> None:
        """Raise NotInstallable, with the reason, where there is no place for it; OSError."""
        parent = os.path.dirname(os.path.normpath(self.log_dir))
        if os.stat(parent).st_dev != os.stat(self.log_dir).st_dev:
            raise NotInstallable(
                f"{self.log_dir}: is the root of a file system, so that nothing can be prepared beside it; make the log "
                "directory a directory in it"
            )
        if parent in map(os.path.normpath, log_dirs) or self.files.exists(
            os.path.join(parent, META_PROPERTIES)
        ):
            raise NotInstallable(f"{self.log_dir}: lies in the log directory {parent}")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise NotInstallable(f"{parent}: expected a directory in which {self.path} may be made")

    def check_room(self, size_bytes: int) -> None:
        """Raise NotInstallable where so much more would leave too little to all others; OSError.

        An install frees more than it takes, but the broker deletes what it had a while later.
        """
        space = space_of(self.log_dir)
        least_bytes = floor_bytes(space, 0.0)
        if space.free_bytes - size_bytes < least_bytes:
            raise NotInstallable(
                f"{self.log_dir}: {space.free_bytes} bytes are free: the {size_bytes} that are copied or fetched again "
                f"would not leave {least_bytes}"
            )

    def make(self) -> None:
        """Make it. Raises OSError."""
        os.makedirs(self.path, 0o750, exist_ok=True)
        self.files.fsync_dir(os.path.dirname(self.path))

    def mark(self, directory: str, install_id: str) -> str:
        """Path of the mark in a directory that is being prepared; written, not synced."""
        path = os.path.join(directory, _MARK)
        self.files.write(path, install_id.encode())
        return path

    def place(self, install: Install) -> PlaceContent:
        """What lies under the partition's name. Raises OSError."""
        directory = self._live(install)
        if not self.files.exists(directory):
            return PlaceContent.NOTHING
        return PlaceContent.OURS if self._is_marked(directory, install) else PlaceContent.OTHER

    def topic_id(self, install: Install) -> str | None:
        """The topic id that the directory under the partition's name has; None: no sound one. Raises OSError."""
        return self._topic_id(self._live(install))

    def _topic_id(self, directory: str) -> str | None:
        try:
            content = self.files.read(os.path.join(directory, PARTITION_METADATA))
            return render_uuid(parse_partition_metadata(content))
        except (
            FileNotFoundError,
            NotADirectoryError,
            FormatError,
        ):  # what fails to be read says nothing: it raises
            return None

    def is_prepared(self, install: Install) -> bool:
        """Whether the prepared directory is there, for this topic: a broker keeps one of another id open and unused.

        Raises OSError.
        """
        return self._is_marked(self.prepared, install) and self._topic_id(self.prepared) == install.topic_id

    def move_in(self, install: Install) -> None:
        """Give the prepared directory the free name: one rename, durable when it returns. Raises OSError.

        A foreign directory under that name stays: a rename does not replace one that is not empty.
        """
        self.files.rename(self.prepared, self._live(install))
        self.files.fsync_dir(self.log_dir)
        self.files.fsync_dir(self.path)

    def take_away(self, install: Install) -> None:
        """Free the partition's name of our directory, which no broker uses. Raises OSError."""
        rejected = os.path.join(self.path, "rejected")
        shutil.rmtree(rejected, ignore_errors=True)
        self.files.rename(self._live(install), rejected)
        self.files.fsync_dir(self.log_dir)

    def clear(self, install: Install, *, is_brokers: bool) -> None:
        """Whatever is left of an install goes, the journal last. Idempotent. Raises OSError.

        `is_brokers`: the broker has the partition, or will: of what lies under its name only the mark is ours then.
        """
        directory = self._live(install)
        if self.place(install) is PlaceContent.OURS:
            if is_brokers:
                self.files.unlink(os.path.join(directory, _MARK))
                self.files.fsync_dir(directory)
            else:
                self.take_away(install)
        for stray in self._strays(install):
            shutil.rmtree(stray)
            self.files.fsync_dir(self.log_dir)
        for name in (self.prepared, os.path.join(self.path, "rejected")):
            shutil.rmtree(name, ignore_errors=True)
        self.journal.remove()
        shutil.rmtree(self.path, ignore_errors=True)  # a journal that had no room may have left a part

    def sweep(self) -> None:
        """Without a journal what lies here is of an install that was killed before it had one, or when it had none any more.

        Its links would keep the disk space of segments that are deleted. Raises OSError.
        """
        if self.files.exists(self.path) and not self.files.exists(self.journal.path):
            shutil.rmtree(self.path)

    def _strays(self, install: Install) -> list[str]:
        """Our directory under the name that a broker gave it when it started while the replica was out."""
        name_of = str(install.topic_partition)
        found = []
        for name in self.files.list_names(self.log_dir):
            parsed = parse_partition_dir(name)
            if parsed is not None and parsed[1] is DirKind.STRAY and name_of.startswith(parsed[0].topic):
                found.append(os.path.join(self.log_dir, name))
        return [directory for directory in found if self._is_marked(directory, install)]

    def _live(self, install: Install) -> str:
        return os.path.join(self.log_dir, str(install.topic_partition))

    def _is_marked(self, directory: str, install: Install) -> bool:
        try:
            return self.files.read(os.path.join(directory, _MARK)) == install.id.encode()
        except (FileNotFoundError, NotADirectoryError):
            return False
