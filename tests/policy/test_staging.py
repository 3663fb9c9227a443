"""For how long a result may wait for its commit."""

import pytest

from cleanerd.policy.staging import WAIT_MS, commit_within_ms, has_half_waited
from cleanerd.storage.staged import NO_LIMIT_MS

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("delete_retention_ms", "waits", "expected_ms"),
    [
        (24 * HOUR_MS, False, 12 * HOUR_MS),
        (0, False, HOUR_MS // 6),  # a commit takes its time
        (24 * HOUR_MS, True, WAIT_MS),
        (0, True, WAIT_MS),
    ],
)
def test_tombstones_stay_for_half_of_their_time_at_least(
    delete_retention_ms: int, waits: bool, expected_ms: int
) -> None:
    assert commit_within_ms(delete_retention_ms, waits=waits) == expected_ms


@pytest.mark.parametrize(
    ("now_ms", "commit_by_ms", "expected"),
    [(1_500, 2_000, False), (1_501, 2_000, True), (900, 2_000, False), (10**15, NO_LIMIT_MS, False)],
)
def test_half_of_the_time(now_ms: int, commit_by_ms: int, expected: bool) -> None:
    assert has_half_waited(1_000, commit_by_ms, now_ms) is expected
