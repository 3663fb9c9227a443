"""Show one partition."""

from cleanerd.daemon.api.control import Control
from cleanerd.daemon.api.parameters import Tp
from cleanerd.daemon.values.models import LogView


def log(control: Control, topic_partition: Tp) -> tuple[LogView, ...]:
    """One partition, in each log directory that has it."""
    return tuple(control.views.logs(control.of(topic_partition)))
