"""When a log directory is left alone for a broker that is about to start."""

import pytest

from cleanerd.policy.broker_start import BROKER_START_S, BrokerStart

UNKNOWN, HERE = BrokerStart(), BrokerStart(7)
ANNOUNCED = UNKNOWN.announced(0.0)


@pytest.mark.parametrize(
    ("before", "owner", "waits_for_us", "is_expected"),
    [
        pytest.param(UNKNOWN, None, False, False, id="nobody was there"),
        pytest.param(UNKNOWN, 7, False, False, id="a broker comes"),
        pytest.param(HERE, 7, False, False, id="a broker stays"),
        pytest.param(HERE, 0, False, False, id="one that the kernel does not name"),
        pytest.param(HERE, None, False, True, id="a broker has left, and would not wait at its restart"),
        pytest.param(HERE, None, True, False, id="a broker has left, and waits for our lock at its restart"),
        pytest.param(ANNOUNCED, None, False, True, id="it was announced"),
        pytest.param(ANNOUNCED, 7, False, False, id="the one that was announced has come"),
        pytest.param(
            HERE.announced(0.0), None, True, True, id="announced before it was seen that another has left"
        ),
    ],
)
def test_a_broker_is_expected_for_a_minute(
    before: BrokerStart, owner: int | None, waits_for_us: bool, is_expected: bool
) -> None:
    after = before.seen(owner, 0.0, waits_for_us=waits_for_us)
    assert after.owner == owner
    assert after.is_expected(BROKER_START_S - 1) == is_expected
    assert not after.is_expected(BROKER_START_S), "it does not come"


def test_a_look_does_not_prolong_what_it_finds() -> None:
    """Only the first one after a broker has left begins the minute."""
    found = HERE
    for now_s in (0.0, 20.0, 40.0):
        found = found.seen(None, now_s, waits_for_us=False)
    assert found.until_s == BROKER_START_S
