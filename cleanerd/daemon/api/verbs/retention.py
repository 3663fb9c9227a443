"""Delete now what breaches a retention limit, or show what would go and why the rest stays.

Delete now the segments that breach a retention limit; with `--dry-run` only show which, and why the oldest of the others
stays.
"""

from __future__ import annotations

from cleanerd.daemon.api.arguments import PATTERN, option
from cleanerd.daemon.api.verb import Endpoint, Verb, daemon


def retention(
    control: daemon.Control, pattern: daemon.Pattern, dry_run: bool = False
) -> tuple[daemon.RetentionView, ...]:
    """Run a retention pass over what matches, or with `dry_run` report what it would delete, what stays, and why.

    A log that is paused, being cleaned, has failed, or belongs to a live broker is `skipped`.
    """
    logs = control.some(pattern)
    if dry_run:
        return tuple(map(control.retention.planned, logs))
    views = control.retention.run(logs)
    control.supervisor.scanner.scan()
    return views


VERB = Verb(
    "retention",
    __doc__,
    (Endpoint("POST", "/v1/retention", "retention", retention),),
    (PATTERN, option("--dry-run", "only show what would be deleted")),
    ("retention orders --dry-run", "retention 'orders-*'"),
    has_failed=lambda answer: any(row["outcome"] == "failed" for row in answer["retention"]),
)
