"""Answers of the control API, as a daemon with some work would give them."""

from cleanerd.daemon.values import models
from cleanerd.daemon.values.models import HistoryEvent, JobView, LogView, StatusView

NOW_MS = 1_795_000_000_000
HOUR_MS = 3_600_000


def log_view(topic: str = "orders", partition: int = 0, **fields: object) -> LogView:
    usual = {
        "topic": topic, "partition": partition, "log_dir": "/logs", "state": "dirty", "policy": "compact",
        "size_bytes": 1000, "segments": 4, "dirty_ratio": 0.4, "clean_bytes": 300, "cleanable_bytes": 200,
        "uncleanable_bytes": 100, "active_bytes": 400, "dirty_since_ms": NOW_MS - HOUR_MS,
    }  # fmt: skip
    return LogView.model_validate(usual | fields)


def event(**fields: object) -> HistoryEvent:
    usual = {
        "time_ms": NOW_MS - HOUR_MS, "kind": "cleaning", "outcome": "committed", "topic": "orders", "partition": 0,
        "log_dir": "/logs", "seconds": 12.5, "bytes_before": 5000, "bytes_after": 1000, "removed": {"superseded": 70},
    }  # fmt: skip
    return HistoryEvent.model_validate(usual | fields)


def job_view(*logs: str, **fields: object) -> JobView:
    """Half done after ten seconds."""
    usual = {
        "id": "j1", "trigger": "schedule", "state": "running", "logs": logs, "bytes_done": 50_000_000,
        "bytes_total": 100_000_000, "started_ms": NOW_MS - 10_000,
    }  # fmt: skip
    return JobView.model_validate(usual | fields)


def status_view(**fields: object) -> StatusView:
    limits = models.ThrottleLimits(io_bytes_per_s=1e6)
    usual = {
        "version": "1.2", "pid": 7, "uptime_s": 3700.0, "ready": True, "logs_by_state": {"dirty": 2}, "workers_busy": 1,
        "workers_total": 2, "spark_session_up": True, "holds": 1,
        "throttle": models.ThrottleView(limits=limits, read_bytes_per_s=5e5, write_bytes_per_s=0, waited_s=0),
        "log_dirs": (models.LogDirView(path="/logs", online=True, free_bytes=10**12),),
        "configuration": models.ReloadView(applied=True, time_ms=1),
    }  # fmt: skip
    return StatusView.model_validate(usual | fields)
