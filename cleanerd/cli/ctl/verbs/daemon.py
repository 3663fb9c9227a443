"""Verbs about the daemon as a whole: `status`, `throttle`, `reload`."""

from argparse import Namespace
from collections import defaultdict

from cleanerd.cli.arguments import argument, option, rate
from cleanerd.cli.ctl import tables
from cleanerd.cli.ctl.asking import call
from cleanerd.cli.ctl.client import Client
from cleanerd.cli.ctl.tables import Columns, Row, field, lines, table, wrapped
from cleanerd.cli.ctl.verb import Reply, Verb, View
from cleanerd.cli.ctl.verbs.jobs import JOBS
from cleanerd.daemon.api import endpoints
from cleanerd.daemon.values.severity import STATES
from cleanerd.units import duration, instant, printable, size


def _yes_or_no(answer: bool) -> str:
    return "yes" if answer else "NO"


_BROKERS = defaultdict(lambda: "live", swap="live, swaps", restart="live, results wait")
_LOG_DIRS: Columns = {
    "LOG DIR": field("path"),
    "ONLINE": field("online", _yes_or_no),
    "FREE": field("free_bytes", size),
    "DIRTY": lambda row: size(row["dirty_bytes"]) if row.get("dirty_bytes") else "",
    "STAGED": lambda row: size(row["staged_bytes"]) if row["staged_bytes"] else "",
    "LOCK OWNER": field("lock_owner_pid", tables.process),
    "BROKER": lambda row: _BROKERS[str(row.get("committed_by"))] if row["broker_is_live"] else "",
    "REASON": lambda row: str(row["reason"] or row.get("swap_reason") or ""),
}


def _status(status: Row) -> str:
    configuration, queue = status["configuration"], status["throttle"]["request_queue"]
    counts = status["logs_by_state"]
    states = ", ".join(f"{counts[state]} {state}" for state in STATES if counts.get(state))
    loaded = f"{'loaded' if configuration['applied'] else 'REFUSED'} {instant(configuration['time_ms'])}"
    if not configuration["applied"]:
        loaded += "; the previous configuration stays active"
    head = lines(
        [
            (
                "Daemon",
                f"cleanerd {status['version']}, pid {status['pid']}, up {duration(status['uptime_s'])}",
            ),
            ("Ready", _yes_or_no(status["ready"])),
            ("Logs", states or "none"),
            ("Workers", f"{status['workers_busy']} of {status['workers_total']} busy"),
            ("Spark", "running" if status["spark_session_up"] else "not running"),
            ("Throttle", io_limit(status["throttle"]) + (f"; {queue['reason']}" if queue else "")),
            ("Configuration", loaded),
            *(("  problem", printable(problem)) for problem in configuration["problems"]),
            *(("Warning", printable(warning)) for warning in status["warnings"]),
            ("Holds", str(status["holds"])),
            *(("Muted", f"{mute['topic']} since {instant(mute['since_ms'])}") for mute in status["muted"]),
            *(("Look at", f"`cleanerctl logs --state {state}`") for state in STATES[:2] if counts.get(state)),
        ]
    )
    jobs = "\n" + table(status["running"], JOBS) if status["running"] else ""
    shares = [wrapped(f"{one['path']}: ", one["share"], 4) for one in status["log_dirs"] if one.get("share")]
    shown = "".join(f"{line}\n" for share in shares for line in share)
    return head + "\n" + table(status["log_dirs"], _LOG_DIRS) + ("\n" + shown if shown else "") + jobs


def io_limit(throttle: Row) -> str:
    """The lowest limit on reads plus writes in a throttle view, in human units."""
    limits = (throttle["limits"]["io_bytes_per_s"], (throttle["request_queue"] or {}).get("bytes_per_s"))
    return tables.rate(min(filter(None, limits), default=None))


STATUS = Verb(
    "status",
    "Show the state of the daemon and its running jobs.",
    (endpoints.STATUS,),
    View(_status),
    examples=("status", "status --watch 2s"),
    is_look=True,
)


def _throttle(throttle: Row) -> str:
    limits, queue = throttle["limits"], throttle["request_queue"]
    in_words = {name: tables.rate(limits[f"{name}_bytes_per_s"]) for name in ("io", "read", "write")}
    return lines(
        [
            ("Reads and writes", in_words["io"]),
            *(
                [("Request queue", f"{tables.rate(queue['bytes_per_s'])}: {queue['reason']}")]
                if queue
                else ()
            ),
            ("Reads", f"{in_words['read']}, now {tables.rate(throttle['read_bytes_per_s'])}"),
            ("Writes", f"{in_words['write']}, now {tables.rate(throttle['write_bytes_per_s'])}"),
            ("Waited", duration(throttle["waited_s"])),
        ]
    )


def _ask_throttle(client: Client, options: Namespace) -> Reply:
    """Change the limits that the command line gives, if any, and show all of them."""
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
    answer = call(client, endpoints.SET_THROTTLE if change else endpoints.THROTTLE, change)
    return Reply(answer, THROTTLE.view)


THROTTLE = Verb(
    "throttle",
    """Show the I/O limits, or change them until the next change, reload or restart.

Show the I/O limits, or change them until the next change, reload or restart: like `50MB` per second, or `unlimited`.
""",
    (endpoints.THROTTLE, endpoints.SET_THROTTLE),
    View(_throttle),
    (
        argument("rate", metavar="RATE", nargs="?", type=rate, help="the same as --io RATE"),
        option("--io", "reads plus writes per second, like 50MB, or unlimited", metavar="RATE", type=rate),
        option("--read", "reads per second, like 50MB, or unlimited", metavar="RATE", type=rate),
        option("--write", "writes per second, like 50MB, or unlimited", metavar="RATE", type=rate),
    ),
    ("throttle", "throttle 50MB", "throttle --read 20MB --write unlimited"),
    ask=_ask_throttle,
)


def _reload(reload: Row) -> str:
    if not reload["applied"]:
        return (
            "\n  ".join(["rejected; the previous configuration remains active:", *reload["problems"]]) + "\n"
        )
    if not reload["changed"]:
        return "applied; nothing changed\n"
    return "\n  ".join(["applied; changed:", *map(printable, reload["changed"])]) + "\n"


RELOAD = Verb(
    "reload",
    "Reload the configuration, all of it or nothing.",
    (endpoints.RELOAD,),
    View(_reload),
    examples=("reload",),
    has_failed=lambda answer: not answer["reload"]["applied"],
)
