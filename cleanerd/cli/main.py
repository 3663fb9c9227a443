"""Entry point of `cleanerd`: parse, dispatch, turn errors into exit codes.

Commands are imported when they are run, so that `--help` is quick.
"""

import argparse
import atexit
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

from cleanerd import __version__
from cleanerd.cli.arguments import argument, option
from cleanerd.cli.completion import autocomplete, script
from cleanerd.cli.options import ASSUME, CONFIGURATION, LOG_DIRS, NOW, SELECTION, output, repeated, share
from cleanerd.cli.output import INTERRUPTED, prepare_streams, print_message, write
from cleanerd.cli.parser import SHELLS, Command, Parser, add_commands
from cleanerd.cli.tables import fitted
from cleanerd.cli.unexpected import catch_unexpected, line_of
from cleanerd.env.host import leave_settings, search_host_last
from cleanerd.errors import BadConfiguration, BadUsage, CleanerdError, Fatal

if TYPE_CHECKING:
    from cleanerd.cli.clean import CleanOnce

_COMMANDS = (
    Command(
        "run",
        "cleanerd.cli.run:run",
        "run the daemon, in the foreground; SIGHUP reloads, SIGTERM stops",
        (
            "cleanerd run --config /etc/kafka/server.properties",
            "cleanerd run --log-dir /data/logs --topic-set orders:cleanup.policy=compact",
        ),
        configuration=CONFIGURATION,
    ),
    Command(
        "clean",
        "cleanerd.cli.clean:run",
        "apply compaction and retention once, then exit",
        (
            "cleanerd clean --config /etc/kafka/server.properties --dry-run",
            "cleanerd clean --config server.properties --topic orders --partition 3 --force",
            "cleanerd clean --log-dir /restored/kafka-logs --topic-set orders:cleanup.policy=compact -o json",
        ),
        configuration=CONFIGURATION,
        arguments=(
            *SELECTION,
            option("--force", "ignore the dirty ratio (never the safety bounds)"),
            NOW,
            ASSUME,
            output(),
        ),
        exclusive=(
            option("--roll", "first close the active segments, which are never cleaned"),
            option("--dry-run", "only show what would be removed, and why"),
        ),
    ),
)
_RESCUE = Command(
    "rescue",
    "cleanerd.cli.rescue:run",
    "free a full disk without deleting data, beside a dead broker or a live one",
    (
        "cleanerd rescue --config /etc/kafka/server.properties",
        "cleanerd rescue --config /etc/kafka/server.properties --yes",
        "cleanerd rescue --config /etc/kafka/server.properties --yes --until 10% --spare /mnt/other",
    ),
    configuration=CONFIGURATION,
    arguments=(
        option("--yes", "do it; without it the plan is printed, and nothing changed"),
        option(
            "--spare",
            "a directory on another file system, for a group that has no room beside its old segments",
            metavar="DIR",
        ),
        option(
            "--until",
            "stop when this share of the file system is free, such as 20%%; default: 20%%",
            metavar="SHARE",
            type=share,
        ),
        output(),
    ),
)
_TOOLS = "cleanerd.tools.cli.parsers"
"""The module with the commands that the cleaner itself does not need; it is imported by name."""
_BROKER_CHECK = Command(
    "check",
    "cleanerd.cli.broker:check",
    "ask the broker of each log directory whether it can swap segments; exit 1 unless all can",
    (
        "cleanerd broker check --config /etc/kafka/server.properties",
        "cleanerd broker check --log-dir /data/kafka-logs --load -o json",
    ),
    arguments=(
        *LOG_DIRS,
        option(
            "--load",
            "load the agent into brokers that have not brought it along",
        ),
        output(),
    ),
)
_CONFIG_VERBS = (
    Command(
        "show",
        "cleanerd.cli.config:show",
        "print every key with its value",
        (
            "cleanerd config show --config server.properties --origin",
            "cleanerd config show --config server.properties --topic orders -o json",
        ),
        configuration=CONFIGURATION,
        arguments=(
            repeated("--topic", "T", "all values of this topic; default: the overrides of all topics"),
            option("--origin", "also show where each value comes from"),
            output(),
        ),
    ),
    Command(
        "check",
        "cleanerd.cli.config:check",
        "validate everything and list all problems; exit 78 if there are any",
        ("cleanerd config check --config /etc/kafka/server.properties",),
        configuration=CONFIGURATION,
    ),
    Command(
        "reference",
        "cleanerd.cli.config:reference",
        "print the reference of all keys as Markdown",
        ("cleanerd config reference | less",),
    ),
)
_MORE_COMMANDS = (
    Command(
        "broker",
        "",
        "ask running brokers whether they can swap segments",
        _BROKER_CHECK.examples[:1],
        verbs=(_BROKER_CHECK,),
    ),
    Command("config", "", "show, check or document the configuration", verbs=_CONFIG_VERBS),
    Command(
        "completion",
        "",
        "print a script that completes commands and options in a shell",
        ("cleanerd completion bash > /etc/bash_completion.d/cleanerd",),
        arguments=(argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS)),),
    ),
)
_EXAMPLES = (
    "cleanerd demo",
    "cleanerd clean --config /etc/kafka/server.properties --dry-run",
    "cleanerd run --config /etc/kafka/server.properties",
    "cleanerd config show --config server.properties --topic orders --origin",
)
_EXIT_CODES = """
exit codes:
  0    done
  1    something failed, or nothing that was named is there; the reason is on stderr
  2    usage: the command line is wrong
  3    doctor: something was found; digest: two differ
  4    find: the key is nowhere
  75   rescue: another cleanerd works there
  78   the configuration is not valid
  130  interrupted (Ctrl-C)

`cleanerd COMMAND --help` explains a command. `cleanerctl` talks to a running daemon.
"""


