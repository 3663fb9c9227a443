"""Keep the broker's own cleaner from logs, for as long as somebody renews that.

A lease is Kafka's own pause of a log, which counts: each lease is one. It ends by itself when it is not renewed, also when
cleanerd is killed or its conversation with the broker has ended: a timer in the agent sees to that
(`java/cleanerd/agent/Leases.java`). So nothing lasting is changed, and the broker's cleaner always takes over again. A swap
passes a pause that only leases make up.
"""

from collections.abc import Sequence

from cleanerd.errors import NoWayIn, SourceChanged
from cleanerd.format.names import TopicPartition
from cleanerd.storage.partition_dir import PartitionDir

from .live_logs import named_log
from .session import Session

_ANSWER_S = 10.0


def lease(
    session: Session, holder: str, logs: Sequence[tuple[PartitionDir, TopicPartition]], lease_ms: int
) -> dict[TopicPartition, str]:
    """Keep the broker's cleaner from these logs from now on, and from no others that `holder` had; up to ten minutes.

    Returns those that this is refused for, with the reason: a log with cleanup.policy=compact,delete, whose retention the
    broker's cleaner sees to, or another log than ours. One that the broker cleans at the moment is not among them: it is
    left alone until the next time. Raises NoWayIn.
    """
    named, unnamed = [], dict[TopicPartition, str]()
    for partition, tp in logs:
        try:
            named.append(named_log(partition, tp))
        except (SourceChanged, OSError) as error:
            unnamed[tp] = str(error)
    request = {"request": "lease", "holder": holder, "lease_ms": lease_ms, "logs": named}
    answer = session.ask(request, _ANSWER_S)
    if answer["outcome"] != "leased":
        raise NoWayIn(f"the broker's cleaner cannot be kept from logs: {answer.get('reason')}")
    return unnamed | {
        TopicPartition(topic, partition): reason
        for topic, partition, outcome, reason in answer["refused"]
        if outcome not in ("busy", "later")
    }
