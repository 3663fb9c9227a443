"""Which logs share a job, and how long those that are due wait for others (rule 1.26 with cleanerd's deviation)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanerd.policy import schedule
from cleanerd.policy.schedule import (
    AMPLE_BYTES,
    JOB_MAX_BYTES,
    SMALL_LOG_BYTES,
    WAIT_MAX_MS,
    Ready,
    choose,
    first_job,
    patience_ms,
)

PAUSES_MS = st.sampled_from([0, 200, 15_000, WAIT_MAX_MS, 3_600_000])
PATIENCE_MS = st.sampled_from([0, 1, 5_000, 2**62])
arrivals = st.tuples(
    st.integers(0, 30_000), st.sampled_from(["/a", "/b"]), st.sampled_from([1, 100 << 20]), PATIENCE_MS
)


@given(st.lists(arrivals, max_size=9), PAUSES_MS)
def test_no_log_waits_for_longer_than_it_may_and_no_job_begins_early_without_need(
    logs: list[tuple[int, str, int, int]], pause_ms: int
) -> None:
    """Logs that become due one after the other, and workers that are always free."""
    now_ms, left, bound_ms = 0, set(range(len(logs))), min(pause_ms, WAIT_MAX_MS)
    begun_ms: dict[object, int] = {}
    while left:
        ready = {
            number: Ready(number, kind, size_bytes, max(due_ms + patient_ms - now_ms, 0))
            for number, (due_ms, kind, size_bytes, patient_ms) in enumerate(logs)
            if number in left and due_ms <= now_ms
        }
        ago_ms = {kind: now_ms - at_ms for kind, at_ms in begun_ms.items()}
        choice = choose(ready.values(), ago_ms, pause_ms)
        assert all(0 < wait_ms <= bound_ms for _, wait_ms in choice.waiting)
        if not choice.begin:
            assert {number for number, _ in choice.waiting} == ready.keys(), "whatever does not begin waits"
            coming_ms = [logs[number][0] for number in left if logs[number][0] > now_ms]
            now_ms = min(coming_ms + [now_ms + wait_ms for _, wait_ms in choice.waiting])
            continue
        kind = ready[choice.begin[0]].kind
        alike = [one for one in ready.values() if one.kind == kind]
        is_full = sum(one.size_bytes for one in alike) > JOB_MAX_BYTES
        assert choice.begin == first_job(alike)
        is_first = kind == next(iter(ready.values())).kind
        is_late = any(one.size_bytes > SMALL_LOG_BYTES for one in ready.values() if one.kind != kind)
        assert (
            ago_ms.get(kind, bound_ms) >= bound_ms
            or is_full
            or not all(one.patience_ms for one in alike)
            or (is_first and is_late)
        )
        assert choice.is_rest == (len(choice.begin) == len(alike))
        begun_ms |= {kind: now_ms} if choice.is_rest else {}
        left.difference_update(choice.begin)
        for number in choice.begin:
            assert now_ms - logs[number][0] <= min(bound_ms, logs[number][3]), "it has waited for too long"


def small(*names: str, kind: str = "/a") -> list[Ready[str]]:
    return [Ready(name, kind, 1, 2**62) for name in names]


def test_a_lone_log_after_quiet_begins_at_once_and_the_next_ones_share_the_next_job() -> None:
    assert choose(small("a"), {}, 15_000).begin == ["a"]
    assert choose(small("a"), {"/a": 15_000, "/b": 0}, 15_000).begin == ["a"]
    later = choose(small("b", "c"), {"/a": 4_000}, 15_000)
    assert (later.begin, later.waiting) == ([], [("b", 11_000), ("c", 11_000)])
    assert choose(small("b", "c"), {"/a": 15_000}, 15_000).begin == ["b", "c"]


def test_who_may_not_wait_takes_the_others_of_its_kind_along() -> None:
    hurried = [*small("a"), *small("x", kind="/b"), Ready("b", "/a", 1, 0)]
    choice = choose(hurried, {"/a": 1, "/b": 1}, 15_000)
    assert choice.begin == ["a", "b"]
    assert choice.waiting == [("x", 14_999)]


def test_what_waits_is_not_overtaken_by_a_large_job_that_is_less_urgent() -> None:
    small_job = choose([*small("a"), *small("x", kind="/b")], {"/a": 1}, 15_000)
    assert (small_job.begin, small_job.waiting) == (["x"], [("a", 14_999)])
    large = [*small("a", "b"), Ready("x", "/b", SMALL_LOG_BYTES + 1), *small("y", kind="/c")]
    choice = choose(large, {"/a": 1, "/c": 1}, 15_000)
    assert (choice.begin, choice.is_rest, choice.waiting) == (["a", "b"], True, [("y", 14_999)])


def test_more_than_a_job_holds_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "JOB_MAX_LOGS", 2)
    assert choose(small("a", "b", "c"), {"/a": 0}, 15_000).begin == ["a", "b"]
    assert choose(small("a", "b"), {"/a": 0}, 15_000).begin == []


@pytest.mark.parametrize(
    ("fact", "waits_ms"),
    [
        ({}, 2**62),
        ({"deadline_in_ms": 7}, 7),
        ({"deadline_in_ms": -7}, 0),
        ({"is_wanted": True}, 0),
        ({"size_bytes": SMALL_LOG_BYTES + 1}, 0),
        ({"free_bytes": AMPLE_BYTES - 1}, 0),
    ],
)
def test_no_deadline_disk_or_client_waits(fact: dict[str, int], waits_ms: int) -> None:
    facts = {
        "size_bytes": SMALL_LOG_BYTES,
        "deadline_in_ms": 2**62,
        "is_wanted": False,
        "free_bytes": AMPLE_BYTES,
    }
    assert patience_ms(**(facts | fact)) == waits_ms  # type: ignore[arg-type]


def test_first_job_looks_no_further_than_it_has_to() -> None:
    asked = iter([Ready("a", "/a", JOB_MAX_BYTES), Ready("b", "/a", 1), Ready("c", "/a", 1)])
    assert first_job(asked) == ["a"]
    assert [one.work for one in asked] == ["c"]
    assert first_job([]) == []
