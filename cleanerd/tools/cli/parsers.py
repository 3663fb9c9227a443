"""The command lines of the tools. Imports nothing heavy: every start of `cleanerd` runs it."""

from argparse import ArgumentParser, _SubParsersAction

from cleanerd.cli.options import (
    FORMATS,
    OUTPUT_HELP,
    add_configuration_options,
    add_log_dir_options,
    add_now_option,
    add_output_option,
    add_selection_options,
    number,
)
from cleanerd.cli.parser import Parser, add_command


def add_commands(commands: "_SubParsersAction[Parser]") -> None:
    """Declare verify, inspect, forecast, salvage and demo."""
    _add_verify(commands)
    _add_inspect(commands)
    _add_forecast(commands)
    _add_salvage(commands)
    _add_demo(commands)


def _add_verify(commands: "_SubParsersAction[Parser]") -> None:
    verify = add_command(
        commands,
        "verify",
        "cleanerd.tools.cli.verify:run",
        "check log directories for damage, and change nothing; exit 1 if an error is found",
        "cleanerd verify --config /etc/kafka/server.properties",
        "cleanerd verify --log-dir /restored/kafka-logs -o jsonl",
    )
    add_log_dir_options(verify)
    add_selection_options(verify)
    _add_processes_option(verify)
    add_output_option(verify)


def _add_inspect(commands: "_SubParsersAction[Parser]") -> None:
    inspect = add_command(
        commands,
        "inspect",
        "cleanerd.tools.cli.inspect:run",
        "show what is in logs and why they are so large: keys, what is superseded, hot keys, ages, codecs",
        "cleanerd inspect --config /etc/kafka/server.properties",
        "cleanerd inspect --log-dir /data/kafka-logs --topic orders --partition 3",
        "cleanerd inspect --log-dir /data/kafka-logs -o csv > logs.csv",
    )
    add_log_dir_options(inspect)
    add_selection_options(inspect)
    inspect.add_argument(
        "--details", action="store_true", help="show the details of every log, even of several"
    )
    inspect.add_argument(
        "--keys-max", metavar="N", type=number, help="above this many keys take a sample; default: 1048576"
    )
    inspect.add_argument(
        "--prefix-bytes",
        metavar="N",
        type=number,
        default=0,
        help="length of key prefixes; default: up to the first of - . / : _ | #",
    )
    add_now_option(inspect)
    _add_processes_option(inspect)
    inspect.add_argument(
        "--repair-plan",
        metavar="FILE",
        help="also list keys that lie on several partitions of a topic, as JSON lines",
    )
    inspect.add_argument("--html", metavar="FILE", help="also write one self-contained HTML file with plots")
    inspect.add_argument(
        "--parquet", metavar="FILE", help="also write one row per log; needs cleanerd[spark]"
    )
    add_output_option(inspect, "csv")


def _add_forecast(commands: "_SubParsersAction[Parser]") -> None:
    forecast = add_command(
        commands,
        "forecast",
        "cleanerd.tools.cli.forecast:run",
        "show what a cleaning would remove now, and how much disk it would take, without doing it",
        "cleanerd forecast --config /etc/kafka/server.properties",
        "cleanerd forecast --log-dir /restored/kafka-logs --topic-set orders:cleanup.policy=compact --exact",
    )
    add_configuration_options(forecast)
    add_selection_options(forecast)
    forecast.add_argument(
        "--exact",
        action="store_true",
        help="count every key, not a sample; takes 80 bytes of memory for each offset of a log",
    )
    add_now_option(forecast)
    forecast.set_defaults(force=True, dry_run=True, roll=False)
    add_output_option(forecast)


def _add_salvage(commands: "_SubParsersAction[Parser]") -> None:
    salvage = add_command(
        commands,
        "salvage",
        "cleanerd.tools.cli.salvage:run",
        "copy a partition directory without what is damaged; exit 1 if the copy lacks anything",
        "cleanerd salvage /data/kafka-logs/orders-3 --output /restore/orders-3",
    )
    salvage.add_argument("partition_dir", metavar="DIR", help="the partition directory, which stays as it is")
    salvage.add_argument(
        "--output",
        metavar="DIR",
        required=True,
        dest="output_dir",
        help="the copy: a new or an empty directory",
    )
    salvage.add_argument(
        "-o", metavar="FORMAT", choices=FORMATS, default="table", dest="output", help=OUTPUT_HELP
    )


def _add_demo(commands: "_SubParsersAction[Parser]") -> None:
    demo = add_command(
        commands,
        "demo",
        "cleanerd.tools.demo.run:run",
        "write logs, clean them while they are in use, check that no key is lost",
        "cleanerd demo",
        "cleanerd demo --directory /tmp/demo",
    )
    demo.add_argument(
        "--directory", metavar="DIR", help="keep the logs in DIR; default: a temporary directory"
    )


def _add_processes_option(parser: ArgumentParser) -> None:
    parser.add_argument("--processes", metavar="N", type=number, help="default: one per core")
