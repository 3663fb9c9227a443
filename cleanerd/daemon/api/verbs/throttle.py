"""Show or change the I/O limits."""

from cleanerd.daemon.api.control import Control
from cleanerd.daemon.reports.views import limits_view
from cleanerd.daemon.values.models import ThrottleChange, ThrottleView


def throttle(control: Control) -> ThrottleView:
    """I/O limits and measured rates."""
    read, written = control.parts.jobs.rates()
    return ThrottleView(
        limits=limits_view(control.parts.throttle),
        request_queue=control.supervisor.pacer.view,
        read_bytes_per_s=read,
        write_bytes_per_s=written,
        waited_s=sum(control.parts.throttle.waited_s().values()),
    )


def set_throttle(control: Control, change: ThrottleChange) -> ThrottleView:
    """Change I/O limits at once, until the next change, reload or restart."""
    limits, unlimited = change.applied_to(limits_view(control.parts.throttle)), float("inf")
    control.parts.throttle.set_limits(
        total=limits.io_bytes_per_s or unlimited,
        read=limits.read_bytes_per_s or unlimited,
        write=limits.write_bytes_per_s or unlimited,
    )
    return throttle(control)
