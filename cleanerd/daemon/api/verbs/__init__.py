"""The verbs of the control API, a file each, in the order in which help and manual list them."""

from cleanerd.daemon.api.verbs import (
    abort,
    await_cleaned,
    clean,
    commit,
    delete_records,
    explain,
    forecast,
    history,
    holds,
    jobs,
    log,
    logs,
    mute,
    pause,
    reload,
    resume,
    retention,
    retry,
    status,
    throttle,
    unmute,
)

VERBS = (
    *(status.VERB, logs.VERB, log.VERB, explain.VERB, jobs.VERB, holds.VERB, forecast.VERB, history.VERB),
    *(clean.VERB, commit.VERB, await_cleaned.VERB, pause.VERB, resume.VERB, abort.VERB, retry.VERB),
    *(mute.VERB, unmute.VERB, throttle.VERB, reload.VERB, retention.VERB, delete_records.VERB),
)
