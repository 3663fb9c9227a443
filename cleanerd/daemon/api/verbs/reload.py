"""Reload the configuration."""

from cleanerd.daemon.api.control import Control
from cleanerd.daemon.configuration.reload import ReloadTrigger
from cleanerd.daemon.reports.views import reload_view
from cleanerd.daemon.values.models import ReloadView


def reload(control: Control) -> ReloadView:
    """Read the configuration again, all of it or nothing; the answer has its problems."""
    return reload_view(control.reload(ReloadTrigger.REQUEST), control.reloader.last_success_ms)
