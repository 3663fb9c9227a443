"""The steps of a cleaning as lines of the log, for whoever has to know at night where a log is and why."""

import structlog

from cleanerd.cleaning.result import Step
from cleanerd.daemon.values.log_id import LogId

_log = structlog.get_logger("cleanerd")


def log_step(log_dir: str, step: Step) -> None:
    """One line, at level debug."""
    log = LogId(log_dir, step.topic_partition)
    _log.debug("cleaning_step", **log.fields(), step=step.name, numbers=dict(step.numbers))
