"""`cleanerd find`: where a key lies, and when each record of it goes.

Exit 0 if a key was found; 4 if none was, and all that is there was read; 1 if none was found, and something could not be
read, or none of the logs that were named is there; 2 or 78 if the command line or the configuration is wrong.

JSON and YAML are `{"apiVersion": "cleanerd/v1", "found": [...], "failed": [...]}`, with the fields of `_fields` for each
occurrence; JSON lines are the occurrences alone.
"""

import base64
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from os.path import dirname
from shlex import join

from cleanerd.cleaning.knowledge import is_policy_known
from cleanerd.cli import output
from cleanerd.cli.arguments import bytes_per_s
from cleanerd.cli.configuration import log_dirs, no_log_dirs
from cleanerd.cli.named import is_nothing_there, print_failed, where
from cleanerd.cli.progress import bytes_on
from cleanerd.cli.tables import write_table
from cleanerd.config.load import Configuration, resolve
from cleanerd.config.sources import read_sources
from cleanerd.env.clock import SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.errors import BadUsage, CleanerdError
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.metadata_log import by_node, find_metadata
from cleanerd.tools.insight.find import Found, Occurrence, find
from cleanerd.units import key_text, utc

_KEY_SHOWN = 64
_MISSING_SHOWN = 5
_DECODERS: Mapping[str, Callable[[str], bytes]] = {
    "text": lambda text: text.encode("utf-8", "surrogateescape"),
    "hex": lambda text: bytes.fromhex(text.removeprefix("0x")),  # as cleanerd prints keys that are no text
    "base64": lambda text: base64.b64decode(text, validate=True),
}


def run(arguments: Namespace) -> int:
    """Look, report; returns the exit code."""
    keys = _keys(arguments)
    directories = log_dirs(arguments)
    for reason in no_log_dirs(directories):
        output.print_message(reason)
    with bytes_on(sys.stderr, "find") as read:
        rate = bytes_per_s(arguments.io)
        found = find(directories, keys, arguments.topic, arguments.partition, read, rate)
    known = {one.file.topic_partition for one in found.occurrences}
    is_nothing = is_nothing_there(arguments, directories, known)
    print_failed(found.failed)
    if any(one.clean_options is not None for one in found.occurrences):
        settings = _settings(arguments, directories)
        found.occurrences = [_as_configured(one, settings) for one in found.occurrences]
    _report(arguments, found)
    missing = sorted(keys - {one.key for one in found.occurrences})
    if missing and not is_nothing:
        shown = ", ".join(key_text(key[:_KEY_SHOWN], len(key)) for key in missing[:_MISSING_SHOWN])
        more = f" and {len(missing) - _MISSING_SHOWN} more" * (len(missing) > _MISSING_SHOWN)
        where = "in what could be read" if found.failed else "anywhere, and everything was read"
        output.print_message(f"not found {where}: {shown}{more}")
    if found.occurrences:
        return 0
    return 1 if is_nothing or found.failed else 4


def _keys(arguments: Namespace) -> set[bytes]:
    texts = list(arguments.key)
    if arguments.keys_file is not None:
        try:
            with open(arguments.keys_file, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
                lines = [line.removesuffix("\n") for line in file]
        except OSError as error:
            raise BadUsage(f"--keys-file: cannot read {arguments.keys_file!r}: {error.strerror}") from error
        for number, line in enumerate(lines, 1):
            if line.endswith("\r") or line.startswith(
                "\ufeff"
            ):  # such keys are nowhere, which would be believed
                what = "keys ended by line feeds alone, without a byte order mark (others in hex)"
                raise BadUsage(
                    f"--keys-file: {arguments.keys_file!r}, line {number}: expected {what}, found {line!r:.80}"
                )
        texts += filter(None, lines)
    if not texts:
        raise BadUsage("no key: give --key or --keys-file")
    keys = set()
    for text in texts:
        try:
            keys.add(_DECODERS[arguments.encoding](text))
        except ValueError:
            raise BadUsage(f"expected a key in {arguments.encoding}, found {text!r}") from None
    return keys


def _settings(arguments: Namespace, directories: Sequence[str]) -> dict[str, Configuration]:
    """The settings of topics by log directory, as far as files tell them."""
    settings, files = dict[str, Configuration](), RealFiles()
    with suppress(CleanerdError, OSError):
        static = resolve(read_sources(arguments.config))
        for log_dirs in by_node(files, directories):
            with suppress(CleanerdError, OSError):
                metadata = find_metadata(files, log_dirs, static.broker.metadata_log_dir)
                found = static if metadata is None else static.with_metadata(metadata)
                settings |= dict.fromkeys(log_dirs, found)
    return settings


def _as_configured(one: Occurrence, settings: Mapping[str, Configuration]) -> Occurrence:
    """Without a command where the topic is not known to be compacted: a cleaning would leave it alone."""
    tp, log_dir = one.file.topic_partition, dirname(one.file.directory)
    configuration = settings.get(log_dir)
    if one.clean_options is None:
        return one
    if configuration is not None and configuration.topic(tp.topic).compact:
        with suppress(CleanerdError, OSError):
            if is_policy_known(LogDir.at(RealFiles(), log_dir, SystemClock()), tp, configuration):
                return one
    return replace(one, goes=f"{one.goes}, with cleanup.policy=compact", clean_options=None)


def _command(arguments: Namespace, one: Occurrence) -> str | None:
    options = one.clean_options
    return None if options is None else f"cleanerd clean {where(arguments)} {join(options)}"


def _fields(arguments: Namespace, one: Occurrence) -> dict[str, object]:
    return {
        "topic": one.file.topic_partition.topic,
        "partition": one.file.topic_partition.partition,
        "key": key_text(one.key),
        "path": one.file.path,
        "offset": one.offset,
        "timestamp_ms": one.timestamp_ms,
        "is_null": one.is_null,
        "state": one.state,
        "goes": one.goes,
        "command": _command(arguments, one),
    }


def _report(arguments: Namespace, found: Found) -> None:
    rows, form = found.occurrences, arguments.output
    if not output.is_table(form):
        fields = [_fields(arguments, one) for one in rows]
        failed = [{"path": path, "reason": reason} for path, reason in found.failed.items()]
        if form == "jsonl":
            output.write_document(form, found=fields)
        else:
            output.write_document(form, found=fields, failed=failed)
        return
    write_table(
        {
            "KEY": [key_text(one.key[:_KEY_SHOWN], len(one.key)) for one in rows],
            "FILE": [one.file.path for one in rows],
            "OFFSET": [str(one.offset) for one in rows],
            "TIME": [utc(one.timestamp_ms) if one.timestamp_ms >= 0 else "" for one in rows],
            "STATE": [
                f"{one.state}, null" if one.is_null and one.state != "tombstone" else one.state
                for one in rows
            ],
            "GOES": [one.goes or "" for one in rows],
        }
    )
    commands = dict.fromkeys(_command(arguments, one) for one in rows if one.clean_options is not None)
    for command in filter(None, commands):
        what = "even what the active segment holds back" if command.endswith(" --roll") else "it"
        output.write_line(f"to have {what} go now: {command}")
