"""A broker that runs out of memory in the middle of a swap has the log as it was, and goes on."""

from pathlib import Path

import pytest

from cleanerd.broker_agent import session as sessions
from cleanerd.broker_agent.live_logs import describe
from cleanerd.format.names import TopicPartition
from tests.broker_agent.test_other_versions import agent, read
from tests.harness.broker.swapping import TOPIC, Swapping, answered
from tests.proofs.test_swap import live

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

MOMENTS = {  # code of the agent that it asks before
    "it opens the new segment": "return Shape.call(open, null, arguments);",
    "it has opened it": "Object[] lists = {containers.list(created)",
}


@pytest.mark.fault("the broker runs out of memory")
@pytest.mark.parametrize("moment", MOMENTS)
def test_nothing_is_begun_without_memory(
    swapping: Swapping, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The error is the JVM's own, in an agent that asks for too much. The directory stays online, the broker's cleaner goes
    on, and so does the next swap.
    """
    code = MOMENTS[moment]
    hungry = agent(tmp_path / "hungry", {code: f"Object full = new long[Integer.MAX_VALUE];\n{code}"})
    swapping.write(30)
    before = live(swapping.directory())
    with monkeypatch.context() as patch:
        patch.setattr(sessions, "agent_jar", lambda: read(hungry))
        session = swapping.session()
    answer = answered(swapping.stage_copies(groups_max=3), session)
    assert (answer.outcome, answer.cause) == ("failed", "out_of_memory"), answer
    assert "java.lang.OutOfMemoryError" in answer.reason
    assert live(swapping.directory()) == before
    (found,) = describe(session, str(swapping.log_dir), [TopicPartition(TOPIC, 0)])
    assert found.cleaning_state != "LogCleaningPaused"
    swapping.swap(swapping.session())
    swapping.let_own_cleaner_go_on()
    swapping.check_in_order()
