"""`cleanerd doctor`: what is wrong with the logs of a broker, what it costs, and which command mends it.

Exit 0 if nothing was found; 3 if anything needs attention; 1 if none of the logs that were named was found; 130 after
Ctrl-C, with a report of what was known by then; 2 or 78 if the command line or the configuration is wrong.

JSON and YAML are those of `insight.doctor.report`, with `--merge` those of `insight.doctor.merge`; JSON lines
are the findings alone; HTML is one file without scripts.
"""

import contextlib
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from cleanerd.broker_agent.brokers import LiveBrokers
from cleanerd.cli import output
from cleanerd.cli.arguments import bytes_per_s
from cleanerd.cli.configuration import load_anyhow, no_log_dirs
from cleanerd.cli.named import check_reports_alone, is_nothing_there, where
from cleanerd.cli.progress import bytes_on
from cleanerd.cli.tables import write_table
from cleanerd.env.clock import FixedNow, SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.errors import BadUsage
from cleanerd.tools.insight.doctor.facts import BrokerFacts, Limits
from cleanerd.tools.insight.doctor.gather import Gathering
from cleanerd.tools.insight.doctor.merge import merged, read_reports
from cleanerd.tools.insight.doctor.page import page
from cleanerd.tools.insight.doctor.report import Row, document
from cleanerd.tools.insight.doctor.rules import judge
from cleanerd.tools.insight.doctor.sample import Budget
from cleanerd.units import counted, size, utc


def run(arguments: Namespace) -> int:
    """Look, judge, report; returns the exit code."""
    if arguments.merge:
        others = ("config", "log_dir", "set", "topic_set", "topic", "partition", "now_ms", "price")
        check_reports_alone(arguments, "--merge", *others)
        reports, digests, failed = read_reports(arguments.merge)
        for reason in failed.values():
            output.print_message(reason)
        if not (reports or digests):
            return BadUsage.exit_code
        fleet = merged(reports, Limits(), digests, failed)
        _report_fleet(arguments.output, fleet)
        return 3 if fleet["findings"] else 0
    loaded = load_anyhow(arguments)
    for reason in (*loaded.warnings, *no_log_dirs(loaded.log_dirs)):
        output.print_message(reason)
    is_nothing = is_nothing_there(arguments, loaded.log_dirs)
    clock = SystemClock() if arguments.now_ms is None else FixedNow(arguments.now_ms)
    limits = Limits()
    with bytes_on(sys.stderr, "doctor") as read:
        budget = Budget(clock, round(arguments.read_max), bytes_per_s(arguments.io), read)
        asked = loaded.configuration.broker.but(commit_live="auto")
        with contextlib.closing(LiveBrokers(RealFiles(), clock, lambda: asked, loads=False)) as brokers:
            gathering = Gathering(loaded.configuration, where(arguments), clock, limits, budget, brokers)
            broker = gathering.run(loaded.log_dirs, arguments.topic, arguments.partition)
    findings = judge(broker, limits)
    _report(arguments.output, broker, document(broker, findings, arguments.price))
    if broker.is_interrupted:
        output.print_message("interrupted: the report has what was known by then")
        return output.INTERRUPTED
    if is_nothing:
        return 1
    return 3 if findings else 0


def _report(form: str, broker: BrokerFacts, found: dict[str, Any]) -> None:
    if form == "html":
        _report_fleet(form, merged([found], Limits()))
    elif form == "jsonl":
        output.write_document(form, findings=found["findings"])
    elif not output.is_table(form):
        output.write_document(form, **found)
    else:
        _write_findings(found["findings"])
        logs = [log for one in broker.directories for log in one.logs]
        unread = sum(log.is_compacted and log.sample is None for log in logs)
        why = "" if broker.is_interrupted else " (--read-max)"
        left = f"; not read: {counted(unread, 'compacted log')}{why}" if unread else ""
        whole = size(sum(one.size_bytes for one in broker.directories))
        output.print_message(
            f"{counted(len(logs), 'log')} with {whole} in {counted(len(broker.directories), 'directory')}: "
            f"{counted(len(found['findings']), 'finding')}{left}"
        )


def _report_fleet(form: str, fleet: Mapping[str, Any]) -> None:
    brokers, growth = fleet["brokers"], fleet["growth"]
    if form == "html":
        output.write(page(fleet, max((one["at_ms"] for one in brokers), default=0)).decode())
    elif form == "jsonl":
        output.write_document(form, findings=fleet["findings"])
    elif not output.is_table(form):
        output.write_document(form, **fleet)
    else:
        write_table(
            {
                "NODE": [_node(one) for one in brokers],
                "AT": [utc(one["at_ms"]) for one in brokers],
                "LOGS": [f"{one['logs']:,}" for one in brokers],
                "SIZE": [size(one["size_bytes"]) for one in brokers],
                "FREE": [size(one["free_bytes"]) for one in brokers],
                "SUPERSEDED": [size(one["superseded_bytes"]) for one in brokers],
                "ERRORS": [str(one["errors"]) for one in brokers],
                "WARNINGS": [str(one["warnings"]) for one in brokers],
            }
        )
        for one in growth:
            days = one["days_until_full"]
            when = "does not fill up" if days is None else f"full in {days} days"
            more = size(one["bytes_per_day"]) if one["bytes_per_day"] > 0 else "nothing"
            output.write_line(f"node {_node(one)}, {one['path']}: {more} more a day, {when}")
        output.write("\n" if fleet["findings"] else "")
        _write_findings(fleet["findings"])


def _node(row: Row) -> str:
    return "" if row.get("node_id") is None else str(row["node_id"])


def _write_findings(findings: Sequence[Row]) -> None:
    write_table(
        {
            "NODE": [_node(one) for one in findings],
            "SEVERITY": [one["severity"] for one in findings],
            "CODE": [one["code"] for one in findings],
            "WHERE": [_place(one) for one in findings],
            "COSTS": [_cost(one) for one in findings],
            "EVIDENCE": [one["evidence"] for one in findings],
        }
    )
    for one in findings:
        output.write_line(f"{_place(one)}: {one['meaning']}")
        output.write_line(f"  remedy: {one['remedy']}")


def _cost(one: Row) -> str:
    if one["cost_bytes"] is None:
        return ""
    price = one["cost_per_month"]
    return size(one["cost_bytes"]) + ("" if price is None else f", {price:,.2f} a month")


def _place(one: Row) -> str:
    if one["topic"] is None:
        return str(one["path"])
    return one["topic"] if one["partition"] is None else f"{one['topic']}-{one['partition']}"
