"""What a broker is asked for at a time, however many groups a cleaning has."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cleanerd.broker_agent.session import REQUEST_MAX_BYTES, Session
from cleanerd.broker_agent.swap import Swap, Swapped
from cleanerd.env.files import RealFiles
from cleanerd.errors import NoWayIn
from cleanerd.format.names import FileKind, TopicPartition
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.staged import SourceSegment, StagedGroup

TP = TopicPartition("orders", 0)
LARGE = 2**62
"""No offset, inode, size or time has more digits."""


class Agent(Session):
    """Swaps all but what lies at `refused`, and writes down what it was asked for."""

    def __init__(self, refused: int | None = None) -> None:
        self.refused = refused
        self.requests: list[dict[str, Any]] = []

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        assert len(json.dumps(request)) < REQUEST_MAX_BYTES
        self.requests.append(dict(request))
        bases = [group["base_offset"] for group in request["groups"]]
        if self.refused not in bases:
            return {"outcome": "swapped", "lock_us": [1] * len(bases), "has_cleaner": True}
        done = bases.index(self.refused)
        return {"outcome": "changed", "cause": "segments", "reason": "it is gone", "lock_us": [1] * done}


def swap(tmp_path: Path, groups: int, sources: int = 1) -> Swap:
    """Of groups with so many sources each."""
    end, sizes = LARGE + groups * sources, dict.fromkeys(FileKind, LARGE)
    staged = []
    for first in range(LARGE, end, sources):
        read = [SourceSegment(base, LARGE, LARGE, 10**6 * LARGE) for base in range(first, first + sources)]
        staged.append(
            StagedGroup(
                tuple(read),
                first + sources,
                end,
                sizes,
                LARGE,
                first,
                ((0, 0),),
                is_last=first + sources == end,
            )
        )
    return Swap(PartitionDir(RealFiles(), str(tmp_path)), TP, staged, end, None, ((0, 0),))


@pytest.mark.parametrize(("groups", "sources"), [(13_000, 1), (500, 40), (2, 9_000), (3, 1)])
def test_all_groups_are_asked_for_in_order_and_the_last_request_moves_the_checkpoint(
    tmp_path: Path, groups: int, sources: int
) -> None:
    """The agent takes no more than 4 MiB, and ended at a larger request: as if the broker had."""
    agent, wanted = Agent(), swap(tmp_path, groups, sources)
    answer = wanted.by(agent)
    assert answer == Swapped("swapped", "other", "None", (1e-6,) * groups, str(tmp_path), has_cleaner=True)
    whole = wanted._request()
    assert [group for request in agent.requests for group in request["groups"]] == whole["groups"]
    assert [request["moves_checkpoint"] for request in agent.requests][:-1] == [False] * (
        len(agent.requests) - 1
    )
    assert agent.requests[-1] == {**whole, "groups": agent.requests[-1]["groups"]}
    assert (len(agent.requests) == 1) == (groups == 3)


def test_after_a_refusal_nothing_more_is_asked_for(tmp_path: Path) -> None:
    """The answer counts the groups of all requests that took the place of their sources."""
    agent = Agent(refused=LARGE + 7_000)
    answer = swap(tmp_path, 13_000).by(agent)
    assert (answer.outcome, answer.cause, len(answer.lock_s)) == ("changed", "segments", 7_000)
    assert not any(request["moves_checkpoint"] for request in agent.requests)


def test_a_checkpoint_alone_is_one_request(tmp_path: Path) -> None:
    agent = Agent()
    Swap(PartitionDir(RealFiles(), str(tmp_path)), TP, (), 5, 3, ()).by(agent)
    (request,) = agent.requests
    assert (request["groups"], request["moves_checkpoint"]) == ([], True)


def test_a_request_that_the_agent_would_not_read_is_not_sent() -> None:
    """As a group of 50,000 segments; the session goes on."""
    session = Session.__new__(Session)
    with pytest.raises(NoWayIn, match=r"the request has \d{7} bytes, and the broker's agent takes 4194304"):
        session.ask({"groups": "x" * REQUEST_MAX_BYTES}, 1.0)
