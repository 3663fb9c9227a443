"""`cleanerd salvage`: a copy of the sound part of a partition directory.

Exit 0 if the copy holds everything; 1 if it lacks what is listed, or could not be written; 2 if the directories make no
sense.

JSON is one document with `FIELDS` and `damage`, a list of byte ranges with `path`, `start`, `end` (exclusive), `code`,
`expected` and `found`.
"""

from argparse import Namespace
from dataclasses import asdict

from cleanerd.cli import output
from cleanerd.cli.tables import write_table
from cleanerd.errors import from_os_error
from cleanerd.format.names import LOG_START_CHECKPOINT
from cleanerd.tools.insight.salvage import SalvageReport, salvage
from cleanerd.units import counted, size

FIELDS = (
    "source", "output", "segments", "batches", "records", "bytes_kept", "bytes_lost", "end_offset",
    "log_start_offset", "open_transactions",
)  # fmt: skip


def run(arguments: Namespace) -> int:
    """Copy, report; returns the exit code."""
    try:
        report = salvage(arguments.partition_dir, arguments.output_dir)
    except OSError as error:
        raise from_os_error(error, arguments.output_dir) from error
    if output.is_table(arguments.output):
        _write_table(report)
    else:
        values = {name: getattr(report, name) for name in FIELDS}
        damage = [asdict(lost) for lost in report.damage]
        output.write_document(arguments.output, **values, damage=damage)
    for producer_id in report.open_transactions:
        output.print_message(
            f"the transaction of producer {producer_id} has no end: read_committed consumers wait for it"
        )
    if report.log_start_offset > report.segments[0]:
        output.print_message(
            f"the original starts at offset {report.log_start_offset}, by {LOG_START_CHECKPOINT}: the copy also has the "
            "records below, and consumers see them unless the log directory of the copy gets the same entry"
        )
    if report.damage:
        output.print_message(
            "keys that were deleted in a lost range are back in the copy: if the partition has other replicas, "
            "delete its directory instead, and the broker fetches the whole log"
        )
    return 1 if report.damage else 0


def _write_table(report: "SalvageReport") -> None:
    if report.damage:
        write_table(
            {
                "LOST FROM": [lost.path for lost in report.damage],
                "BYTE": [str(lost.start) for lost in report.damage],
                "TO": [str(lost.end) for lost in report.damage],
                "CODE": [lost.code for lost in report.damage],
                "EXPECTED": [lost.expected for lost in report.damage],
                "FOUND": [lost.found for lost in report.damage],
            }
        )
    output.print_message(
        f"{report.output}: {counted(len(report.segments), 'segment')}, {counted(report.records, 'record')}, "
        f"{size(report.bytes_kept)}, end offset {report.end_offset}; lost {size(report.bytes_lost)} in "
        f"{counted(len(report.damage), 'range')}"
    )
