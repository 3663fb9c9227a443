"""The client halves of the verbs, a module for each subject."""

from cleanerd.cli.ctl.verbs import commits, daemon, history, holds, jobs, logs, mutes, retention

_VERBS = (
    *(daemon.STATUS, *logs.VERBS, *jobs.VERBS, *holds.VERBS, history.VERB, commits.VERB),
    *(mutes.MUTE, mutes.UNMUTE, daemon.THROTTLE, daemon.RELOAD, *retention.VERBS),
)
VERBS = (*(verb for verb in _VERBS if verb.is_look), *(verb for verb in _VERBS if not verb.is_look))
"""All verbs in the order of the help and the manual; queries come first."""
