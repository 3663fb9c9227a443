"""The requests of the control API, shared by cleanerctl and the daemon.

===========================  ==================================================================================
half of a verb               where
===========================  ==================================================================================
client: arguments, requests  `cli/ctl/verbs/`
server: the effect           `daemon/api/verbs/`, a function for each endpoint
answer                       `daemon/values/models.py`, the source of the OpenAPI document
===========================  ==================================================================================

Every start of cleanerctl imports this module, so it imports nothing that is slow to load.
"""

from typing import NamedTuple


class Endpoint(NamedTuple):
    """One request: HTTP method, path with `{parameters}`, and the key of the answer in the JSON document."""

    method: str
    path: str
    key: str

    @property
    def changes(self) -> bool:
        """Whether the request may change something; `False` for GET."""
        return self.method != "GET"

    @property
    def in_path(self) -> set[str]:
        """Names of the parameters in the path; all others are in the query or the body."""
        return {part[1:-1] for part in self.path.split("/") if part.startswith("{")}


STATUS = Endpoint("GET", "/v1/status", "status")
LOGS = Endpoint("GET", "/v1/logs", "logs")
LOG = Endpoint("GET", "/v1/logs/{topic_partition}", "logs")
EXPLAIN = Endpoint("GET", "/v1/logs/{topic_partition}/explanation", "explanations")
AWAIT = Endpoint("GET", "/v1/logs/{topic_partition}/cleaned", "logs")
JOBS = Endpoint("GET", "/v1/jobs", "jobs")
JOB = Endpoint("GET", "/v1/jobs/{job_id}", "job")
JOB_DONE = Endpoint("GET", "/v1/jobs/{job_id}/done", "job")
HOLDS = Endpoint("GET", "/v1/holds", "holds")
FORECAST = Endpoint("GET", "/v1/forecast", "forecast")
HISTORY = Endpoint("GET", "/v1/history", "events")
CLEAN = Endpoint("POST", "/v1/clean", "jobs")
WOULD_CLEAN = Endpoint("GET", "/v1/clean", "explanations")
COMMIT = Endpoint("POST", "/v1/commit", "commits")
PAUSE = Endpoint("POST", "/v1/pause", "hold")
RESUME = Endpoint("POST", "/v1/resume", "holds")
ABORT = Endpoint("POST", "/v1/abort", "logs")
RETRY = Endpoint("POST", "/v1/retry", "logs")
MUTE = Endpoint("POST", "/v1/mute", "muted")
UNMUTE = Endpoint("POST", "/v1/unmute", "muted")
THROTTLE = Endpoint("GET", "/v1/throttle", "throttle")
SET_THROTTLE = Endpoint("PUT", "/v1/throttle", "throttle")
RELOAD = Endpoint("POST", "/v1/reload", "reload")
RETENTION = Endpoint("POST", "/v1/retention", "retention")
DELETE_RECORDS = Endpoint("POST", "/v1/delete-records", "deleted")
