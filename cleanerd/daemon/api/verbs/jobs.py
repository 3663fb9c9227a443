"""List cleaning jobs, newest last."""

from __future__ import annotations

from cleanerd.daemon.api.arguments import argument
from cleanerd.daemon.api.refusals import DEFAULT_WAIT_MS, NotFound, Timeout
from cleanerd.daemon.api.verb import Endpoint, Verb, daemon


def jobs(control: daemon.Control) -> tuple[daemon.JobView, ...]:
    """Queued and running jobs, and the last ones that are done; newest last."""
    return control.parts.jobs.views()


def job(control: daemon.Control, job_id: str) -> daemon.JobView:
    """One job."""
    try:
        return control.parts.jobs.view(job_id)
    except KeyError:
        raise NotFound(
            f"there is no job {job_id}; `cleanerctl jobs` lists those that are remembered"
        ) from None


def wait_job(
    control: daemon.Control, job_id: str, timeout_ms: daemon.WaitMs = DEFAULT_WAIT_MS
) -> daemon.JobView:
    """One job, when it is done."""
    job(control, job_id)
    if not control.parts.jobs.wait(job_id, timeout_ms / 1000):
        raise Timeout(f"job {job_id} is not done after {timeout_ms} ms; it goes on")
    return job(control, job_id)


DONE = Endpoint("GET", "/v1/jobs/{job_id}/done", "job", wait_job)


VERB = Verb(
    "jobs",
    __doc__,
    (Endpoint("GET", "/v1/jobs/{job_id}", "job", job), Endpoint("GET", "/v1/jobs", "jobs", jobs), DONE),
    (argument("job_id", metavar="JOB", nargs="?", help="id of a job; default: all"),),
    ("jobs",),
    is_look=True,
)
