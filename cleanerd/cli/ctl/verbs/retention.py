"""Verbs that delete old records: `retention`, `delete-records`."""

import sys
from argparse import Namespace

from cleanerd.cli.arguments import LOG, OFFSET, PATTERN, option
from cleanerd.cli.ctl.asking import call, given
from cleanerd.cli.ctl.client import FAILED, Client, ControlError
from cleanerd.cli.ctl.tables import WHERE, Columns, field, log_name, table
from cleanerd.cli.ctl.verb import Reply, Verb, View
from cleanerd.daemon.api import endpoints
from cleanerd.units import instant, size

_RETENTION: Columns = {
    "LOG": log_name,
    "OUTCOME": field("outcome"),
    "SEGMENTS": lambda row: str(row["segments"] or ""),
    "SIZE": lambda row: size(row["bytes"]) if row["bytes"] else "",
    "BREACHED": field("breaches", ", ".join),
    "NEXT AT": field("next_ms", instant),
    "LOG DIR": field("log_dir"),
    "REASON": lambda row: row["reason"] or row["kept"] or "",
}
_DELETED: Columns = {
    **WHERE,
    "LOG START": field("log_start_offset"),
    "SEGMENTS": field("segments_deleted"),
    "DELETED": field("bytes_deleted", size),
}
_RECORDS = View(lambda rows: table(rows, _DELETED), "nothing was deleted")


def _delete_records(client: Client, options: Namespace) -> Reply:
    if not _is_confirmed(options):
        raise ControlError("nothing was deleted", FAILED)
    return Reply(call(client, endpoints.DELETE_RECORDS, given(client, (LOG, OFFSET), options)), _RECORDS)


def _is_confirmed(options: Namespace) -> bool:
    if options.yes or not sys.stdin.isatty():
        return True
    sys.stderr.write(
        f"Delete the records of {options.topic_partition} below offset {options.offset} for good? [y/N] "
    )
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


VERBS = (
    Verb(
        "retention",
        """Delete now what breaches a retention limit, or show what would go and why the rest stays.

Delete now the segments that breach a retention limit; with `--dry-run` only show which, and why the oldest of the others
stays.
""",
        (endpoints.RETENTION,),
        View(lambda rows: table(rows, _RETENTION), "nothing was deleted"),
        (PATTERN, option("--dry-run", "only show what would be deleted")),
        ("retention orders --dry-run", "retention 'orders-*'"),
        has_failed=lambda answer: any(row["outcome"] == "failed" for row in answer["retention"]),
    ),
    Verb(
        "delete-records",
        "Delete the records of a log below an offset, for good.",
        (endpoints.DELETE_RECORDS,),
        _RECORDS,
        (LOG, OFFSET, option("--yes", "do not ask for confirmation")),
        ("delete-records orders-3 150000",),
        ask=_delete_records,
    ),
)
