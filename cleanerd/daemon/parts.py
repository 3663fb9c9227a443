"""What the daemon is built from, shared by all its threads. Nothing in here runs by itself: that is the work of `loops`."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from pydantic import TypeAdapter

from cleanerd.broker_agent.brokers import LiveBrokers
from cleanerd.cleaning.throttle import Throttle
from cleanerd.config.load import Configuration
from cleanerd.daemon.engine.client import Engine
from cleanerd.daemon.inventory.due_logs import DueLogs
from cleanerd.daemon.inventory.inventory import Inventory
from cleanerd.daemon.inventory.listed_log import stamp_of
from cleanerd.daemon.store import HOLD, Store
from cleanerd.daemon.telemetry.event_log import EventLog
from cleanerd.daemon.telemetry.metrics import Metrics
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.brokers_cleaner import BrokersCleaner
from cleanerd.daemon.work.cleaner_leases import CleanerLeases
from cleanerd.daemon.work.commits import Commits
from cleanerd.daemon.work.condition import Conditions
from cleanerd.daemon.work.deletions import PendingDeletions
from cleanerd.daemon.work.failures import Failures
from cleanerd.daemon.work.holds import Hold
from cleanerd.daemon.work.jobs import Jobs
from cleanerd.daemon.work.ownership import Ownership
from cleanerd.daemon.work.recoveries import Recoveries
from cleanerd.daemon.work.retention import RetentionPasses
from cleanerd.daemon.work.schedule import Schedule
from cleanerd.daemon.work.states import Obstacles, PartitionStates
from cleanerd.daemon.work.wanted import Wanted
from cleanerd.daemon.work.ways import Ways
from cleanerd.daemon.workers import Bell
from cleanerd.env.clock import Clock
from cleanerd.env.files import Files
from cleanerd.spark_runtime.spark_master import express_place, spark_place


@dataclass(slots=True)
class Life:
    """Where the daemon is between its start and its stop."""

    started_s: float
    is_ready: bool = False
    stopping: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class Parts:
    """Made once by `build_parts`; every part may be used by any thread.

    `configuration` answers with the one that holds now. `work_bell` rings when there may be something to clean,
    `commit_bell` when a result may be committed; `progressed` is notified when a log was cleaned, committed or vanished.
    """

    configuration: Callable[[], Configuration]
    log_dirs: tuple[str, ...]
    files: Files
    clock: Clock
    life: Life
    work_bell: Bell
    commit_bell: Bell
    progressed: threading.Condition
    store: Store
    metrics: Metrics
    events: EventLog
    inventory: Inventory
    due_logs: DueLogs
    states: PartitionStates
    failures: Failures
    obstacles: Obstacles
    ownership: Ownership
    conditions: Conditions
    throttle: Throttle
    jobs: Jobs
    schedule: Schedule
    deletions: PendingDeletions
    retention: RetentionPasses
    engine: Engine
    express_engine: Engine
    wanted: Wanted
    brokers: LiveBrokers
    leases: CleanerLeases
    ways: Ways
    commits: Commits

    def stamp(self, log: LogId) -> str:
        """Stands for the files of a log and its configuration: another one means that a failure may be over."""
        return stamp_of(self.inventory.facts(log), self.configuration().topic(log.topic_partition.topic))


def build_parts(
    configuration: Callable[[], Configuration],
    log_dirs: tuple[str, ...],
    store: Store,
    files: Files,
    clock: Clock,
    recovering: Callable[[], None] = lambda: None,
    refresh: Callable[[], None] = lambda: None,
) -> Parts:
    """All of them, with what connects them.

    `recovering` is called after each partition directory that was recovered, so that a slow start can report progress.
    `refresh` reads what the cluster has configured for its topics since the configuration was read.
    """
    life = Life(clock.monotonic_s())
    metrics = Metrics(log_dirs, clock)
    brokers_cleaner = BrokersCleaner(files)
    answered = (metrics.asked_to_swap, brokers_cleaner.asked_to_swap)
    brokers = LiveBrokers(files, clock, lambda: configuration().broker, *answered)
    inventory = Inventory(files, clock, brokers)
    deletions = PendingDeletions(files, clock)
    due_logs = DueLogs(inventory, clock, configuration)
    events = EventLog(store, clock)
    recoveries = Recoveries(events, deletions, metrics, recovering)
    # Also those that are configured and not cleaned here: a replica may be on its way to one of them.
    brokers_dirs = tuple(dict.fromkeys((*log_dirs, *configuration().broker.log_dirs)))
    jobs = Jobs(clock)
    ownership = Ownership(files, clock, brokers_dirs, recoveries, jobs)
    obstacles = Obstacles()
    held = store.all(HOLD, TypeAdapter(Hold).validate_python).values()
    states = PartitionStates(clock, held, obstacles)
    wanted = Wanted(states, files, clock, configuration, refresh, inventory)
    failures = Failures(store)
    leases = CleanerLeases(brokers, inventory, files, clock)
    conditions = Conditions(
        inventory=inventory, due_logs=due_logs, states=states, failures=failures, ownership=ownership,
        configuration=configuration, clock=clock, obstacles=obstacles, brokers_cleaner=brokers_cleaner,
        leases=leases, ways=(ways := Ways(ownership, brokers)),
    )  # fmt: skip
    commits = Commits(
        states=states, ownership=ownership, events=events, inventory=inventory, metrics=metrics, wanted=wanted,
        brokers=brokers,
        pause=life.stopping.wait,
    )  # fmt: skip
    retention = RetentionPasses(
        states=states, files=files, clock=clock, configuration=configuration, deletions=deletions,
        ownership=ownership, inventory=inventory, metrics=metrics, events=events,
    )  # fmt: skip
    schedule = Schedule(due_logs, states, jobs, configuration, conditions, ownership, clock)
    return Parts(
        configuration=configuration, log_dirs=log_dirs, files=files, clock=clock, life=life,
        work_bell=Bell(), commit_bell=Bell(), progressed=threading.Condition(),
        store=store, metrics=metrics, events=events, inventory=inventory, due_logs=due_logs, states=states,
        failures=failures, obstacles=obstacles, ownership=ownership, conditions=conditions, throttle=Throttle(clock),
        jobs=jobs, schedule=schedule, deletions=deletions, retention=retention, wanted=wanted, commits=commits,
        brokers=brokers, leases=leases, ways=ways,
        engine=Engine(configuration, spark_place, clock), express_engine=Engine(configuration, express_place, clock),
    )  # fmt: skip
