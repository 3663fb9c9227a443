"""Clients of the control API, and whoever edits the configuration of the daemon."""

from cleanerd.daemon.api.control import Control
from cleanerd.daemon.api.refusals import OperationError
from cleanerd.daemon.api.verbs import abort, clean, logs, pause, resume, retention, retry
from cleanerd.daemon.configuration.reload import ReloadTrigger
from cleanerd.policy.lifecycle import Status
from tests.simulation.rules import Rules
from tests.simulation.stage import Stage


class Clients:
    """Of the daemon of a stage, if there is one."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def control(self) -> None:
        stage = self._stage
        if stage.daemon is None:
            return
        log, control = stage.chance.choice(stage.logs), self._control()
        draw, pattern = stage.chance.random(), str(log.tp)
        try:
            if stage.chance.random() < 0.2:
                states = [view.state for view in logs.logs(control)]
                goes = [view.outcome for view in retention.retention(control, "*", dry_run=True)]
                stage.note(f"the logs are {states}, retention: {goes}")
            elif stage.held and draw < 0.6:
                self._resume(control, stage.chance.choice(sorted(stage.held)))
            elif draw < 0.4:
                view = pause.pause(control, pattern, "me", "because", timeout_ms=0)
                stage.held[view.id] = log
                stage.note(f"paused {pattern} with {view.id}")
            elif draw < 0.7:
                self._abort(control, pattern, log.directory)
            elif draw < 0.9:
                clean.clean(control, pattern, force=True)
                stage.note(f"asked for {pattern}")
            else:
                retry.retry(control, pattern)
        except OperationError as error:
            stage.note(f"refused: {error}")

    def _abort(self, control: Control, pattern: str, directory: str) -> None:
        stage = self._stage
        assert stage.daemon is not None
        states = stage.daemon.parts.states
        known = [log for log in stage.daemon.parts.inventory.logs() if log.directory == directory]
        if any(states.state(log).status is Status.IN_PROGRESS for log in known):
            stage.aborted.add(directory)
            stage.counts["aborts"] += 1
        stage.note(f"aborts {pattern}")
        abort.abort(control, pattern, 0)

    def _resume(self, control: Control, hold: str) -> None:
        del self._stage.held[hold]
        resume.resume(control, hold)
        self._stage.note(f"resumed {hold}")

    def release_all(self) -> None:
        for hold in sorted(self._stage.held):
            self._resume(self._control(), hold)

    def reload(self) -> None:
        stage = self._stage
        stage.observe()
        self.write_configuration()
        stage.observe()
        if stage.daemon is not None:
            outcome = self._control().reload(ReloadTrigger.REQUEST)
            stage.note(f"reload {outcome.status.value} {outcome.problems} {stage.rules}")

    def write_configuration(self) -> None:
        stage, chance, is_calm = self._stage, self._stage.chance, self._stage.is_calm
        policies = ["compact", "compact", "compact", "compact,delete", "delete"]
        policy = chance.choice(["compact", "compact,delete"] if is_calm else policies)
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
            "cleanerd.state.dir": stage.state,
            "log.cleaner.backoff.ms": 1000,
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

    def _control(self) -> Control:
        daemon = self._stage.daemon
        assert daemon is not None
        return Control(daemon.parts, daemon.supervisor, daemon.reloader)
