"""The parts of the daemon, shared by all its threads. Nothing here runs by itself: that is the work of `loops`."""

import threading
from collections.abc import Callable
from functools import partial

from pydantic import TypeAdapter

from cleanerd.broker_agent.brokers import LiveBrokers
from cleanerd.cleaning.knowledge import node_setting
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
from cleanerd.daemon.work.kept_holds import HoldsOfDirectories
from cleanerd.daemon.work.lease_duty import LeaseDuty
from cleanerd.daemon.work.ownership import Ownership
from cleanerd.daemon.work.retention import RetentionPasses
from cleanerd.daemon.work.schedule import Schedule
from cleanerd.daemon.work.states import PartitionStates
from cleanerd.daemon.workers import Bell, Life
from cleanerd.env.clock import Clock
from cleanerd.env.files import Files
from cleanerd.spark_runtime.spark_master import express_place, spark_place
from cleanerd.storage.replicas import FollowedReplicas
from cleanerd.storage.whose import Onlooker


class Parts:
    """Made once; every part may be used by any thread.

    `configuration` answers with the one that holds now. `work_bell` rings when there may be something to clean,
    `commit_bell` when a result may be committed; `progressed` is notified when a log was cleaned, committed or vanished.
    """

    def __init__(
        self,
        configuration: Callable[[], Configuration],
        log_dirs: tuple[str, ...],
        store: Store,
        files: Files,
        clock: Clock,
        recovering: Callable[[], None] = lambda: None,
        refresh: Callable[..., bool] = lambda **_: True,
    ) -> None:
        """`recovering` is called after each partition directory that was recovered: a slow start can report progress.

        `refresh` reads what the cluster has configured since the configuration was read; whether it could, and with
        `with_files` whether the files are not rejected either.
        """
        self.configuration, self.log_dirs, self.store = configuration, log_dirs, store
        self.files, self.clock, self.life = files, clock, Life(clock.monotonic_s())
        self.work_bell, self.commit_bell, self.progressed = Bell(), Bell(), threading.Condition()
        self.events = EventLog(store, clock)
        self.metrics = Metrics(log_dirs, clock)
        self.throttle = Throttle(clock)
        self.brokers = LiveBrokers(files, clock, lambda: configuration().broker)
        self.inventory = Inventory(files, clock, self.brokers)
        self.due_logs = DueLogs(self.inventory, clock, configuration)
        self.states = PartitionStates(clock, store.all(HOLD, TypeAdapter(Hold).validate_python).values())
        self.obstacles = self.states.obstacles
        self.failures = Failures(store)
        onlooker = Onlooker(files, lambda: node_setting(configuration()))
        self.deletions, self.jobs = PendingDeletions(files, clock, onlooker), Jobs(clock)
        # Also those that are configured and not cleaned here: a replica may be on its way to one of them.
        brokers_dirs = tuple(dict.fromkeys((*log_dirs, *configuration().broker.log_dirs)))
        self.ownership = Ownership(
            files, clock, brokers_dirs, self.events, self.deletions, self.metrics, self.jobs, self.brokers,
            lambda: configuration().broker, recovering, onlooker, HoldsOfDirectories(store, self.states, clock),
        )  # fmt: skip
        self.brokers_cleaner = BrokersCleaner(files)
        self.conditions = Conditions(
            inventory=self.inventory, due_logs=self.due_logs, states=self.states, failures=self.failures,
            ownership=self.ownership, configuration=configuration, clock=clock,
            brokers_cleaner=self.brokers_cleaner, is_leased=lambda log: log in self.leases.held,
        )  # fmt: skip
        self.lease_duty = LeaseDuty(self.due_logs, self.conditions, self.jobs, clock)
        self.leases = CleanerLeases(self.brokers, self.inventory, files, clock, self.lease_duty)
        self.commits = Commits(
            states=self.states, ownership=self.ownership, events=self.events, inventory=self.inventory,
            metrics=self.metrics, brokers=self.brokers, brokers_cleaner=self.brokers_cleaner,
            configuration=configuration, refresh=refresh, pause=self.life.stopping.wait,
            replicas=FollowedReplicas(files),
        )  # fmt: skip
        self.retention = RetentionPasses(
            states=self.states, files=files, clock=clock, configuration=configuration, deletions=self.deletions,
            ownership=self.ownership, inventory=self.inventory, metrics=self.metrics, events=self.events,
            # What the broker will go by when it starts may keep what is deleted here.
            refresh=partial(refresh, with_files=True),
        )  # fmt: skip
        self.schedule = Schedule(
            self.due_logs, self.states, self.jobs, configuration, self.conditions, self.ownership, clock
        )
        self.engine = Engine(configuration, spark_place, clock)
        self.express_engine = Engine(configuration, express_place, clock)

    def stamp(self, log: LogId) -> str:
        """Stands for the files of a log and its configuration: another one means that a failure may be over."""
        return stamp_of(self.inventory.facts(log), self.configuration().topic(log.topic_partition.topic))
