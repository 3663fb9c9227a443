"""`cleanerd rescue`: a disk is full; free what can be freed without deleting data (`cleaning.rescue`).

Without `--yes` it prints the plan. Exit 0 if enough is free, or would be; 1 if not; 75 if another cleanerd works there; 2 or
78 if the command line or the configuration is wrong.
"""

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

from cleanerd.cleaning.rescue import Rescue
from cleanerd.cleaning.rescued import Rescued
from cleanerd.cleaning.result import CleanRequest
from cleanerd.cli import output
from cleanerd.cli.clean import requests_from
from cleanerd.cli.ctl.client import BUSY
from cleanerd.cli.progress import progress_on
from cleanerd.cli.tables import write_table
from cleanerd.env.clock import SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.errors import each_log
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.spark_runtime.spark_master import spark_place
from cleanerd.storage.lock import stop_between_holds
from cleanerd.storage.log_dir import CleanedByAnother
from cleanerd.units import size, utc

UNTIL = 0.2
_HELP_MAX = 8


def run(arguments: Namespace, session: LazySpark | None = None) -> int:
    """Plan or carry out, report; returns the exit code. `session`: of a test."""
    vars(arguments).update(
        topic=[], partition=[], now_ms=None, assume=frozenset(), force=True, roll=False, dry_run=False
    )
    requests, failed = requests_from(arguments)
    stop_between_holds()
    is_busy, found, errors = False, list[Rescued](), [str(result.reason) for result in failed]
    with _session(requests, session) as used, progress_on(sys.stderr) as progress:
        for request in requests:
            until = UNTIL if arguments.until is None else arguments.until
            rescue = Rescue(request, progress, SystemClock(), used, RealFiles(), until, arguments.spare)
            act: Callable[[str], Rescued] = rescue.carry_out if arguments.yes else rescue.plan
            for path in request.log_dirs:
                with each_log(path) as directory:
                    found.append(act(path))
                if directory.error is not None:
                    is_busy = is_busy or isinstance(directory.error, CleanedByAnother)
                    errors.append(str(directory.error))
    _report(found, arguments)
    for error in errors:
        output.print_message(error)
    if is_busy:
        return BUSY
    wanted = [one.until_bytes if arguments.until is not None else one.start_bytes for one in found]
    is_enough = all(
        one.is_enough and one.free_bytes_after >= least for one, least in zip(found, wanted, strict=True)
    )
    return 0 if found and not errors and is_enough else 1


@contextmanager
def _session(requests: list[CleanRequest], given: LazySpark | None) -> Iterator[LazySpark]:
    if given is not None:
        yield given
        return
    place = spark_place(requests[0].config) if requests else None
    session = LazySpark(place.master, dict(place.conf)) if place else LazySpark("local[1]", {})
    try:
        yield session
    finally:
        session.stop()


def _report(found: list[Rescued], arguments: Namespace) -> None:
    if not output.is_table(arguments.output):
        rows = [
            asdict(one) | {"missing_bytes": one.missing_bytes, "is_enough": one.is_enough} for one in found
        ]
        output.write_document(arguments.output, log_dirs=rows)
        return
    for one in found:
        is_done = one.free_bytes_after >= one.until_bytes  # what had no room until then need not have any
        steps = [
            step
            for step in one.steps
            if step.outcome != "skipped" and not (step.outcome == "no_room" and is_done)
        ]
        if steps:
            write_table({
                "STEP": [step.name for step in steps],
                "WHAT": [step.logs for step in steps],
                "NEEDS": [size(step.needs_bytes) if step.needs_bytes else "" for step in steps],
                "FREES": [size(step.frees_bytes) if step.frees_bytes else "" for step in steps],
                "OUTCOME": [step.outcome for step in steps],
                "REASON": [step.reason or "" for step in steps],
            })  # fmt: skip
        is_now = "are" if arguments.yes else "would be"
        verdict, missing = (
            ("not enough", f": {size(one.missing_bytes)} are missing")
            if one.missing_bytes
            else ("enough", "")
        )
        output.write(
            f"{one.log_dir}: {size(one.free_bytes)} were free, {size(one.free_bytes_after)} {is_now} free: {verdict} for a "
            f"start of the broker, which takes {size(one.start_bytes)}{missing}\n"
        )
        if arguments.until is not None and not is_done and not one.missing_bytes:
            lacks = size(one.until_bytes - one.free_bytes_after)
            output.write(f"but {lacks} are missing to the {size(one.until_bytes)} of --until\n")
        if one.lacks_names:
            output.write("but too few files can be made there (inodes, `df -i`) for a start of the broker\n")
        if one.is_interrupted:
            output.write(
                "but a part of a log lies on the spare alone: the broker does not start before this has ended well\n"
            )
        if one.settings_as_of_ms is not None:
            output.write(
                f"by the settings as of {utc(one.settings_as_of_ms)}, the last sign of life of the broker; --yes is "
                "your word that the cluster has changed none since\n"
            )
        if one.reserved_bytes and not (arguments.yes and one.is_enough):
            output.write(
                f"{size(one.reserved_bytes)} are free for root alone, and what is freed may go there first (ext4 keeps 5 % "
                f'by default): `tune2fs -m 0 "$(findmnt -no SOURCE -T {one.log_dir})"` gives them to the broker, at once; '
                "then run this again\n"
            )
        if one.free_bytes_after < one.until_bytes:
            for text in one.would_help[:_HELP_MAX]:
                output.write_line(f"would help: {text}")
    if found and not arguments.yes:
        is_planned = any(step.outcome == "planned" for one in found for step in one.steps)
        output.write(f"nothing was changed; {'--yes does it' if is_planned else 'nothing would be'}\n")
