"""Delete the records of a log below an offset."""

from cleanerd.cleaning.delete_records import DeletionForbidden
from cleanerd.daemon.api.control import Control
from cleanerd.daemon.api.parameters import Offset, Tp
from cleanerd.daemon.api.refusals import Conflict, Invalid, OperationError
from cleanerd.daemon.rules.log_states import LogVanished
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.values.models import DeletedRecords
from cleanerd.daemon.work.states import NotTaken, StillRunning
from cleanerd.errors import Aborted, CleanerdError, LockHeld
from cleanerd.policy.lifecycle import IllegalTransition


def delete_records(control: Control, topic_partition: Tp, offset: Offset) -> tuple[DeletedRecords, ...]:
    """Raise the log start offset to `offset`, and delete the segments wholly below it.

    `Invalid` where the policy is `compact` without `delete`; `Conflict` for a log that may not be changed now, or that a
    live broker owns.
    """
    return tuple(_below(control, log, offset) for log in control.of(topic_partition))


def _below(control: Control, log: LogId, offset: int) -> DeletedRecords:
    try:
        deleted = control.parts.retention.delete_records(log, offset)
    except DeletionForbidden as error:
        raise Invalid(str(error)) from error
    except LockHeld as error:
        raise Conflict(f"{error}: ask its broker (kafka-delete-records.sh)") from error
    except (
        NotTaken,
        StillRunning,
        LogVanished,
        Aborted,
        IllegalTransition,
    ) as error:
        raise Conflict(str(error)) from error
    except (CleanerdError, OSError) as error:
        raise OperationError(str(error)) from error
    finally:
        control.supervisor.scanner.scan()
    return DeletedRecords(
        **log.fields(),
        log_start_offset=deleted.log_start_offset,
        segments_deleted=deleted.segments,
        bytes_deleted=deleted.bytes,
    )
