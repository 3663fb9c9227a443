"""A lease is a duty: what is due and not cleaned goes back to the broker's cleaner (architecture 2)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanerd.policy.lease_duty import GRACE_S, Account, JobSeen, Seen, after, first

HOUR_S, DAY_S = 3600.0, 86_400.0
looks = st.builds(
    Seen,
    is_due=st.sampled_from([True, False, None]),
    clean_up_to=st.none() | st.integers(0, 5),
    obstacle=st.none() | st.just("why"),
    job=st.none() | st.just(JobSeen(GRACE_S + 1, 0, 50, 100)) | st.just(JobSeen(HOUR_S, HOUR_S, 0, 100)),
)


def run(looks: list[Seen], *, every_s: float = 15.0) -> Account:
    account = Account()
    for number, seen in enumerate(looks):
        account = after(account, seen, number * every_s)
    return account


def looking(seconds: float, seen: Seen) -> list[Seen]:
    return [seen] * (int(seconds / 15) + 1)


@pytest.mark.parametrize("is_due", [True, None])
@pytest.mark.parametrize("obstacle", [None, "why"])
def test_what_is_due_for_some_minutes_and_not_cleaned_goes_back(
    is_due: bool | None, obstacle: str | None
) -> None:
    """What is not known counts as due."""
    seen = Seen(is_due, 3, obstacle)
    assert run(looking(GRACE_S - 15, seen)).neglected is None
    assert run(looking(GRACE_S, seen)).neglected == (obstacle or "no worker has come to it")


def test_a_log_that_is_cleaned_in_time_stays_muted_however_often_it_is_due() -> None:
    assert run([Seen(True, number // 10) for number in range(500)]).neglected is None


def test_it_comes_back_when_it_was_cleaned_and_nothing_is_in_the_way() -> None:
    """By whom does not matter; while something is, the broker's cleaner keeps it, due or not."""
    gone = run(looking(GRACE_S, Seen(True, 3, "full")))
    assert gone.neglected == "full"
    assert after(gone, Seen(False, 9, "full"), 900).neglected == "full"
    assert after(gone, Seen(True, 3), 900).neglected == "full"
    assert after(gone, Seen(True, 9), 900) == Account(900, 9)
    assert after(gone, Seen(False, 9), 900) == Account(None, 9)


@pytest.mark.parametrize(
    ("job", "gets_on"),
    [
        (JobSeen(GRACE_S, GRACE_S, 0, 100), True),  # it has just begun
        (JobSeen(GRACE_S + 1, GRACE_S + 1, 0, 100), False),  # throttled to nothing
        (JobSeen(5 * HOUR_S, 0, 10, 20), True),
        (JobSeen(5 * HOUR_S, 2 * HOUR_S, 20, 20), True),  # it syncs what it has written for hours
        (JobSeen(5 * HOUR_S, 3 * HOUR_S, 20, 20), False),
        (JobSeen(HOUR_S, 0, 1, 25), False),  # throttled to next to nothing: it would take more than a day
        (JobSeen(HOUR_S, 0, 1, 24), True),
        (JobSeen(HOUR_S, 0, 0, 0), True),  # it examines, and nothing is planned
    ],
)
def test_a_job_that_does_not_get_on_cleans_nothing(job: JobSeen, gets_on: bool) -> None:
    seen = Seen(True, 3, job=job)
    assert run(looking(2 * GRACE_S, seen)).neglected == (None if gets_on else "its cleaning does not get on")


def test_a_daemon_that_dies_again_and_again_keeps_nobody_from_a_log() -> None:
    """What is due when it starts goes back until somebody has cleaned it."""
    assert first(Seen(False, 3)).neglected is None
    assert first(Seen(None, None)).neglected is not None
    gone = first(Seen(True, 3))
    assert gone.neglected == "it was due when cleanerd started"
    assert after(gone, Seen(True, 3), 1e6).neglected is not None
    assert after(gone, Seen(True, 4), 1e6).neglected is None


@given(st.lists(looks, max_size=60), looks)
def test_whatever_was_no_log_is_kept_from_the_broker_for_longer_than_the_grace(
    before: list[Seen], last: Seen
) -> None:
    account = run(before)
    begin_s = len(before) * 15.0
    for number in range(200):
        account = after(account, last, begin_s + 15 * number)
    is_served = last.is_due is False or (last.job is not None and last.job.gets_on)
    assert is_served or account.neglected is not None
