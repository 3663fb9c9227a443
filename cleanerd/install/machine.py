"""What to do next with an install: pure, from the journal and from what is seen (the head of the package has the table)."""

from dataclasses import dataclass, replace

from cleanerd.install.values import ClusterView, Install, Observation, Outcome, PlaceContent, Step

REQUEST_MS = 10_000
"""Time limit of a request to the cluster: what it has not begun by then it does not do."""

_ASK_AGAIN_MS = 1_000
_SETTLE_MS = REQUEST_MS + 5_000
_ABSENT_MS = 10_000
_ELECTION_MS = 10_000


@dataclass(frozen=True, slots=True)
class Limits:
    """`step_ms`: for REMOVING, EVICTING and for the broker to load the directory; `catch_up_ms`: until it is in sync."""

    step_ms: int
    catch_up_ms: int


def why_not(install: Install, seen: Observation, min_isr: int) -> str | None:
    """What stands against taking the replica out now, None for nothing."""
    cluster, name = seen.cluster, install.topic_partition
    if cluster.topic_id != install.topic_id:
        return f"{name}: the topic was deleted or created again: expected id {install.topic_id}, found {cluster.topic_id}"
    if _is_reassigning(cluster):
        return f"{name}: a reassignment is under way: adding {cluster.adding}, removing {cluster.removing}"
    if cluster.replicas != install.replicas:
        return f"{name}: its replicas were {install.replicas}, are {cluster.replicas}"
    if install.broker not in cluster.replicas:
        return f"{name}: broker {install.broker} is none of its replicas {cluster.replicas}"
    if len(cluster.replicas) < 2:
        return f"{name}: it has a single replica, which cannot be taken out while the broker runs"
    behind = sorted(set(cluster.replicas) - cluster.isr)
    if behind:
        return f"{name}: expected all replicas in sync, behind are {behind}"
    if len(install.rest) < min_isr:
        return f"{name}: min.insync.replicas is {min_isr}, and without broker {install.broker} {len(install.rest)} are left"
    if cluster.hosted_in != install.log_dir or seen.place is not PlaceContent.OTHER:
        return f"{name}: expected it in {install.log_dir}, the broker has it in {cluster.hosted_in}"
    return None


def advance(install: Install, seen: Observation, now_ms: int, limits: Limits) -> Install | None:
    """The install as it is to go on, whose step is to be carried out (once more, if it is the same); None: wait."""
    if install.step is Step.CLEARING:
        return install
    if install.step is Step.PREPARED:  # of a process that is no more: nothing was asked of the cluster
        return install.to(
            Step.CLEARING, now_ms, outcome=Outcome.ABANDONED, reason=install.reason or "restarted"
        )
    cluster = seen.cluster
    if cluster.topic_id != install.topic_id:
        if cluster.topic_id is None and seen.absent_for_ms < _ABSENT_MS:
            return None  # a broker that has just started may not know it yet
        return _other_topic(install, seen, now_ms)
    if _is_reassigning(cluster) and not _is_ours(install, cluster):
        return None  # not ours: wait for what becomes of it
    if not _is_reassigning(cluster) and cluster.replicas not in (install.replicas, install.rest):
        reason = f"the replicas were {install.replicas}, they were changed to {cluster.replicas}"
        return install.to(Step.CLEARING, now_ms, outcome=Outcome.FOREIGN, reason=reason)
    return _STEPS[install.step](install, seen, now_ms, limits)


def _other_topic(install: Install, seen: Observation, now_ms: int) -> Install | None:
    """The topic is gone, or there is another one of its name."""
    cluster = seen.cluster
    reason = (
        f"the topic was deleted or created again: expected id {install.topic_id}, found {cluster.topic_id}"
    )
    is_wanted = install.broker in cluster.replicas and len(cluster.replicas) > 1
    if seen.place is not PlaceContent.OURS or cluster.topic_id is None or not is_wanted:
        return install.to(Step.CLEARING, now_ms, outcome=Outcome.DROPPED, reason=reason)
    if _is_reassigning(cluster):
        return None
    # Our directory is in the way: the broker refuses it for the new topic, and makes a log only for a new replica.
    return install.to(
        Step.EVICTING, now_ms, topic_id=cluster.topic_id, replicas=cluster.replicas, reason=reason
    )


def _is_reassigning(cluster: ClusterView) -> bool:
    return bool(cluster.adding or cluster.removing)


def _is_ours(install: Install, cluster: ClusterView) -> bool:
    """Whether the reassignment under way can be the one that this install has asked for: its only change is this broker."""
    changed = {*cluster.adding, *cluster.removing}
    return changed == {install.broker} and set(cluster.replicas) == set(install.replicas)


def _is_out(install: Install, cluster: ClusterView) -> bool:
    return cluster.replicas == install.rest and not _is_reassigning(cluster)


def _is_back(install: Install, cluster: ClusterView) -> bool:
    return cluster.replicas == install.replicas and not _is_reassigning(cluster)


def is_added_and_removed(install: Install, cluster: ClusterView) -> bool:
    """Whether a reassignment both adds and removes this broker, which can only be cancelled.

    Kafka's controller (4.3.0) comes to that when it is asked for a list without a replica that it has not added yet. It then
    waits for ever: for the replica to be in sync among those that stay, and it is none of them.
    """
    return install.broker in cluster.adding and install.broker in cluster.removing


def is_free(install: Install, cluster: ClusterView) -> bool:
    """Whether a broker that runs says that it has no log of the partition open, so that what lies there is not in use."""
    return install.broker in cluster.alive and cluster.hosted_in is None


