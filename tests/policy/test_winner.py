"""The rule of a key's winner, and what the walk makes of it."""

from hypothesis import given
from hypothesis import strategies as st

from cleanerd.policy.winner import may_supersede, newest_first, supersedes


@given(st.sets(st.integers(0, 100), min_size=1).map(sorted), st.integers(0, 100))
def test_the_walk_meets_the_winner_first_rule_3_9(offsets: list[int], first_dirty_offset: int) -> None:
    """Of records of one key, given in offset order, the first asked supersedes all others."""
    first, *others = newest_first(offsets)
    assert all(supersedes(first, other) and not supersedes(other, first) for other in others)
    assert may_supersede(first, first_dirty_offset) or not any(
        may_supersede(o, first_dirty_offset) for o in others
    )
