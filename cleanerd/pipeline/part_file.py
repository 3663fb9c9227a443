"""Writes the remaining batches of a chunk: to a file of its own, or to their place in the new segment of the group."""

import contextlib
import os
import uuid
from collections.abc import Iterator, Sequence

from cleanerd.env.files import RealFiles, new_file, open_own
from cleanerd.env.page_cache import begin_writeback
from cleanerd.env.space import room
from cleanerd.env.turns import file_turn
from cleanerd.format.names import of_attempt
from cleanerd.kernels.tables import Bytes
from cleanerd.spark_runtime.place import PlaceClient


def path_of_attempt(path: str) -> str:
    """The path of a part for one attempt of its task; if attempts shared a file, neither could vouch for its content."""
    return of_attempt(path, uuid.uuid4().hex[:16])


@contextlib.contextmanager
def gone_if_it_fails(path: str | None) -> Iterator[None]:
    """Delete the part if this attempt fails: once another attempt's parts are staged, nobody else does."""
    try:
        yield
    except BaseException:
        if path is not None:
            with contextlib.suppress(OSError):
                RealFiles().unlink(path)
        raise


class PartFile:
    """Written from its start to its end, in a `with`; the first part makes the file.

    Every method, and entering, raises OSError, NoSpace; Aborted when a part before it has failed.
    """

    def __init__(
        self,
        path: str,
        like: str,
        least_free_bytes: int,
        start: int = 0,
        asked: PlaceClient | None = None,
        held_bytes: int = 0,
    ) -> None:
        """`like`: the file whose owner and mode the new one gets. `asked`: where it begins, if others write there, too.

        Then up to `held_bytes` are held in memory, for a part to be complete once its position is known, and written in one
        go: processes that write to one file slice by slice slow each other down.
        """
        self.path = path
        self.start = start
        """Where the part begins, when `finish` has returned."""
        self.size_bytes = 0
        self._least_free_bytes = least_free_bytes
        self._asked = asked
        self._held_bytes = held_bytes
        self._held: list[Bytes] = []
        self._like = like
        self._fd: int | None = None

    @property
    def end(self) -> int | None:
        """End of the part, once `finish` has returned; None: the end of the file."""
        return None if self._asked is None else self.start + self.size_bytes

    def __enter__(self) -> "PartFile":
        try:
            if (self.start if self._asked is None else self._asked.place.number) == 0:
                # the owner of the source can read it from its first moment: a broker looks at every file (D2)
                os.close(new_file(self.path, self._like))
            if self._asked is None:
                self._open(self.start)
        except BaseException:
            self._give_up()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is not None:
                self._give_up()
        finally:
            self._close()

    def write(self, data: Bytes) -> None:
        """Append; `data` may be kept, and is not to be changed."""
        self.size_bytes += len(data)
        if self._fd is not None:
            self._write(self._fd, [data])
            return
        self._held.append(data)
        if self.size_bytes > self._held_bytes:
            assert self._asked is not None
            self._begin(self._asked.start())

    def finish(self) -> None:
        """Write all that is held: when this returns the part can be read back."""
        start = self.start if self._asked is None else self._asked.report_size(self.size_bytes)
        assert self._fd is None or start == self.start, "a part begins where it was written"
        fd = self._begin(start) if self._fd is None else self._fd
        begin_writeback(fd, self.start, self.size_bytes)
        self._close()

    def _give_up(self) -> None:
        if self._asked is not None:
            self._asked.give_up()

    def _begin(self, start: int) -> int:
        fd = self._open(start)
        with file_turn(fd):
            self._write(fd, self._held)
        self._held.clear()
        return fd

    def _open(self, start: int) -> int:
        self.start = start
        self._fd = fd = open_own(self.path, os.O_WRONLY)
        os.lseek(fd, start, os.SEEK_SET)
        return fd

    def _write(self, fd: int, parts: Sequence[Bytes]) -> None:
        with room(self.path, sum(map(len, parts)), self._least_free_bytes):
            for data in parts:
                view = data.data
                while view:
                    view = view[os.write(fd, view) :]

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
