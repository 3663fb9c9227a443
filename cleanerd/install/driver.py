"""Carries out what `machine` decides: one look, one decision, one step, the journal before it."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from cleanerd.env.clock import Clock
from cleanerd.env.files import Files
from cleanerd.errors import ClusterRefused
from cleanerd.format.names import TopicPartition
from cleanerd.format.uuid_text import parse_uuid
from cleanerd.install.area import Area, NotInstallable
from cleanerd.install.cluster import Claimed, Cluster, free_claim, take_claim
from cleanerd.install.machine import Limits, advance, is_added_and_removed, is_free, why_not
from cleanerd.install.prepare import Prepared, plan, prepare
from cleanerd.install.values import ClusterView, Install, Observation, PlaceContent, Step


@dataclass(frozen=True, slots=True)
class Offer:
    """An install that could begin now."""

    install: Install
    prepared: Prepared


def offer(files: Files, cluster: Cluster, area: Area, tp: TopicPartition, broker: int, clock: Clock) -> Offer:
    """Look whether the staged result of a log can be installed. Nothing is touched.

    Raises NotInstallable with the reason, Claimed, ClusterRefused; SourceChanged, CorruptFile, OSError of the result itself.
    """
    if area.journal.read() is not None:
        raise NotInstallable(f"{area.path}: an install that was left there is gone on with first")
    prepared = plan(files, area.log_dir, tp)
    area.check_room(prepared.copied_bytes + prepared.tail_bytes)
    claim = cluster.read_claim()
    if claim:
        raise Claimed(f"another install is under way in the cluster: {claim}")
    view = cluster.view(tp.topic, tp.partition, broker)
    if view.topic_id is None:
        raise NotInstallable(f"{tp}: the cluster has no such topic")
    now_ms = clock.now_ms()
    install = Install(
        id=uuid.uuid4().hex,
        topic=tp.topic,
        partition=tp.partition,
        topic_id=view.topic_id,
        broker=broker,
        log_dir=area.log_dir,
        replicas=view.replicas,
        was_leader=view.leader == broker,
        controller=view.controller,
        end_offset=prepared.end_offset,
        round_end=prepared.round_end,
        freed_bytes=prepared.freed_bytes,
        tail_bytes=prepared.tail_bytes,
        began_ms=now_ms,
        step=Step.PREPARED,
        step_ms=now_ms,
    )
    reason = why_not(install, Observation(view, area.place(install), True, None), cluster.min_isr(tp.topic))
    if reason is not None:
        raise NotInstallable(reason)
    return Offer(install, prepared)


@dataclass(slots=True)
class Driver:
    """One install, from PREPARED on. Not thread-safe. `told` hears of each step when it is in the journal.

    `failure`: what the last action of this step ended with, None where that went well.
    """

    area: Area
    cluster: Cluster
    clock: Clock
    limits: Limits
    install: Install
    told: Callable[[Install], None] = lambda _: None
    is_abort_asked: bool = False
    failure: str | None = field(default=None, init=False)
    _asked_s: float | None = field(default=None, init=False)
    _began_s: float = field(init=False)
    _entered_s: float = field(init=False)
    _absent_since_s: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._entered_s = self.clock.monotonic_s()
        before_ms = max(self.clock.now_ms() - self.install.began_ms, 0)  # in the process that has left it
        self._began_s = self._entered_s - before_ms / 1000

    @property
    def age_s(self) -> float:
        """Since the install began; by the monotonic clock from when this process began it, or found it in the journal."""
        return self.clock.monotonic_s() - self._began_s

    @property
    def in_step_s(self) -> float:
        """Since this process entered the step, or found it in the journal."""
        return self.clock.monotonic_s() - self._entered_s

    def begin(
        self,
        offered: Prepared,
        pause: Callable[[float], object],
        alive: Callable[[], object] = lambda: None,
    ) -> None:
        """PREPARED and the first REMOVING. Raises NotInstallable, Claimed, ClusterRefused, CleanerdError, OSError: then the
        cluster was asked for nothing: `abandon` it. `alive` is called with every file that is prepared.
        """
        install = self.install
        prepare(self.area.files, self.area, offered, install.id, parse_uuid(install.topic_id), alive)
        self._write(install)
        take_claim(self.cluster, install, self.clock, pause)
        reason = why_not(install, self._look(), self.cluster.min_isr(install.topic))
        if reason is not None:
            raise NotInstallable(reason)
        self._go(install.to(Step.REMOVING, self.clock.now_ms()))

    def abandon(self, reason: str) -> None:
        """Give up what `begin` has refused: the next `step` clears up."""
        self._enter(replace(self.install, reason=reason))

    def step(self) -> Install | None:
        """One look and what follows from it; the install when it is over.

        Raises ClusterRefused, OSError: nothing is known, or a step was not carried out; call it again.
        """
        if self.install.step in (Step.PREPARED, Step.CLEARING):
            after = advance(self.install, self._unseen(), self.clock.now_ms(), self.limits)
        else:
            after = advance(self.install, self._look(), self.clock.now_ms(), self.limits)
        if after is None:
            return None
        return self._go(after)

    def _unseen(self) -> Observation:
        """For steps that need no look at the cluster."""
        nothing = ClusterView(None, (), frozenset(), -1, (), (), frozenset(), (-1, -1), None, 0)
        return Observation(nothing, PlaceContent.NOTHING, False, None)

    def _look(self) -> Observation:
        install, now_s = self.install, self.clock.monotonic_s()
        view = self.cluster.view(install.topic, install.partition, install.broker)
        if view.topic_id is not None:
            self._absent_since_s = None
        elif self._absent_since_s is None:
            self._absent_since_s = now_s
        return Observation(
            view,
            self.area.place(install),
            self.area.is_prepared(install),
            None if self._asked_s is None else int((now_s - self._asked_s) * 1000),
            self.area.topic_id(install),
            0 if self._absent_since_s is None else int((now_s - self._absent_since_s) * 1000),
            self.failure,
            self.is_abort_asked,
            round(self.in_step_s * 1000),
        )

    def _go(self, install: Install) -> Install | None:
        """Be in a step, and carry it out."""
        if install != self.install:
            self._enter(install)
        if install.step is Step.CLEARING:
            return self._clear()
        self._asked_s = self.clock.monotonic_s()
        try:
            self._act()
            self.failure = None
        except (ClusterRefused, OSError) as error:
            self.failure = str(error)
        return None

    def _enter(self, install: Install) -> None:
        """Be in a step; in the journal, unless it is on a disk that is full or broken.

        A replica that is out does not wait for the journal: a process that comes after a kill sees what was done. What it
        could not see has to be there first: that this broker is taken out, and which list is brought back.
        """
        try:
            self._write(install)
        except OSError:
            if install.step is Step.REMOVING or install.topic_id != self.install.topic_id:
                raise
            self._be(install)

    def _write(self, install: Install) -> None:
        self.area.journal.write(install)
        self._be(install)

    def _be(self, install: Install) -> None:
        if install.step is not self.install.step:
            self._asked_s = self.failure = None
        if (install.step, install.step_ms) != (self.install.step, self.install.step_ms):
            self._entered_s = self.clock.monotonic_s()
        self.install = install
        self.told(install)

    def _act(self) -> None:
        install, cluster, area = self.install, self.cluster, self.area
        partition = (install.topic, install.partition)
        match install.step:
            case Step.REMOVING:
                cluster.ask_for_replicas(*partition, install.rest)
            case Step.MOVING:
                if area.place(install) is PlaceContent.NOTHING:
                    area.move_in(install)
            case Step.ADDING:
                view = cluster.view(*partition, install.broker)
                if view.hosted_in not in (None, install.log_dir) and area.place(install) is PlaceContent.OURS:
                    area.take_away(install)
                if is_added_and_removed(install, view):
                    cluster.cancel_reassignment(*partition)
                    return
                if view.log_dirs > 1 and view.hosted_in is None:
                    cluster.prefer_log_dir(*partition, install.broker, install.log_dir)
                cluster.ask_for_replicas(*partition, install.replicas)
            case Step.EVICTING:
                view = cluster.view(*partition, install.broker)
                if view.adding == (install.broker,):
                    cluster.cancel_reassignment(*partition)
                elif view.replicas != install.rest:
                    cluster.ask_for_replicas(*partition, install.rest)
                elif is_free(install, view) and area.place(install) is PlaceContent.OURS:
                    area.take_away(install)  # else the broker renames it, as any log whose replica goes
            case Step.ELECTING:
                cluster.elect_preferred(*partition)

    def _clear(self) -> Install:
        install = self.install
        free_claim(self.cluster, install)
        view = self.cluster.view(install.topic, install.partition, install.broker)
        is_assigned = view.topic_id == install.topic_id and install.broker in view.replicas
        # One that does not answer may be stopped with its files open; at its start it makes a stray of what it has no more.
        is_open = view.hosted_in == install.log_dir or install.broker not in view.alive
        self.area.clear(install, is_brokers=is_assigned or is_open)
        return install
