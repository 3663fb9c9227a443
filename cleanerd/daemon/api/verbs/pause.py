"""Stop cleaning what matches, now and later."""

from __future__ import annotations

import os
from argparse import Namespace

from cleanerd.daemon.api.arguments import PATTERN, duration_ms, option
from cleanerd.daemon.api.asking import call, given, stop_ms
from cleanerd.daemon.api.client import Client
from cleanerd.daemon.api.refusals import DEFAULT_WAIT_MS, Timeout, Unavailable
from cleanerd.daemon.api.verb import Endpoint, Reply, Verb, daemon
from cleanerd.env.host import user_name


def pause(
    control: daemon.Control,
    pattern: daemon.Pattern,
    owner: daemon.OwnerName,
    reason: daemon.ShortText = "",
    ttl_ms: daemon.Ttl | None = None,
    timeout_ms: daemon.WaitMs = DEFAULT_WAIT_MS,
) -> daemon.HoldView:
    """Hold what matches, now and later, and answer when none of it is being cleaned any more.

    Kafka's "abort and pause" (2.1). A pattern that matches nothing yet holds what appears. A `Timeout` withdraws the hold.
    """
    parts, now_ms = control.parts, control.parts.clock.now_ms()
    hold = daemon.Hold.new(pattern, owner, reason, now_ms, ttl_ms)
    running = parts.states.hold(hold, timeout_ms / 1000)
    if running:
        parts.states.release(hold.id)
        names = ", ".join(sorted(map(str, running))[:10])
        raise Timeout(f"still being cleaned after {timeout_ms} ms: {names}; nothing is paused")
    if not parts.store.put(daemon.HOLD, hold.id, daemon.asdict(hold)):
        parts.states.release(hold.id)
        parts.store.delete(daemon.HOLD, hold.id)  # else it would be written once that works again
        raise Unavailable("the hold would not survive a restart: the state directory cannot be written")
    return control.views.hold(hold)


_PAUSE = Endpoint("POST", "/v1/pause", "hold", pause)
_ARGUMENTS = (
    PATTERN,
    option("--reason", "shown with the hold", metavar="TEXT", default=""),
    option("--owner", "default: your user name", metavar="NAME"),
    option("--ttl", "end the pause after TIME, like 2h", metavar="TIME", type=duration_ms, dest="ttl_ms"),
)


def _ask(client: Client, options: Namespace) -> Reply:
    limit_ms, user = stop_ms(options.timeout), user_name() or f"uid {os.geteuid()}"
    asked = {"owner": user, **given(client, _ARGUMENTS, options), "timeout_ms": limit_ms}
    answer = call(client, _PAUSE, asked, limit_ms / 1000)
    hint = "" if answer["hold"]["logs"] else "nothing matches now; what appears later is held"
    return Reply(answer, hint=hint)


VERB = Verb(
    "pause", __doc__, (_PAUSE,), _ARGUMENTS, ("pause orders --reason restore --ttl 2h", "pause '*'"), ask=_ask
)
