"""Those who tell the daemon what to do: clients of the control API, and who edits its configuration."""

from cleanerd.daemon.api.operations import OperationError
from cleanerd.daemon.api.service import Service
from cleanerd.daemon.configuration.reload import ReloadTrigger
from cleanerd.policy.lifecycle import Status
from tests.simulation.rules import Rules
from tests.simulation.stage import Stage


class Clients:
    """Of the daemon of a stage, if there is one."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def control(self) -> None:
        """A call of the API."""
        stage = self._stage
        if stage.daemon is None:
            return
        log, service = stage.chance.choice(stage.logs), self._service()
        draw, pattern = stage.chance.random(), str(log.tp)
        try:
            if stage.chance.random() < 0.2:
                told = [view.state for view in service.logs(None, None)]
                goes = [view.outcome for view in service.retention("*", dry_run=True)]
                stage.note(f"the logs are {told}, retention: {goes}")
            elif stage.held and draw < 0.6:
                self._resume(service, stage.chance.choice(sorted(stage.held)))
            elif draw < 0.4:
                view = service.pause(pattern, "me", "because", None, 0)
                stage.held[view.id] = log
                stage.note(f"paused {pattern} with {view.id}")
            elif draw < 0.7:
                self._abort(service, pattern, log.directory)
            elif draw < 0.9:
                service.clean(pattern, force=True)
                stage.note(f"asked for {pattern}")
            else:
                service.retry(pattern)
        except OperationError as error:
            stage.note(f"refused: {error}")

    def _abort(self, service: Service, pattern: str, directory: str) -> None:
        stage = self._stage
        assert stage.daemon is not None
        states = stage.daemon.parts.states
        known = [log for log in stage.daemon.parts.inventory.logs() if log.directory == directory]
        if any(states.state(log).status is Status.IN_PROGRESS for log in known):
            stage.aborted.add(directory)
            stage.counts["aborts"] += 1
        stage.note(f"aborts {pattern}")
        service.abort(pattern, 0)

    def _resume(self, service: Service, hold: str) -> None:
        del self._stage.held[hold]
        service.resume(hold)
        self._stage.note(f"resumed {hold}")

    def release_all(self) -> None:
        """No hold is left."""
        for hold in sorted(self._stage.held):
            self._resume(self._service(), hold)

    def reload(self) -> None:
        """The configuration is another one."""
        stage = self._stage
        stage.hear()
        self.write_configuration()
        stage.hear()
        if stage.daemon is not None:
            outcome = stage.daemon.reloader.reload(ReloadTrigger.REQUEST)
            stage.daemon.supervisor.reloaded(outcome)
            stage.note(f"reload {outcome.status.value} {outcome.problems} {stage.rules}")

    def write_configuration(self) -> None:
        """Another one, which the next reload or start reads."""
        stage, chance, is_calm = self._stage, self._stage.chance, self._stage.is_calm
        policy = chance.choice(["compact", "compact", "compact", "compact,delete", "delete"])
        if is_calm:
            policy = "compact"
        rules = stage.rules = Rules(
            delete_retention_ms=chance.choice([0, 2_000, 60_000]),
            compacts="compact" in policy,
            deletes="delete" in policy,
            retention_ms=chance.choice([-1, 30_000, 3_600_000]),
            retention_bytes=chance.choice([-1, -1, 4_000]),
            compaction_lag_ms=0 if is_calm else chance.choice([0, 0, 5_000]),
        )
        lines = {
            "log.dirs": ",".join(stage.log_dirs),
            "cleanerd.shutdown.timeout.ms": chance.choice([1_000, 10_000]),
            "log.cleanup.policy": policy,
            "log.retention.ms": rules.retention_ms,
            "log.retention.bytes": rules.retention_bytes,
            "log.retention.check.interval.ms": 2_000,
            "log.cleaner.min.cleanable.ratio": 0.0 if is_calm else chance.choice([0.0, 0.3, 0.6]),
            "log.cleaner.delete.retention.ms": rules.delete_retention_ms,
            "log.cleaner.min.compaction.lag.ms": rules.compaction_lag_ms,
            "cleanerd.merge.enable": chance.choice(["true", "false"]),
            "cleanerd.state.dir": stage.state,
            "cleanerd.retry.backoff.ms": 1000,
            "cleanerd.chunk.bytes": 1 << 20,
        }
        text = "".join(f"{key}={value}\n" for key, value in lines.items())
        with open(f"{stage.state}/server.properties", "w", encoding="latin-1") as file:
            file.write(text)
        for log in stage.logs:
            with open(f"{stage.state}/topics.d/{log.tp.topic}.properties", "w", encoding="latin-1") as file:
                size_bytes = chance.choice([700, 2500, 100_000])
                file.write(f"cleanup.policy={policy}\ninternal.segment.bytes={size_bytes}\n")

    def _service(self) -> Service:
        daemon = self._stage.daemon
        assert daemon is not None
        return Service(
            daemon.parts,
            daemon.supervisor.crew,
            daemon.reloader,
            lambda _: None,
            None,  # type: ignore[arg-type]
        )
