"""Entry point of `cleanerd`: parse, dispatch, turn errors into exit codes.

Commands are imported when they are run, so that `--help` is quick.

=====  ==========================================================
exit   meaning
=====  ==========================================================
0      done
1      something failed; what and why is on stderr
2      usage: the command line makes no sense
78     configuration that does not validate (EX_CONFIG)
130    interrupted (SIGINT)
=====  ==========================================================
"""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cleanerd import __version__
from cleanerd.cli import options
from cleanerd.cli.output import say
from cleanerd.errors import BadConfiguration, BadUsage, CleanerdError, Fatal

if TYPE_CHECKING:
    from cleanerd.cli.clean import CleanOnce

INTERRUPTED = 130
_EXAMPLES = """examples:
  cleanerd clean --config /etc/kafka/server.properties
  cleanerd clean --config server.properties --topic orders --partition 3 --force
  cleanerd clean --log-dir /restored/kafka-logs --topic-set orders:cleanup.policy=compact --dry-run -o json
  cleanerd run --config /etc/kafka/server.properties
  cleanerd config show --config server.properties --topic orders --origin
  cleanerd demo
"""


def main(argv: Sequence[str] | None = None, *, clean_once: "CleanOnce | None" = None) -> int:
    """Run one command and return its exit code. `clean_once` stands in for the work of `clean`."""
    try:
        if sys.flags.optimize:
            raise BadUsage("python -O switches off the assertions that guard the data; run without it")
        return _run(_parser().parse_args(argv), clean_once)
    except SystemExit as stop:  # argparse: 0 after --help and --version, 2 for usage
        return int(stop.code or 0)
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except BadConfiguration as error:
        say("\n  ".join(["the configuration is not valid:", *error.problems]))
        return error.exit_code
    except CleanerdError as error:
        say(str(error))
        return error.exit_code if isinstance(error, Fatal) else 1


def _run(arguments: argparse.Namespace, clean_once: "CleanOnce | None") -> int:
    match arguments.command:
        case "clean":
            from cleanerd.cli import clean  # noqa: PLC0415

            return clean.run(arguments, clean_once)
        case "run":
            from cleanerd.cli import run  # noqa: PLC0415

            return run.run(arguments)
        case "demo":
            from cleanerd.cli import demo  # noqa: PLC0415

            return demo.run(arguments.directory)
        case _:
            from cleanerd.cli import config  # noqa: PLC0415

            return {"show": config.show, "check": config.check, "reference": config.reference}[
                arguments.verb
            ](arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cleanerd",
        description="Log cleaner for Kafka-format log directories: compaction and retention.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"cleanerd {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_run(commands)
    _add_clean(commands)
    _add_demo(commands)
    _add_config(commands)
    return parser


def _add_run(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    run = commands.add_parser(
        "run",
        help="the daemon: clean and retain for ever",
        description="The long-running daemon, in the foreground. SIGHUP reloads, SIGTERM stops; cleanerctl talks to it.",
        allow_abbrev=False,
    )
    options.add_configuration_options(run)


def _add_clean(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    clean = commands.add_parser(
        "clean",
        help="compact and retain once, then exit",
        description="One shot: compaction, then the retention pass that compacted logs get.",
        allow_abbrev=False,
    )
    options.add_configuration_options(clean)
    options.add_clean_options(clean)


def _add_demo(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    demo = commands.add_parser(
        "demo",
        help="write logs, clean them while they are in use, check that no key was lost",
        allow_abbrev=False,
    )
    demo.add_argument(
        "--directory", metavar="DIR", help="keep the logs in DIR; default: a temporary directory"
    )


def _add_config(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    config = commands.add_parser("config", help="show or check the configuration")
    verbs = config.add_subparsers(dest="verb", metavar="VERB", required=True)
    show = verbs.add_parser("show", help="print every key with its value", allow_abbrev=False)
    check = verbs.add_parser("check", help="validate everything; exit 78 if it does not", allow_abbrev=False)
    verbs.add_parser("reference", help="print the reference of all keys as Markdown", allow_abbrev=False)
    for verb in (show, check):
        options.add_configuration_options(verb)
    options.add_show_options(show)


if __name__ == "__main__":
    sys.exit(main())
