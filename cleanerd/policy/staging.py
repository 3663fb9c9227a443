"""Whether a result that waits for its commit has aged so much that cleaning the log again pays."""


def pays_again(
    *,
    staged_bytes: int,
    clean_bytes: int,
    dirty_bytes: int,
    min_cleanable_dirty_ratio: float,
) -> bool:
    """Whether to throw a waiting result away and make it again, with what has become cleanable behind it.

    `staged_bytes`: what would be thrown away. `clean_bytes`: the log up to the end of the cleaned range, once the result is
    committed. `dirty_bytes`: cleanable since. The log must qualify again by its own ratio (1.21). What is ever thrown away
    stays within the bytes that were appended.
    """
    if staged_bytes > dirty_bytes or dirty_bytes <= 0:
        return False
    return dirty_bytes > min_cleanable_dirty_ratio * (clean_bytes + dirty_bytes)
