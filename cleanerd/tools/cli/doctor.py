"""`cleanerd doctor`: what is wrong with the logs of a broker, what it costs, and which command mends it.

Exit 0 if nothing was found; 3 if anything needs attention; 1 if none of the logs that were named was found; 130 after
Ctrl-C, with a report of what was known by then; 2 or 78 if the command line or the configuration is wrong.

JSON and YAML are those of `insight.doctor.report`; JSON lines are the findings alone.
"""

import math
import sys
from argparse import Namespace
from collections.abc import Sequence
from shlex import quote

from cleanerd.cli import output
from cleanerd.cli.configuration import load, no_log_dirs
from cleanerd.cli.named import is_nothing_there
from cleanerd.cli.progress import bytes_on
from cleanerd.cli.tables import write_table
from cleanerd.env.clock import FixedNow, SystemClock
from cleanerd.tools.insight.doctor.facts import BrokerFacts, Finding, Limits
from cleanerd.tools.insight.doctor.gather import Gathering
from cleanerd.tools.insight.doctor.report import document, finding_row
from cleanerd.tools.insight.doctor.rules import judge
from cleanerd.tools.insight.doctor.sample import Budget
from cleanerd.units import size


def run(arguments: Namespace) -> int:
    """Look, judge, report; returns the exit code."""
    loaded = load(arguments)
    for reason in (*loaded.warnings, *no_log_dirs(loaded.log_dirs)):
        output.print_message(reason)
    is_nothing = is_nothing_there(arguments, loaded.log_dirs)
    clock = SystemClock() if arguments.now_ms is None else FixedNow(arguments.now_ms)
    limits = Limits()
    with bytes_on(sys.stderr, "doctor") as read:
        budget = Budget(
            clock, round(arguments.read_max), math.inf if arguments.io == "unlimited" else arguments.io, read
        )
        gathering = Gathering(loaded.configuration, _where(arguments), clock, limits, budget)
        broker = gathering.run(loaded.log_dirs, arguments.topic, arguments.partition)
    findings = judge(broker, limits)
    _report(arguments.output, broker, findings)
    if broker.is_interrupted:
        output.print_message("interrupted: the report has what was known by then")
        return output.INTERRUPTED
    if is_nothing:
        return 1
    return 3 if findings else 0


def _where(arguments: Namespace) -> str:
    """The options that name the same directories and settings in the commands of the remedies."""
    words = [] if arguments.config is None else [f"--config {quote(arguments.config)}"]
    words += [f"--log-dir {quote(path)}" for path in arguments.log_dir]
    words += [f"--set {quote('='.join(one))}" for one in arguments.set]
    words += [f"--topic-set {quote(f'{topic}:{key}={value}')}" for topic, key, value in arguments.topic_set]
    return " ".join(words)


def _report(form: str, broker: BrokerFacts, findings: Sequence[Finding]) -> None:
    if form == "jsonl":
        output.write_document("jsonl", findings=[finding_row(one) for one in findings])
    elif not output.is_table(form):
        output.write_document(form, **document(broker, findings))
    else:
        _write_tables(broker, findings)


def _write_tables(broker: BrokerFacts, findings: Sequence[Finding]) -> None:
    write_table(
        {
            "SEVERITY": [str(one.severity) for one in findings],
            "CODE": [one.code for one in findings],
            "WHERE": [_place(one) for one in findings],
            "COSTS": ["" if one.cost_bytes is None else size(one.cost_bytes) for one in findings],
            "EVIDENCE": [one.evidence for one in findings],
        }
    )
    for one in findings:
        output.write(f"{_place(one)}: {one.meaning}\n  remedy: {one.remedy}\n")
    logs = [log for one in broker.directories for log in one.logs]
    unread = sum(log.is_compacted and log.sample is None for log in logs)
    left = f"; {unread} compacted logs were not read (--read-max)" if unread else ""
    whole = size(sum(one.size_bytes for one in broker.directories))
    output.print_message(
        f"{len(logs)} logs with {whole} in {len(broker.directories)} directories: "
        f"{len(findings)} findings{left}"
    )


def _place(one: Finding) -> str:
    place = one.place
    if place.topic is None:
        return place.path
    return place.topic if place.partition is None else f"{place.topic}-{place.partition}"
