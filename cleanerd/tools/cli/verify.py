"""`cleanerd verify`: check log directories and change nothing.

Exit 0 if nothing is wrong but for warnings; 1 if some finding is an error, or none of the logs that were named was found;
2 or 78 if the command line or the configuration is wrong.

JSON and YAML are `{"apiVersion": "cleanerd/v1", "summary": {...}, "findings": [...]}` with `FINDING_FIELDS` for each;
JSON lines are the findings one by one, then the summary. What does not apply is null. Findings below `--severity` are only
counted in the summary.
"""

import json
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from cleanerd import API_VERSION
from cleanerd.cli import output
from cleanerd.cli.configuration import log_dirs
from cleanerd.cli.named import is_nothing_there
from cleanerd.cli.progress import bytes_on
from cleanerd.cli.tables import write_table
from cleanerd.tools.insight.findings import Finding, Severity
from cleanerd.tools.insight.verify import VerifyReport, verify
from cleanerd.units import counted, duration, size

FINDING_FIELDS = (
    "code", "severity", "meaning", "log_dir", "topic", "partition", "path", "position", "expected", "found",
    "remedy",
)  # fmt: skip


def run(arguments: Namespace) -> int:
    """Check, report; returns the exit code."""
    directories = log_dirs(arguments)
    with bytes_on(sys.stderr, "verify") as read:
        report = verify(
            directories,
            topics=arguments.topic,
            partitions=arguments.partition,
            processes=arguments.processes,
            read=read,
        )
    listed = report.listed(Severity(arguments.severity))
    match arguments.output:
        case "json" | "yaml":
            findings = [_fields(finding) for finding in listed]
            output.write_document(arguments.output, summary=_summary(report), findings=findings)
        case "jsonl":
            _write_lines(report, listed)
        case _:
            _write_table(report, listed)
    return 1 if is_nothing_there(arguments, directories) or not report.is_sound else 0


def _fields(finding: "Finding") -> dict[str, object]:
    known = asdict(finding) | finding.kind._asdict()
    values = {name: known[name] for name in FINDING_FIELDS}
    for name, absent in (("topic", ""), ("partition", -1), ("position", -1)):
        if values[name] == absent:
            values[name] = None
    return values


def _summary(report: "VerifyReport") -> dict[str, object]:
    names = ("log_dirs", "partitions", "segments", "batches", "records", "bytes_read")
    values: dict[str, object] = {name: getattr(report, name) for name in names}
    values["seconds"] = round(report.seconds, 3)
    counts = Counter(str(finding.kind.severity) for finding in report.findings)
    return values | {"errors": counts["error"], "warnings": counts["warning"], "infos": counts["info"]}


def _write_lines(report: "VerifyReport", listed: Sequence["Finding"]) -> None:
    lines: list[dict[str, object]] = [{"finding": _fields(finding)} for finding in listed]
    lines.append({"summary": _summary(report)})
    for line in lines:
        output.write(json.dumps({"apiVersion": API_VERSION, **line}) + "\n")


def _write_table(report: "VerifyReport", findings: Sequence["Finding"]) -> None:
    if findings:
        write_table(
            {
                "SEVERITY": [str(finding.kind.severity) for finding in findings],
                "CODE": [finding.code for finding in findings],
                "FILE": [finding.path for finding in findings],
                "BYTE": ["" if finding.position < 0 else str(finding.position) for finding in findings],
                "EXPECTED": [finding.expected for finding in findings],
                "FOUND": [finding.found for finding in findings],
            }
        )
        for code, finding in {finding.code: finding for finding in findings}.items():
            output.write(f"{code}: {finding.kind.meaning}\n  remedy: {finding.kind.remedy}\n")
    # Scripts look for "1 errors": the counts have one form.
    output.print_message(
        f"{counted(report.partitions, 'partition')}, {counted(report.segments, 'segment')}, "
        f"{counted(report.records, 'record')}, {size(report.bytes_read)} in {duration(report.seconds)}: "
        + ", ".join(f"{report.count(severity)} {severity}s" for severity in Severity)
    )
