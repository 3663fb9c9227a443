"""`cleanerd digest`: one number for the state of a log, and whether two logs are in the same state.

Exit 0 if every log has a digest, and all that are compared are equal; 1 if some log has none or cannot be compared, or if
none of the logs that were named was found; 3 if some differ; 2 or 78 if the command line or the configuration is wrong.

JSON and YAML are those of `insight.digest_report`; JSON lines are the logs, or the comparisons, alone.
"""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from os.path import isdir, join

from cleanerd.cli import output
from cleanerd.cli.arguments import bytes_per_s
from cleanerd.cli.configuration import log_dirs, no_log_dirs
from cleanerd.cli.named import check_reports_alone, is_nothing_there, print_failed
from cleanerd.cli.tables import write_table
from cleanerd.errors import BadUsage
from cleanerd.format.names import CLUSTER_METADATA_TOPIC, DirKind, TopicPartition, parse_partition_dir
from cleanerd.tools.insight.digest import LogDigest, Question, digest_logs
from cleanerd.tools.insight.digest_report import (
    BUCKETS_MAX,
    Comparison,
    Side,
    compare,
    document,
    log_row,
    read_reports,
    sides_of,
)
from cleanerd.tools.insight.digest_rows import Terms
from cleanerd.tools.insight.log_dir_check import list_log_dir
from cleanerd.units import key_text

_KEYS_SHOWN = 20


def run(arguments: Namespace) -> int:
    """Digest or compare, report; returns the exit code."""
    if arguments.compare:
        return _compare(arguments)
    question, named = _question(arguments), _named(arguments)
    directories = log_dirs(arguments)
    for reason in no_log_dirs(directories):
        output.print_message(reason)
    listed = [list_log_dir(log_dir) for log_dir in directories]
    paths = [
        path
        for one in listed
        for tp, path in one.chosen(arguments.topic, arguments.partition)
        if tp.topic != CLUSTER_METADATA_TOPIC and (not named or tp in named)
    ]
    is_nothing = is_nothing_there(arguments, directories)
    for tp in sorted(named - {tp for one in listed for tp, _ in one.partitions}):
        output.print_message(f"no log {tp} was found")
        is_nothing = True
    if CLUSTER_METADATA_TOPIC in (*arguments.topic, *(tp.topic for tp in named)):
        output.print_message(
            f"{CLUSTER_METADATA_TOPIC} has no digest: how far it is committed is not on the disk"
        )
        is_nothing = True
    found = digest_logs(paths, question)
    for path, why in [one.unlisted for one in listed if one.unlisted is not None]:
        found.failed[path] = why
    print_failed(found.failed)
    compared = [one for one in compare(sides_of(found, question)) if len(one.sides) > 1]
    if output.is_table(arguments.output):
        _write_digests(found.logs, is_one_directory=len(directories) == 1)
        _write_comparisons(compared)
    elif arguments.output == "jsonl":
        output.write_document("jsonl", logs=[log_row(log) for log in found.logs])
    else:
        output.write_document(arguments.output, **document(found, question))
    return 1 if found.failed or is_nothing else _exit_code(compared)


def _write_digests(logs: Sequence[LogDigest], *, is_one_directory: bool) -> None:
    write_table(
        {
            "LOG": [str(log.topic_partition) if is_one_directory else log.directory for log in logs],
            "FROM": [str(log.start) for log in logs],
            "AT": [str(log.at) for log in logs],
            "KEYS": [f"{log.keys:,}" for log in logs],
            "DIGEST": [f"{log.digest:032x}" for log in logs],
            "NO KEY": [f"{log.no_key[0]:,}" if log.no_key[0] else "" for log in logs],
        }
    )
    for log in logs:
        for one in log.listed:
            output.write(f"{log.topic_partition} {key_text(one.key)}: offset {one.offset}\n")


def _exit_code(compared: Sequence[Comparison]) -> int:
    results = {one.result for one in compared}
    if "differs" in results:
        return 3
    return 1 if "not_comparable" in results else 0


