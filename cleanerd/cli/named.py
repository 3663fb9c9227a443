"""Logs and directories that a command line names. They must exist: a typing error must not look like finished work."""

import os
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from shlex import quote

from cleanerd.cli import output
from cleanerd.cli.configuration import no_log_dirs
from cleanerd.cli.parser import did_you_mean
from cleanerd.errors import BadUsage
from cleanerd.format.names import DirKind, TopicPartition, parse_partition_dir

_FAILED_SHOWN = 50


def is_nothing_there(
    arguments: Namespace, log_dirs: Sequence[str], known: Iterable[TopicPartition] = ()
) -> bool:
    """True if no log that the command line names exists; prints each missing name to stderr.

    `known`: logs found in another way. A directory that cannot be listed counts as one that may have the logs.
    """
    names, is_all_listed = list[str](), True
    for path in log_dirs:
        try:
            names += os.listdir(path)
        except OSError:
            is_all_listed = False
    parsed = [found for found in map(parse_partition_dir, names) if found is not None]
    logs = {tp for tp, kind in parsed if kind is DirKind.CURRENT} | set(known)
    topics, partitions = dict.fromkeys(arguments.topic), frozenset(arguments.partition)
    missing = (
        _missing_topics(topics, partitions, logs) if topics
        else [f"no log of partition {one} was found" for one in partitions - {tp.partition for tp in logs}]
    )  # fmt: skip
    for text in missing:
        output.print_message(text)
    is_named = any(
        (not topics or tp.topic in topics) and (not partitions or tp.partition in partitions) for tp in logs
    )
    if topics or partitions:
        return not is_named and is_all_listed
    return bool(arguments.log_dir) and not logs and len(list(no_log_dirs(log_dirs))) == len(log_dirs)


def print_failed(failed: Mapping[str, str]) -> None:
    """Print why paths could not be looked at; of very many the first, for documents have all."""
    for path, reason in list(failed.items())[:_FAILED_SHOWN]:
        output.print_message(reason if path in reason else f"{path}: {reason}")
    if len(failed) > _FAILED_SHOWN:
        output.print_message(f"and {len(failed) - _FAILED_SHOWN:,} more; `-o json` has all")


def where(arguments: Namespace) -> str:
    """The options that name the same directories and settings in another command."""
    words = [] if arguments.config is None else [f"--config {quote(arguments.config)}"]
    words += [f"--log-dir {quote(path)}" for path in arguments.log_dir]
    words += [f"--set {quote('='.join(one))}" for one in getattr(arguments, "set", ())]
    topic_sets = getattr(arguments, "topic_set", ())
    words += [f"--topic-set {quote(f'{topic}:{key}={value}')}" for topic, key, value in topic_sets]
    return " ".join(words)


def check_reports_alone(arguments: Namespace, option: str, *others: str) -> None:
    """Raise BadUsage for one of the others (parameters), which an option that reads reports would not heed."""
    for name in others:
        value = getattr(arguments, name)
        if not (value is None or value is False or value == []):  # 0 is given
            given = "--from" if name == "start" else f"--{name.replace('_', '-')}"
            raise BadUsage(f"{given}: {option} reads reports alone; give it to the command that writes them")


def _missing_topics(
    topics: Iterable[str], partitions: frozenset[int], logs: set[TopicPartition]
) -> Iterable[str]:
    there = {tp.topic for tp in logs}
    for topic in topics:
        if topic not in there:
            yield f"no log of topic {topic} was found{_meant(topic, there)}"
        elif partitions and not any(tp.topic == topic and tp.partition in partitions for tp in logs):
            yield f"topic {topic} has no partition {', '.join(map(str, sorted(partitions)))} here"


def _meant(topic: str, there: set[str]) -> str:
    """A suggestion for a topic that was not found: it looks like a list, a pattern or a log, or resembles a known name."""
    if "," in topic:
        return "; give each topic with a --topic of its own"
    if set(topic) & set("*?["):
        return "; --topic takes names, not patterns"
    parsed = parse_partition_dir(topic)
    if parsed is not None and parsed[0].topic in there:
        return f"; did you mean --topic {parsed[0].topic} --partition {parsed[0].partition}?"
    return did_you_mean(topic, there)
