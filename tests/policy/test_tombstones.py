"""When tombstones and markers may go: not before every other replica is known to be in sync, and to have been for long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanerd.policy.tombstones import KNOWN_FOR_MS, ReplicaFacts, wait_for_ratio_ms, why_tombstones_stay

DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000
NODE = 2


def facts(
    replicas: tuple[int, ...] = (2, 3),
    isr: tuple[int, ...] = (2, 3),
    *,
    is_moving: bool = False,
    since_ms: int = NOW_MS - DAY_MS,
    known_until_ms: int | None = NOW_MS,
) -> ReplicaFacts:
    return ReplicaFacts(replicas, isr, is_moving, since_ms, known_until_ms)


@pytest.mark.parametrize(
    "found",
    [
        facts((2,), ()),  # a single replica waits for nobody, however old that is
        facts((2,), (2,), since_ms=NOW_MS, known_until_ms=0),
        facts(),
        facts(isr=(3,)),  # this node's own log has what is cleaned there
        facts((1, 2, 3), (3, 1)),
        facts(known_until_ms=NOW_MS - KNOWN_FOR_MS),
        facts(known_until_ms=None),  # nobody can have changed it
    ],
)
def test_what_has_expired_goes(found: ReplicaFacts) -> None:
    assert why_tombstones_stay(found, NODE, DAY_MS, NOW_MS, NOW_MS) is None


@pytest.mark.parametrize(
    ("found", "reason", "until_ms"),
    [
        (facts(isr=(2,)), "replica 3 is not in sync since 2023-11-13 22:13:20 UTC", None),
        (facts((1, 2, 3), ()), "replicas 1, 3 are not in sync since 2023-11-13 22:13:20 UTC", None),
        (facts(is_moving=True), "replicas are being reassigned", None),
        (facts((2,), (2,), is_moving=True), None, None),
        (
            facts(since_ms=NOW_MS - DAY_MS + 1),
            "all replicas are in sync since 2023-11-13 22:13:20 UTC, which is less than delete.retention.ms (86400000) ago",
            NOW_MS + 1,
        ),
        (
            facts(known_until_ms=NOW_MS - KNOWN_FOR_MS - 1),
            "which replicas are in sync is known up to 2023-11-14 22:10:19 UTC only",
            None,
        ),
        (
            facts(known_until_ms=NOW_MS + KNOWN_FOR_MS + 1),  # of two clocks one is wrong
            "which replicas are in sync is known up to 2023-11-14 22:16:20 UTC only",
            None,
        ),
    ],
)
def test_why_it_stays(found: ReplicaFacts, reason: str | None, until_ms: int | None) -> None:
    stay = why_tombstones_stay(found, NODE, DAY_MS, NOW_MS, NOW_MS)
    assert (stay and stay.reason, stay and stay.until_ms) == (reason, until_ms)


nodes = st.lists(st.integers(1, 5), unique=True, max_size=5).map(tuple)


@pytest.mark.trap("tombstones that go while a replica is away")
@given(
    st.builds(
        ReplicaFacts,
        nodes,
        nodes,
        st.booleans(),
        st.integers(NOW_MS - 2 * DAY_MS, NOW_MS + DAY_MS),
        st.none() | st.integers(NOW_MS - DAY_MS, NOW_MS + DAY_MS),
    ),
    st.integers(0, DAY_MS),
)
def test_nothing_goes_while_another_replica_may_lack_it(found: ReplicaFacts, retention_ms: int) -> None:
    """With a replica elsewhere nothing goes unless all those are in sync, and have been for long enough."""
    others = set(found.replicas) - {NODE}
    stay = why_tombstones_stay(found, NODE, retention_ms, NOW_MS, NOW_MS)
    if stay is None and set(found.replicas) != {NODE}:
        assert others <= set(found.isr)
        assert not found.is_moving
        assert found.since_ms + retention_ms <= NOW_MS
        assert found.known_until_ms is None or abs(found.known_until_ms - NOW_MS) <= KNOWN_FOR_MS


@given(st.integers(0, 2 * DAY_MS), st.integers(0, 2 * DAY_MS))
def test_the_moment_that_is_named_is_that_in_which_it_may_go(age_ms: int, retention_ms: int) -> None:
    found = facts(since_ms=NOW_MS - age_ms, known_until_ms=None)
    stay = why_tombstones_stay(found, NODE, retention_ms, NOW_MS, NOW_MS)
    if stay is not None:
        assert stay.until_ms is not None
        assert why_tombstones_stay(found, NODE, retention_ms, stay.until_ms - 1, NOW_MS) is not None
        assert why_tombstones_stay(found, NODE, retention_ms, stay.until_ms, NOW_MS) is None


def test_an_earlier_now_makes_nothing_that_is_known_younger() -> None:
    """`--now-ms`: that the others were in sync then is not known of today."""
    late_ms = NOW_MS + KNOWN_FOR_MS + 1
    assert why_tombstones_stay(facts(), NODE, DAY_MS, NOW_MS, late_ms) is not None
    assert why_tombstones_stay(facts((2,)), NODE, DAY_MS, NOW_MS, late_ms) is None


@pytest.mark.parametrize(
    ("dirty_ratio", "min_ratio", "waits"),
    [
        (0.0, 0.5, False),  # a quiet log loses its tombstones when their time has come
        (0.25, 0.5, False),
        (0.26, 0.5, True),
        (0.5, 0.5, True),
        (0.9, 1.0, False),  # no ratio is above that
        (0.0, 0.0, False),
    ],
)
def test_a_log_that_is_soon_cleaned_by_its_ratio_is_not_cleaned_for_a_horizon(
    dirty_ratio: float, min_ratio: float, waits: bool
) -> None:
    assert wait_for_ratio_ms(dirty_ratio, min_ratio, DAY_MS) == (DAY_MS if waits else 0)
