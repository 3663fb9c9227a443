"""The wiring of the daemon: each part names in its constructor what it uses. Nothing here runs by itself."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from pydantic import TypeAdapter

from cleanerd.broker_agent.brokers import LiveBrokers
from cleanerd.cleaning.knowledge import node_setting
from cleanerd.cleaning.throttle import Throttle
from cleanerd.config.load import Configuration
from cleanerd.daemon.engine.client import Engine
from cleanerd.daemon.inventory.due_logs import DueLogs
from cleanerd.daemon.inventory.inventory import Inventory
from cleanerd.daemon.loops.cleanings import Cleaners, Cleanings
from cleanerd.daemon.loops.commit_rounds import CommitRounds
from cleanerd.daemon.loops.housekeeper import Housekeeper
from cleanerd.daemon.loops.pacer import Pacer
from cleanerd.daemon.loops.retainer import Retainer
from cleanerd.daemon.loops.scanner import Scanner
from cleanerd.daemon.store import HOLD, Store
from cleanerd.daemon.supervisor import Supervisor
from cleanerd.daemon.telemetry.event_log import EventLog
from cleanerd.daemon.telemetry.metrics import Metrics
from cleanerd.daemon.values.holds import Hold
from cleanerd.daemon.work.brokers_cleaner import BrokersCleaner
from cleanerd.daemon.work.cleaner_leases import CleanerLeases
from cleanerd.daemon.work.commits import Commits
from cleanerd.daemon.work.condition import Conditions
from cleanerd.daemon.work.deletions import PendingDeletions
from cleanerd.daemon.work.failures import Failures
from cleanerd.daemon.work.jobs import Jobs
from cleanerd.daemon.work.judge import Judge
from cleanerd.daemon.work.kept_holds import HoldsOfDirectories
from cleanerd.daemon.work.lease_duty import LeaseDuty
from cleanerd.daemon.work.moves import Moves
from cleanerd.daemon.work.mutes import Mutes
from cleanerd.daemon.work.ownership import Ownership
from cleanerd.daemon.work.retention import RetentionPasses
from cleanerd.daemon.work.schedule import Schedule
from cleanerd.daemon.work.states import PartitionStates
from cleanerd.daemon.workers import Bell, Bells, Life, Worker
from cleanerd.env.clock import Clock
from cleanerd.env.files import Files
from cleanerd.spark_runtime.spark_master import express_place, spark_place
from cleanerd.storage.replicas import FollowedReplicas
from cleanerd.storage.whose import Onlooker


class Parts:
    """Every part of one daemon; each may be used by any thread. Only the process, `Control` and tests look in here."""

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
        """`configuration` answers with the one that holds now; `recovering` is called after each partition directory that
        was recovered, so that a slow start can report progress.

        `refresh` reads what the cluster has configured since the configuration was read; whether it could, and with
        `with_files` whether the files are not rejected either.
        """
        self.configuration, self.log_dirs, self.store = configuration, log_dirs, store
        self.files, self.clock, self.life = files, clock, Life(clock.monotonic_s())
        self.bells, self.mutes = Bells(), Mutes(store, clock)
        self.events = EventLog(store, clock)
        self.metrics = Metrics(log_dirs, clock)
        self.throttle = Throttle(clock)
        self.brokers = LiveBrokers(files, clock, lambda: configuration().broker)
        self.inventory = Inventory(files, clock, self.brokers)
        self.due_logs = DueLogs(self.inventory, clock, configuration)
        self.states = PartitionStates(store.all(HOLD, TypeAdapter(Hold).validate_python).values())
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
        self.lease_duty = LeaseDuty(self.conditions, self.jobs)
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
        self.schedule = Schedule(self.conditions, self.jobs)
        self.engine = Engine(configuration, spark_place, clock)
        self.express_engine = Engine(configuration, express_place, clock)

    def supervisor(self) -> Supervisor:
        """The loops over these parts, with a thread each, none of which runs yet."""
        log_dirs, conditions, bells = self.log_dirs, self.conditions, self.bells
        engines = (self.engine, self.express_engine)
        judge = Judge(log_dirs, conditions, self.brokers)
        moves = Moves(log_dirs, self.store, self.inventory, self.files)
        scanner = Scanner(log_dirs, conditions, judge, moves, self.jobs, self.events, self.metrics, bells)
        cleanings = Cleanings(self.engine, conditions, self.commits, self.jobs, self.throttle)
        express = replace(cleanings, engine=self.express_engine, is_urgent=True)
        cleaners = Cleaners(self.schedule, cleanings, express, scanner, bells, self.life)
        committer = CommitRounds(self.commits, self.jobs, scanner, self.life)
        retainer = Retainer(conditions, self.retention, scanner)
        pacer = Pacer(log_dirs, conditions, self.throttle)
        housekeeper = Housekeeper(
            log_dirs, conditions, self.deletions, self.leases, self.mutes, self.store, self.events, engines, bells.work
        )  # fmt: skip
        loops = (
            ("scanner", scanner.step, scanner.bell),
            ("committer", committer.step, bells.commit),
            ("retention", retainer.step, Bell()),
            ("housekeeper", housekeeper.step, Bell()),
            ("pacer", pacer.step, pacer.bell),
        )
        return Supervisor(
            log_dirs=log_dirs, conditions=conditions, life=self.life, bells=bells, events=self.events,
            throttle=self.throttle, engines=engines, store=self.store, scanner=scanner, cleaners=cleaners, pacer=pacer,
            keepers=[Worker(f"cleanerd-{name}", step, bell, self.clock) for name, step, bell in loops],
        )  # fmt: skip