def main(argv: Sequence[str] | None = None, *, clean_once: "CleanOnce | None" = None) -> int:
    """Run one command and return its exit code. `clean_once` stands in for the work of `clean`."""
    prepare_streams()
    search_host_last(sys.path, os.environ)
    if argv is None:  # the process is ours
        leave_settings(os.environ)
        catch_unexpected(print_message)
    # else the interpreter looks for garbage in all that is imported before it ends: 0.2 s
    atexit.register(gc.freeze)
    try:
        if sys.flags.optimize:
            raise BadUsage("python -O switches off the assertions that guard the data; run without it")
        parser = make_parser()
        autocomplete(parser, {})
        return _run(parser.parse_args(argv), clean_once)
    except SystemExit as stop:  # argparse: 0 after --help and --version, 2 for usage
        return int(stop.code or 0)
    except KeyboardInterrupt:
        print_message("interrupted")
        return INTERRUPTED
    except BadConfiguration as error:
        print_message("\n  ".join(["the configuration is not valid:", *error.problems]))
        return error.exit_code
    except CleanerdError as error:
        print_message(str(error))
        return error.exit_code if isinstance(error, Fatal) else 1
    except Exception as error:  # noqa: BLE001 - the outermost boundary
        print_message(line_of(error))
        return 1


def _leave(*_: object) -> NoReturn:
    """End while there is nothing to end yet; a KeyboardInterrupt in a callback of the import system would be ignored."""
    os.write(2, b"cleanerd: interrupted\n")
    os._exit(INTERRUPTED)


def _run(arguments: argparse.Namespace, clean_once: "CleanOnce | None") -> int:
    if arguments.command == "completion":
        write(script("cleanerd", arguments.shell))
        return 0
    if arguments.command == "run":
        signal.signal(signal.SIGINT, _leave)  # until the daemon has a handler of its own
    module, _, function = arguments.run.partition(":")
    run: Callable[..., int] = getattr(import_module(module), function)
    with fitted(getattr(arguments, "output", "") != "wide"):
        return run(arguments, clean_once) if arguments.command == "clean" else run(arguments)


def make_parser() -> Parser:
    """The parser of the command line; configuration keys are checked later, when the files have been read."""
    parser = Parser(
        prog="cleanerd",
        description="Log cleaner for Kafka-format log directories: compaction and retention.",
        examples=_EXAMPLES,
        more=_EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"cleanerd {__version__}")
    add_commands(parser, (*_COMMANDS, _RESCUE, *import_module(_TOOLS).COMMANDS, *_MORE_COMMANDS))
    return parser


if __name__ == "__main__":
    sys.exit(main())
