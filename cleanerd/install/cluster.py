"""What an install asks of the cluster, and the claim that keeps two installs from running at a time.

The claim is one register that all brokers see. Kafka has no compare-and-set for it, but a bound on how long a write takes is
enough (Fischer's algorithm): read it as free; write ours; if reading and writing took longer than the pause, give up; pause;
read it again. A daemon that reads its own claim then is alone: all that saw the register free have written before that.
"""

import json
from collections.abc import Callable, Sequence
from typing import Protocol

from cleanerd.env.clock import Clock
from cleanerd.errors import Retryable
from cleanerd.install.values import ClusterView, Install

_PAUSE_S = 2.0
_WRITE_MAX_S = 1.5


class Claimed(Retryable):
    """Another install has the claim."""


class Cluster(Protocol):
    """The cluster, through its admin API. Every method raises ClusterRefused."""

    def view(self, topic: str, partition: int, broker: int) -> ClusterView:
        """What there is to see of a partition, and of a broker's replica of it."""
        ...

    def min_isr(self, topic: str) -> int:
        """The min.insync.replicas that holds for a topic."""
        ...

    def ask_for_replicas(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Ask for a list of replicas. Whether it comes to be shows later."""
        ...

    def cancel_reassignment(self, topic: str, partition: int) -> None:
        """End the reassignment that is under way: what was to be added goes, and nothing else."""
        ...

    def prefer_log_dir(self, topic: str, partition: int, broker: int, log_dir: str) -> None:
        """Tell a broker that has no replica of a partition where to put one."""
        ...

    def elect_preferred(self, topic: str, partition: int) -> None:
        """Make the first replica the leader, if it is in sync."""
        ...

    def read_claim(self) -> str:
        """The register; empty: free."""
        ...

    def write_claim(self, text: str) -> None:
        """Set the register."""
        ...


def take_claim(cluster: Cluster, install: Install, clock: Clock, pause: Callable[[float], object]) -> None:
    """Get the claim for an install, or keep it. Raises Claimed, ClusterRefused."""
    began_s, found = clock.monotonic_s(), cluster.read_claim()
    if _id_of(found) == install.id:
        return
    if found:
        raise Claimed(f"another install is under way in the cluster: {found}")
    cluster.write_claim(_text(install))
    took_s = clock.monotonic_s() - began_s
    written_s = clock.monotonic_s()
    pause(_PAUSE_S)
    paused_s = clock.monotonic_s() - written_s
    if _id_of(found := cluster.read_claim()) != install.id:
        raise Claimed(f"another install was quicker: {found or 'it is over'}")
    if took_s > _WRITE_MAX_S or paused_s <= _WRITE_MAX_S:
        cluster.write_claim("")
        raise Claimed(
            f"expected {_WRITE_MAX_S} s for a claim at most, found {took_s:.1f}; paused for {paused_s:.1f}"
        )


def free_claim(cluster: Cluster, install: Install) -> None:
    """Give the claim back if it is this install's. Raises ClusterRefused."""
    if _id_of(cluster.read_claim()) == install.id:
        cluster.write_claim("")


def _text(install: Install) -> str:
    return json.dumps(
        {
            "id": install.id,
            "broker": install.broker,
            "partition": str(install.topic_partition),
            "replicas": install.replicas,
            "since_ms": install.began_ms,
        }
    )


def _id_of(text: str) -> str | None:
    """Whose claim it is; a text that is not ours is that of another."""
    try:
        return str(json.loads(text)["id"]) if text else None
    except (ValueError, TypeError, KeyError):
        return "?"
