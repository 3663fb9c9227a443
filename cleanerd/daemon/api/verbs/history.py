"""List past events, newest first."""

from cleanerd.daemon.api.control import Control
from cleanerd.daemon.api.parameters import Kinds, Limit, Pattern, TimeMs
from cleanerd.daemon.values.models import HistoryEvent


def history(
    control: Control,
    pattern: Pattern | None = None,
    limit: Limit = 100,
    since_ms: TimeMs | None = None,
    kinds: Kinds | None = None,
) -> tuple[HistoryEvent, ...]:
    """The newest `limit` events since `since_ms`, newest first; `kinds`: only these, like `cleaning,commit`."""
    return control.parts.store.events(pattern, limit, since_ms, kinds)