def _again(seen: Observation) -> bool:
    return seen.asked_ago_ms is None or seen.asked_ago_ms >= _ASK_AGAIN_MS


def _trouble(install: Install, seen: Observation, limits: Limits) -> str | None:
    """What makes us put the replica back at once."""
    cluster = seen.cluster
    gone = sorted(set(install.rest) - cluster.isr)
    if gone:
        return f"replicas {gone} are not in sync any more"
    if cluster.controller != install.controller:
        return f"the controller was {install.controller}, is {cluster.controller}"
    if seen.is_abort_asked:
        return "aborted on request"
    if seen.in_step_ms > limits.step_ms:
        return f"the broker has not closed the log within {limits.step_ms} ms"
    return None


def _removing(install: Install, seen: Observation, now_ms: int, limits: Limits) -> Install | None:
    if _is_out(install, seen.cluster) and seen.place is PlaceContent.NOTHING:
        if seen.is_prepared:
            return install.to(Step.MOVING, now_ms)
        return install.to(Step.ADDING, now_ms, reason="the prepared directory is not there any more")
    if seen.place is PlaceContent.OURS:  # it was moved in while the journal could not be written
        return install.to(Step.ADDING, now_ms, is_moved=True)
    reason = _trouble(install, seen, limits) or seen.failure
    if reason is None and seen.asked_ago_ms is None and _is_back(install, seen.cluster):
        reason = "the daemon was restarted"  # what was prepared may be out of date
    if reason is not None:
        return install.to(Step.ADDING, now_ms, reason=reason)
    return install if _is_back(install, seen.cluster) and _again(seen) else None


def _moving(install: Install, seen: Observation, now_ms: int, _: Limits) -> Install | None:
    if seen.place is PlaceContent.OURS:
        return install.to(Step.ADDING, now_ms, is_moved=True)
    reason = seen.failure
    if seen.place is PlaceContent.OTHER:
        reason = "something else lies under the name of the partition"
    elif not seen.is_prepared:
        reason = "the prepared directory is not there any more"
    return install if reason is None else install.to(Step.ADDING, now_ms, reason=reason)


def _adding(install: Install, seen: Observation, now_ms: int, limits: Limits) -> Install | None:
    cluster = seen.cluster
    in_step_ms = seen.in_step_ms
    if (
        install.is_moved and seen.place is not PlaceContent.OURS
    ):  # a broker that started meanwhile has made it a stray one
        reason = "the prepared directory is not under the name of the partition any more"
        return install.to(Step.ADDING, now_ms, is_moved=False, reason=reason)
    if seen.place is PlaceContent.OURS and cluster.hosted_in not in (None, install.log_dir):
        if install.is_moved:
            reason = f"the broker has put the replica into {cluster.hosted_in}"
            return install.to(Step.ADDING, now_ms, is_moved=False, reason=reason)
        return install if _again(seen) else None  # a broker does not start beside two of a partition
    if _is_out(install, cluster) or is_added_and_removed(install, cluster):
        return install if _again(seen) else None
    if seen.asked_ago_ms is None:
        return install  # an older request may still be on its way: this one comes after it
    if (
        install.is_moved and install.broker in cluster.alive - cluster.isr
    ):  # else the broker uses what was prepared
        if seen.topic_id_in_place != install.topic_id:
            reason = f"the prepared directory has the topic id {seen.topic_id_in_place}"
            return install.to(Step.EVICTING, now_ms, reason=reason)
        if cluster.hosted_in is None and in_step_ms > limits.step_ms:
            reason = f"the broker has not loaded the prepared directory within {limits.step_ms} ms"
            return install.to(Step.EVICTING, now_ms, reason=reason)
    if not _is_back(install, cluster) or (install.reason is not None and in_step_ms < _SETTLE_MS):
        return None
    if install.broker in cluster.isr and cluster.hosted_in is not None:
        if install.was_leader and install.replicas[0] == install.broker and cluster.leader != install.broker:
            return install.to(Step.ELECTING, now_ms)
        return _clear(install, now_ms)
    if in_step_ms <= limits.catch_up_ms:
        return None
    reason = (
        install.reason or f"the list is the old one, but the replica is not in sync after {in_step_ms} ms"
    )
    return _clear(replace(install, reason=reason), now_ms)


def _evicting(install: Install, seen: Observation, now_ms: int, limits: Limits) -> Install | None:
    if _is_out(install, seen.cluster) and seen.place is not PlaceContent.OURS:
        return install.to(Step.ADDING, now_ms, is_moved=False)
    if seen.in_step_ms > limits.step_ms:
        reason = f"{install.reason}; the broker keeps it open until its next start"
        return install.to(Step.ADDING, now_ms, is_moved=False, reason=reason)
    return install if _again(seen) else None


def _electing(install: Install, seen: Observation, now_ms: int, _: Limits) -> Install | None:
    if seen.cluster.leader == install.broker or seen.in_step_ms > _ELECTION_MS:
        return _clear(install, now_ms)
    return install if _again(seen) else None


def _clear(install: Install, now_ms: int) -> Install:
    is_installed = install.is_moved and install.reason is None
    return install.to(Step.CLEARING, now_ms, outcome=Outcome.INSTALLED if is_installed else Outcome.RETURNED)


_STEPS = {
    Step.REMOVING: _removing,
    Step.MOVING: _moving,
    Step.ADDING: _adding,
    Step.EVICTING: _evicting,
    Step.ELECTING: _electing,
}
