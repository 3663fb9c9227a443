"""`cleanerd broker check`: test whether the running broker of each log directory can swap segments.

The agent is loaded into a broker only if cleanerd.commit.live is auto or `--load` is given. Exit 0 if every broker can swap;
1 if one cannot or was not asked, or a directory has no running broker, each with its reason; 2 or 78 if the command line or
the configuration is wrong.
"""

import contextlib
from argparse import Namespace
from dataclasses import asdict

from cleanerd.broker_agent.brokers import BrokerReport, LiveBrokers
from cleanerd.cli import output
from cleanerd.cli.configuration import log_dirs
from cleanerd.cli.privileges import become_owner
from cleanerd.cli.tables import write_table
from cleanerd.config.load import resolve
from cleanerd.config.sources import read_sources
from cleanerd.env.clock import SystemClock
from cleanerd.env.files import RealFiles


def check(arguments: Namespace) -> int:
    """Ask each broker, as far as that is wanted, and leave; returns the exit code."""
    config = resolve(read_sources(arguments.config)).broker
    asked, named = config.but(commit_live="auto"), log_dirs(arguments)
    loads = arguments.load or config.commit_live == "auto"
    become_owner(named)
    with contextlib.closing(LiveBrokers(RealFiles(), SystemClock(), lambda: asked, loads=loads)) as brokers:
        found = [brokers.report(log_dir) for log_dir in named]
    if output.is_table(arguments.output):
        columns = {
            "LOG DIR": [one.log_dir for one in found],
            "SWAPS": [_swaps(one) for one in found],
            "BROKER": [_broker(one) for one in found],
            "REQUESTS": [", ".join(one.capabilities) for one in found],
            "ITS LOG DIRS": [", ".join(one.broker_log_dirs) for one in found],
            "REASON": [one.reason or "" for one in found],
        }
        write_table(columns)
    else:
        rows = [asdict(one) for one in found]
        output.write_document(arguments.output, commit_live=config.commit_live, log_dirs=rows)
    if config.commit_live == "off":
        output.print_message("cleanerd.commit.live is off: results wait until a broker stops")
    if not all(one.is_asked for one in found):
        output.print_message(
            "`cleanerd broker check --load` loads the agent, which stays in the broker until it stops"
        )
    return 1 if any(one.reason for one in found) else 0


def _swaps(one: BrokerReport) -> str:
    if not one.is_asked:
        return "not asked"
    return "no" if one.reason else "yes"


def _broker(one: BrokerReport) -> str:
    node = "" if one.node_id is None else f"node {one.node_id}, "
    return f"Kafka {one.release}, {node}process {one.pid}" if one.release else ""
