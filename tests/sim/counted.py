"""Real files of which every change is counted before it is made: the places at which a process can be killed."""

from abc import ABC, abstractmethod

from cleanerd.env.files import RealFiles


class CountedFiles(RealFiles, ABC):
    """What to do before a change is for those who derive from it."""

    @abstractmethod
    def count(self) -> None:
        """A change is about to be made; whoever raises here prevents it."""

    def write(self, path: str, data: bytes) -> None:
        self.count()
        super().write(path, data)

    def truncate(self, path: str, size_bytes: int) -> None:
        self.count()
        super().truncate(path, size_bytes)

    def fsync(self, path: str) -> None:
        self.count()
        super().fsync(path)

    def rename(self, source: str, target: str) -> None:
        self.count()
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self.count()
        super().unlink(path)

    def rmdir(self, directory: str) -> None:
        self.count()
        super().rmdir(directory)

    def set_mtime_ns(self, path: str, mtime_ns: int) -> None:
        self.count()
        super().set_mtime_ns(path, mtime_ns)

    def adopt_owner(self, path: str, like: str) -> None:
        self.count()
        super().adopt_owner(path, like)
