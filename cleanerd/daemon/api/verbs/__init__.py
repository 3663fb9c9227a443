"""The server halves of the verbs: which function answers which request of the control API.

A function takes `Control` and its parameters by name, from any thread. It raises `HistoryUnreadable` and `OperationError`s
only: `NotFound` when its parameters match no log; `Timeout` when its time is over; `Unavailable` when the daemon stops.
"""

from cleanerd.daemon.api import endpoints
from cleanerd.daemon.api.routes import Route
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

ROUTES = (
    Route(endpoints.STATUS, status.status),
    Route(endpoints.LOGS, logs.logs),
    Route(endpoints.LOG, log.log),
    Route(endpoints.EXPLAIN, explain.explain),
    Route(endpoints.JOB, jobs.job),
    Route(endpoints.JOBS, jobs.jobs),
    Route(endpoints.JOB_DONE, jobs.wait_job),
    Route(endpoints.HOLDS, holds.holds),
    Route(endpoints.FORECAST, forecast.forecast),
    Route(endpoints.HISTORY, history.history),
    Route(endpoints.CLEAN, clean.clean),
    Route(endpoints.WOULD_CLEAN, clean.would_clean),
    Route(endpoints.COMMIT, commit.commit),
    Route(endpoints.AWAIT, await_cleaned.await_cleaned),
    Route(endpoints.PAUSE, pause.pause),
    Route(endpoints.RESUME, resume.resume),
    Route(endpoints.ABORT, abort.abort),
    Route(endpoints.RETRY, retry.retry),
    Route(endpoints.MUTE, mute.mute),
    Route(endpoints.UNMUTE, unmute.unmute),
    Route(endpoints.THROTTLE, throttle.throttle),
    Route(endpoints.SET_THROTTLE, throttle.set_throttle),
    Route(endpoints.RELOAD, reload.reload),
    Route(endpoints.RETENTION, retention.retention),
    Route(endpoints.DELETE_RECORDS, delete_records.delete_records),
)
