"""Show the I/O limits, or change them until the next change or reload.

Show the I/O limits, or change them until the next change or reload: like `50MB` per second, or `unlimited`.
"""

from __future__ import annotations

from argparse import Namespace

from cleanerd.daemon.api.arguments import argument, option, rate
from cleanerd.daemon.api.asking import call
from cleanerd.daemon.api.client import Client
from cleanerd.daemon.api.verb import Endpoint, Reply, Verb, daemon


def throttle(control: daemon.Control) -> daemon.ThrottleView:
    """I/O limits and measured rates."""
    read, written = control.parts.jobs.rates()
    return daemon.ThrottleView(
        limits=daemon.limits_view(control.parts.throttle),
        request_queue=control.supervisor.pacer.view,
        read_bytes_per_s=read,
        write_bytes_per_s=written,
        waited_s=sum(control.parts.throttle.waited_s().values()),
    )


def set_throttle(control: daemon.Control, change: daemon.ThrottleChange) -> daemon.ThrottleView:
    """Change I/O limits at once, until the next change or reload."""
    limits, unlimited = change.applied_to(daemon.limits_view(control.parts.throttle)), float("inf")
    control.parts.throttle.set_limits(
        total=limits.io_bytes_per_s or unlimited,
        read=limits.read_bytes_per_s or unlimited,
        write=limits.write_bytes_per_s or unlimited,
    )
    return throttle(control)


_SHOW = Endpoint("GET", "/v1/throttle", "throttle", throttle)
_CHANGE = Endpoint("PUT", "/v1/throttle", "throttle", set_throttle)


def _ask(client: Client, options: Namespace) -> Reply:
    """The limits in force, after changing those that are given."""
    rates = {
        "io": options.rate if options.io is None else options.io,
        "read": options.read,
        "write": options.write,
    }
    change = {
        f"{name}_bytes_per_s": None if rate == "unlimited" else rate
        for name, rate in rates.items()
        if rate is not None
    }
    return Reply(call(client, _CHANGE, change) if change else call(client, _SHOW, {}))


VERB = Verb(
    "throttle",
    __doc__,
    (_SHOW, _CHANGE),
    (
        argument("rate", metavar="RATE", nargs="?", type=rate, help="the same as --io RATE"),
        option("--io", "reads plus writes per second, like 50MB, or unlimited", metavar="RATE", type=rate),
        option("--read", "reads per second, like 50MB, or unlimited", metavar="RATE", type=rate),
        option("--write", "writes per second, like 50MB, or unlimited", metavar="RATE", type=rate),
    ),
    ("throttle", "throttle 50MB", "throttle --read 20MB --write unlimited"),
    ask=_ask,
)
