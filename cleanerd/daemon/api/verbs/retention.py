"""Run a retention pass, or report what it would delete."""

from cleanerd.daemon.api.control import Control
from cleanerd.daemon.api.parameters import Pattern
from cleanerd.daemon.values.models import RetentionView


def retention(control: Control, pattern: Pattern, dry_run: bool = False) -> tuple[RetentionView, ...]:
    """Run a retention pass over matching logs, or with `dry_run` report the segments that it would delete or keep, and why.

    A log that is paused, being cleaned, has failed, or belongs to a live broker is `skipped`.
    """
    logs = control.some(pattern)
    if dry_run:
        return tuple(map(control.retention.planned, logs))
    views = control.retention.run(logs)
    control.supervisor.scanner.scan()
    return views
