"""The journal of an install: one file beside the prepared directory, on the file system of the log.

It is there from the moment the directory is prepared until the old list of replicas is back, whatever happens meanwhile.
"""

import contextlib
import json
import os
from dataclasses import dataclass

from cleanerd.env.files import Files
from cleanerd.errors import CorruptFile
from cleanerd.install.values import Install
from cleanerd.storage.replace import replace_file

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Journal:
    """The file at `path`."""

    files: Files
    path: str

    def write(self, install: Install) -> None:
        """Durable when it returns. Raises OSError; the old or the new state is there then."""
        content = json.dumps({"version": _VERSION, "install": install.fields()})
        replace_file(self.files, self.path, content.encode(), like=None)

    def read(self) -> Install | None:
        """What was written last; None without a journal. Raises CorruptFile, OSError."""
        try:
            content = self.files.read(self.path)
        except FileNotFoundError:
            return None
        try:
            fields = json.loads(content)
            if fields["version"] != _VERSION:
                raise ValueError(f"version {fields['version']}")
            return Install.of_fields(fields["install"])
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise CorruptFile(
                self.path, 0, f"the journal of an install, version {_VERSION}", repr(error)
            ) from error

    def remove(self) -> None:
        """Nothing is left to do. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):  # even its directory may not have come to be
            self.files.unlink(self.path)
            self.files.fsync_dir(os.path.dirname(self.path))
