"""Delete the records of a log below an offset, for good."""

from __future__ import annotations

import sys
from argparse import Namespace

from cleanerd.daemon.api.arguments import LOG, OFFSET, option
from cleanerd.daemon.api.asking import call, given
from cleanerd.daemon.api.client import FAILED, Client, ControlError
from cleanerd.daemon.api.refusals import Conflict, Invalid, OperationError
from cleanerd.daemon.api.verb import Endpoint, Reply, Verb, daemon
from cleanerd.errors import Aborted, CleanerdError, LockHeld


def delete_records(
    control: daemon.Control, topic_partition: daemon.Tp, offset: daemon.Offset
) -> tuple[daemon.DeletedRecords, ...]:
    """Raise the log start offset to `offset`, and delete the segments wholly below it.

    `Invalid` where the policy is `compact` without `delete`; `Conflict` for a log that may not be changed now, or that a
    live broker owns.
    """
    return tuple(_below(control, log, offset) for log in control.of(topic_partition))


def _below(control: daemon.Control, log: daemon.LogId, offset: int) -> daemon.DeletedRecords:
    try:
        deleted = control.parts.retention.delete_records(log, offset)
    except daemon.DeletionForbidden as error:
        raise Invalid(str(error)) from error
    except LockHeld as error:
        raise Conflict(f"{error}: ask its broker (kafka-delete-records.sh)") from error
    except (
        daemon.NotTaken,
        daemon.StillRunning,
        daemon.LogVanished,
        Aborted,
        daemon.IllegalTransition,
    ) as error:
        raise Conflict(str(error)) from error
    except (CleanerdError, OSError) as error:
        raise OperationError(str(error)) from error
    finally:
        control.supervisor.scanner.scan()
    return daemon.DeletedRecords(
        **log.fields(),
        log_start_offset=deleted.log_start_offset,
        segments_deleted=deleted.segments,
        bytes_deleted=deleted.bytes,
    )


_DELETE = Endpoint("POST", "/v1/delete-records", "deleted", delete_records)


def _ask(client: Client, options: Namespace) -> Reply:
    if not _is_confirmed(options):
        raise ControlError("nothing was deleted", FAILED)
    return Reply(call(client, _DELETE, given(client, (LOG, OFFSET), options)))


def _is_confirmed(options: Namespace) -> bool:
    if options.yes or not sys.stdin.isatty():
        return True
    sys.stderr.write(
        f"Delete the records of {options.topic_partition} below offset {options.offset} for good? [y/N] "
    )
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


VERB = Verb(
    "delete-records",
    __doc__,
    (_DELETE,),
    (LOG, OFFSET, option("--yes", "do not ask for confirmation")),
    ("delete-records orders-3 150000",),
    ask=_ask,
)
