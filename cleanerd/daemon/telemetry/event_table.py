"""Every event that the daemon logs: the only place for its level, fields and meaning, from which the reference is made.

One line an event, and events are rare: one for each log of a cleaning, none for a record or a batch. Nothing below the
daemon logs at all.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["debug", "info", "warning", "error"]

BOUND = {
    "worker": "the thread; scanner, committer, retention and housekeeper have it too",
    "job_id": "the cleaning job that the thread works on",
    "log_dir": "its log directory",
    "topic": "of the log, once the thread works on a single one",
    "partition": "of that log",
}
"""Fields of every line that is logged while a worker is at work on a job, beside those of the event."""

_LOG = ("log_dir", "topic", "partition")


@dataclass(frozen=True, slots=True)
class Event:
    """A row. `to_do` is for the operator, empty where there is nothing to do.

    With `outcomes` it is an event of the `EventLog`, which has that field, and a warning where the outcome is in `loud`.
    """

    name: str
    level: Level
    fields: tuple[str, ...]
    doc: str
    to_do: str = ""
    outcomes: tuple[str, ...] = ()
    loud: tuple[str, ...] = ()

    def level_of(self, outcome: str) -> Level:
        """Log level of an event with this outcome."""
        return "warning" if outcome in self.loud else self.level


EVENTS: dict[str, Event] = {}
"""All rows by name, in the order of the reference."""


def _row(
    name: str,
    level: Level,
    fields: Iterable[str],
    doc: str,
    to_do: str = "",
    outcomes: str = "",
    loud: str = "",
) -> None:
    row = Event(name, level, tuple(fields), doc, to_do, _words(outcomes), _words(loud))
    EVENTS[name] = row


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(", ")) if text else ()


# fmt: off
# -- what becomes of logs: logged by the `EventLog`, and kept in the history -----------------------------------------------

_row("cleaning", "info",
     ("outcome", "reason", "remedy", *_LOG, "job_id", "trigger", "first_dirty_offset", "end_offset", "seconds",
      "phase_seconds", "mb_per_s", "records_per_s", "bytes_read", "bytes_before", "bytes_after", "records_read",
      "records_kept", "removed", "segments_before", "segments_after", "error", "failures", "index_damage",
      "committed_by", "tombstones_stay", "peak_extra_bytes", "topic_codec_saves_bytes"),
     "A log went through a cleaning; one line for each log of a job. Cleaned was what lies before `end_offset`; `removed`: "
     "records by reason; `phase_seconds`: of the whole job, but for commit and checkpoint; "
     "`index_damage`: damaged indexes of the old segments, in whose place the log itself was read; `committed_by`: lock "
     "or swap; superseded_by_broker: the broker's cleaner or retention got there first; uncleanable: it has failed "
     "`failures` times and is no longer retried.",
     "failed: it is retried automatically. uncleanable: repair the file that the reason names, or `cleanerctl retry`.",
     outcomes="committed, staged, unchanged, skipped, superseded_by_broker, aborted, failed, uncleanable",
     loud="failed, uncleanable")
_row("commit", "info", ("outcome", "reason", *_LOG, "committed_by"),
     "A result that was staged because a broker owned the log directory was committed or dropped.",
     "dropped: nothing, the log has changed and will be cleaned again. failed: look at the disk.",
     outcomes="committed, dropped, failed", loud="failed")
_row("retention", "info", ("outcome", "reason", *_LOG, "bytes", "bytes_before", "bytes_after"),
     "Retention deleted segments of a log, `bytes` of it.",
     "failed: look at the file that the reason names.", outcomes="deleted, failed", loud="failed")
_row("recovery", "info", ("outcome", "reason"), "Leftovers of an interrupted commit could not be cleaned up.",
     "Look at the files that the reason names; the log is left alone until then.", outcomes="failed", loud="failed")
_row("control", "info", ("outcome", "reason", "pid", "uid", "gid"),
     "Somebody requested a change over the control API. `reason`: the verb, its parameters, and why it was refused; the "
     "outcome is `ok` or the code of an error. expired: a hold ended before its owner lifted it.",
     "expired: check whether its owner still needs the logs left alone.", outcomes="ok, expired", loud="expired")
_row("reload", "info", ("outcome", "reason", "trigger", "changes"), "The configuration was read again.",
     "rejected: correct what the reason names; the old configuration stays in force.", outcomes="accepted, rejected",
     loud="rejected")
_row("daemon", "info", ("outcome", "reason", "logs", "log_dirs"), "The daemon started or stopped.",
     "cut off: nothing, the next start recovers what was left; if it recurs, raise cleanerd.shutdown.timeout.ms.",
     outcomes="started, stopped, cut off", loud="cut off")

# -- the process --------------------------------------------------------------------------------------------------------

_row("configuration_warning", "warning", ("reason",),
     "The configuration is valid, but perhaps not what you want: one line for each doubt, at start or after a reload.",
     "See the reason; `cleanerd config check` reports the same.")
_row("ready", "info", ("version", "pid", "control_socket"), "The daemon has started.")
_row("stopping", "info", (), "Shutting down after SIGTERM or SIGINT.")
_row("stopped", "info", ("drained",), "The last line. Not drained: work was cut off.")
_row("metrics_listening", "info", ("address",), "The address that serves the metrics.")
_row("engine_stopped", "info", ("reason",), "The engine was idle and has been stopped, which frees its memory.")
_row("worker_died", "error", ("deaths", "restart_in_s", "exception"),
     "An internal error ended a thread, which is restarted; what it was working on is in the context.",
     "Report it, with the traceback in `exception`.")
_row("internal_error", "error", ("exception",),
     "An unexpected error ended a step of one log and counts as a failure of that log; other logs went on.",
     "Report it, with the traceback in `exception`.")

# -- log directories and logs -------------------------------------------------------------------------------------------

_row("log_dir_offline", "warning", ("log_dir", "reason"),
     "A log directory cannot be used, or is none; its logs are left alone.",
     "Check its disk, its mount and its name; every scan tries it again.")
_row("log_dir_online", "info", ("log_dir",), "A log directory that was offline can be used again.")
_row("move_unseen", "warning", (*_LOG, "path"),
     "A log directory can be used again and holds the unfinished copy of a log that a broker moves there. The daemon did "
     "not know that and may have cleaned the log: the copy at `path` may keep values whose tombstones are gone.",
     "Delete `path` before the broker starts, and move the log again.")
_row("owned_by_another", "info", ("log_dir", "pid"),
     "Another process, usually a broker, owns a log directory at the start: results are staged, or swapped in by the broker "
     "(`cleanerd.commit.live=auto`).")
_row("recovery_postponed", "warning", ("log_dir", "reason"),
     "A log directory could not be searched for leftovers of interrupted commits; until it is, nothing is committed there.",
     "Look at the disk.")
_row("recovery_failed", "error", (*_LOG, "reason"), "A commit failed, and could be neither finished nor undone.",
     "Look at the disk; the next start tries again, and until then the log may be refused as damaged.")
_row("cleaning_step", "debug", (*_LOG, "step", "numbers"),
     "The result of a step of a cleaning, in this order: plan, map, rewrite (one for each segment group that is written "
     "again), stage, swap (one for each group that takes the place of its segments), end. `numbers`: offsets, records and "
     "bytes, by name; `segments` are base offsets.")
_row("commit_slice", "debug", ("log_dir", "logs", "seconds", "is_wanted"),
     "How many logs were committed under one hold of `.lock`, and how long it took; `is_wanted`: a broker waits for the "
     "lock.")
_row("leftovers_not_read", "warning", ("directory", "reason"),
     "A directory could not be searched for retired files that wait to be deleted.",
     "Look at the directory; the next start tries again.")
_row("ignored", "warning", (*_LOG, "reason"),
     "A log is left alone: it does not belong to the cluster, or it lies in two log directories.",
     "Remove the directory if it is a stray; of two copies keep one.")
_row("work_shared", "info", ("log_dir", "cleans", "leaves", "share"),
     "What cleanerd does in a log directory: how many compacted logs it cleans, how many it leaves to the broker's cleaner, "
     "when results take effect, and the settings that would change that. One line for each directory at the start, and when "
     "it becomes another thing.")
_row("lease_given_back", "warning", (*_LOG, "reason"),
     "A muted log has been due for five minutes, or when the daemon started, and cleanerd has not cleaned it: the broker's "
     "cleaner is no longer kept from it.",
     "See the reason; the log is muted again when it is cleaned and nothing is in the way.")
_row("lease_taken_back", "info", _LOG,
     "The broker's cleaner is kept from a muted log again, which had been given back.")
_row("topics_unknown", "warning", ("log_dir", "count", "topics", "reason"),
     "Topics of a broker's log directory are left alone because their configuration is not known: how many, and the first "
     "names. One line for each log directory, at the start, when there are more, and when a broker has been down for so "
     "long that the cluster may have changed it.",
     "Have the broker asked (`cleanerd.commit.live=auto`), start it, or set their `cleanup.policy` in `topics.d`.")
_row("tried_again", "info", (*_LOG, "reason"), "An uncleanable or failed log changed and will be retried.")
_row("checkpoint_reset", "warning", (*_LOG, "offset"),
     "The first dirty offset of a log was reset: it lay below the log start or beyond the log end, and is the log start "
     "offset now; or segments below it are newer than the checkpoint file, and it is where the first of them begins.",
     "Nothing after DeleteRecords, or where a broker whose cleaner is off created a topic again or truncated a log. "
     "Otherwise find out why the log lost its end, or who copied it without the times of its files: from `offset` on it "
     "is cleaned again.")
_row("retention_skipped", "warning", ("log_dir", "reason"), "The retention pass of a log directory was skipped.",
     "Look at the file that the reason names.")
_row("deleted_files", "info", ("files", "bytes", "failures"),
     "Retired files were deleted after their delay; `failures`: files that could not be deleted and are tried again.")
_row("events_missing", "warning", ("log_dir", "reason"),
     "Changes in a log directory cannot be watched: only scans find them, every cleanerd.scan.interval.ms.",
     "Raise fs.inotify.max_user_watches if the reason names it.")
_row("events_lost", "warning", ("reason",), "The kernel dropped change notifications; everything is scanned at once.",
     "If it recurs, raise fs.inotify.max_queued_events.")

_row("holds_not_found", "warning", ("log_dir", "state_dir"),
     "A log directory is a copy of one in which another daemon worked, and the state that had its holds does not exist "
     "here: no hold of it binds this daemon.",
     "Pause again what has to be kept here, too.")
_row("holds_not_named", "warning", ("log_dir", "reason"),
     "The lock file of a log directory cannot name this daemon's state and holds: a one-shot would not find them.",
     "Make room on the disk; the daemon tries again with the next pause or resume, and at its next start.")
_row("hold_taken_over", "info", ("log_dir", "state_dir", "hold", "pattern"),
     "Another daemon worked in a log directory before, or this one has lost its state: the hold is one of this daemon now.")

# -- history ------------------------------------------------------------------------------------------------------------

_row("history_unwritable", "error", ("path", "reason"),
     "Events cannot be written to the history; logged once until that works again.",
     "Make room in cleanerd.state.dir, or repair it.")
_row("history_writable", "warning", ("path", "lost_events"),
     "Events are written to the history again; `lost_events` were not.")
_row("history_unreadable", "error", ("path", "reason"),
     "A request for the history could not be answered: the file could not be read.",
     "Look at cleanerd.state.dir.")
_row("history_gone", "error", ("path",),
     "The history file was removed or exchanged under the daemon: its events are lost. Holds and other state are written to "
     "a new one at once.",
     "Leave the files in cleanerd.state.dir to the daemon; stop it to remove or restore them.")
_row("history_damaged", "error", ("path", "moved_to", "reason"), "The history file is damaged; a new one is started.",
     "`moved_to` may be deleted.")
_row("history_state_lost", "error", ("path", "reason"), "Holds and other state in the damaged file may be lost.",
     "Check with `cleanerctl holds` that none is missing.")
_row("history_state_unreadable", "error", ("path", "state", "reason"),
     "An entry of the state is not what this version writes; it is ignored.",
     "If `state` is a hold, pause again.")

# -- control API and metrics --------------------------------------------------------------------------------------------

_row("audit_lost", "error", ("entry", "exception"), "A request could not be recorded.", "Report it.")
_row("accept_failed", "error", ("server", "reason"), "The control socket or the metrics port cannot accept connections.",
     "Too many open files: raise LimitNOFILE.")
_row("connection_failed", "error", ("server", "exception"), "An internal error in a connection.", "Report it.")
_row("request_failed", "error", ("server", "request", "exception"), "An internal error in a request.", "Report it.")
_row("answer_lost", "info", ("server", "reason"), "A client left before its answer was ready.")
# fmt: on
