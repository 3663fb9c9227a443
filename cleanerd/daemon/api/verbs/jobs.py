"""Show cleaning jobs, and wait for one."""

from cleanerd.daemon.api.control import Control
from cleanerd.daemon.api.parameters import WaitMs
from cleanerd.daemon.api.refusals import DEFAULT_WAIT_MS, NotFound, Timeout
from cleanerd.daemon.values.models import JobView


def jobs(control: Control) -> tuple[JobView, ...]:
    """Queued and running jobs, and the last ones that are done; newest last."""
    return control.parts.jobs.views()


def job(control: Control, job_id: str) -> JobView:
    """One job."""
    try:
        return control.parts.jobs.view(job_id)
    except KeyError:
        raise NotFound(
            f"there is no job {job_id}; `cleanerctl jobs` lists those that are remembered"
        ) from None


def wait_job(control: Control, job_id: str, timeout_ms: WaitMs = DEFAULT_WAIT_MS) -> JobView:
    """One job, when it is done."""
    job(control, job_id)
    if not control.parts.jobs.wait(job_id, timeout_ms / 1000):
        raise Timeout(f"job {job_id} is not done after {timeout_ms} ms; it goes on")
    return job(control, job_id)
