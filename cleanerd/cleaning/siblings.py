"""The other log directories of a broker."""

from collections.abc import Iterator, Sequence
from functools import partial

from cleanerd.env.files import Files
from cleanerd.errors import guarded
from cleanerd.format import names
from cleanerd.format.errors import FormatError
from cleanerd.format.meta_properties import parse_meta_properties


def siblings(files: Files, log_dir: str, log_dirs: Sequence[str]) -> Iterator[str]:
    """Those of `log_dirs` that are of the same broker, without `log_dir` itself and without any that fails.

    Raises OSError for `log_dir`.
    """
    broker, inode = _broker(files, log_dir), files.stat(log_dir).inode

    def is_sibling(other: str) -> bool:
        is_other = files.exists(other) and files.stat(other).inode != inode
        return is_other and _broker(files, other) == broker

    for other in log_dirs:
        if other != log_dir and guarded(partial(is_sibling, other), other) is True:
            yield other


def _broker(files: Files, log_dir: str) -> tuple[str | None, int | None] | None:
    try:
        found = parse_meta_properties(files.read(f"{log_dir}/{names.META_PROPERTIES}"))
    except (FileNotFoundError, FormatError):
        return None
    return found.cluster_id, found.node_id
