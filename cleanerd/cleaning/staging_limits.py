"""How much may wait staged in the log directory of a live broker: its disk is not ours to fill."""

from collections.abc import Callable

from cleanerd.config.model import CleanerdConfig
from cleanerd.env.space import space_for


def why_full(log_dir: str, staged_bytes: Callable[[], int], config: CleanerdConfig) -> str | None:
    """Why nothing more may be staged in a log directory, None when something may. Raises OSError.

    `staged_bytes` counts what waits there; it is asked only where that matters.
    """
    limit_bytes = config.staged_max_bytes
    if limit_bytes >= 0 and (staged := staged_bytes()) >= limit_bytes:
        return f"{staged} bytes wait staged in {log_dir}, cleanerd.staged.max.bytes is {limit_bytes}"
    least_ratio = config.staged_min_free_ratio
    space = space_for(log_dir, lambda space: space.free_ratio >= least_ratio)
    if space.free_ratio < least_ratio:
        least = f"cleanerd.staged.min.free.ratio is {least_ratio}"
        return f"{space.free_ratio:.1%} of the file system of {log_dir} is free, {least}"
    return None