def _question(arguments: Namespace) -> Question:
    buckets = arguments.buckets
    if not 0 < buckets <= BUCKETS_MAX or buckets & (buckets - 1):
        raise BadUsage(f"--buckets: expected a power of two up to {BUCKETS_MAX}, found {buckets}")
    if arguments.seed >= 1 << 64:
        raise BadUsage(f"--seed: expected less than 2^64, found {arguments.seed}")
    wanted: Sequence[int] = ()
    if arguments.keys is not None:
        wanted = _numbers(arguments.keys, buckets) if arguments.keys else range(buckets)
    terms = Terms(arguments.seed, buckets, not arguments.no_offsets)
    rate = bytes_per_s(arguments.io)
    return Question(terms, arguments.at, arguments.start, frozenset(wanted), rate)


def _named(arguments: Namespace) -> set[TopicPartition]:
    found = {text: parse_partition_dir(text) for text in arguments.logs}
    wrong = [text for text, parsed in found.items() if parsed is None or parsed[1] is not DirKind.CURRENT]
    if wrong:
        raise BadUsage(f"expected a log, as orders-0, found {wrong[0]!r}")
    if found and (arguments.topic or arguments.partition):
        raise BadUsage("expected TOPIC-P, or --topic and --partition, found both")
    return {parsed[0] for parsed in found.values() if parsed is not None}


def _numbers(text: str, buckets: int) -> list[int]:
    words = text.split(",")
    if not all(word.isascii() and word.isdecimal() and int(word) < buckets for word in words):
        raise BadUsage(
            f"--keys: expected numbers of buckets below {buckets}, separated by commas, found {text!r}"
        )
    return [int(word) for word in words]


def _compare(arguments: Namespace) -> int:
    check_reports_alone(arguments, "--compare", "config", "log_dir", "at", "start", "no_offsets")
    sides, lacks = read_reports(arguments.compare)
    topics, partitions, named = arguments.topic, arguments.partition, _named(arguments)
    chosen = [
        side
        for side in sides
        if (not topics or side.row["topic"] in topics)
        and (not partitions or side.row["partition"] in partitions)
        and (not named or TopicPartition(side.row["topic"], side.row["partition"]) in named)
    ]
    for reason in lacks:
        output.print_message(reason)
    rate = bytes_per_s(arguments.io)
    compared = compare(chosen, None if arguments.keys is None else partial(_listed, rate))
    if not compared:
        output.print_message("no log is in these reports" + " that was asked for" * bool(sides))
    if output.is_table(arguments.output):
        _write_comparisons(compared)
    else:
        output.write_document(arguments.output, compared=[one.fields for one in compared])
    return _exit_code(compared) or (1 if lacks or not compared else 0)


def _listed(rate: float, side: Side, buckets: Sequence[int]) -> Side | None:
    """The side with the keys of these buckets, if its log is on this machine."""
    row = side.row
    directory = join(row["log_dir"], f"{row['topic']}-{row['partition']}")
    if not isdir(directory):
        output.print_message(
            f"{directory} is not on this machine; on that of {side.report}: {side.again(buckets)}"
        )
        return None
    question = Question(side.terms, row["at"], row["from"], frozenset(buckets), rate)
    found = digest_logs([directory], question)
    print_failed(found.failed)
    return replace(side, row=log_row(found.logs[0])) if found.logs else None


def _write_comparisons(compared: Sequence[Comparison]) -> None:
    write_table(
        {
            "LOG": [str(one.topic_partition) for one in compared],
            "RESULT": [one.result.replace("_", " ") for one in compared],
            "BUCKETS": [",".join(map(str, one.buckets[:_KEYS_SHOWN])) for one in compared],
            "WHY": [one.why or "" for one in compared],
        }
    )
    for one in compared:
        for row in (one.keys or ())[:_KEYS_SHOWN]:
            places = ["not there" if place is None else f"offset {place['offset']}" for place in row["sides"]]
            output.write_line(f"{one.topic_partition} {row['key']}: {', '.join(places)}")
        if one.keys is None and one.buckets:
            for side in one.sides:
                output.write_line(f"the keys of {side.name}: {side.again(one.buckets[:_KEYS_SHOWN])}")
