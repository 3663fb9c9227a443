"""The command lines of the tools. Imports nothing heavy: every start of `cleanerd` runs it."""

from cleanerd.cli.arguments import Argument, argument, number, option, price, rate, size
from cleanerd.cli.options import (
    CONFIGURATION,
    FORMATS,
    LOG_DIRS,
    NOW,
    OUTPUT_HELP,
    SELECTION,
    output,
    repeated,
)
from cleanerd.cli.parser import Command


def _io(default: str) -> Argument:
    return option(
        "--io",
        f"bytes per second to read; default: {default}",
        metavar="RATE",
        type=rate,
        default=rate(default),
    )


_PROCESSES = option("--processes", "default: one per core", metavar="N", type=number)

COMMANDS = (
    Command(
        "doctor",
        "cleanerd.tools.cli.doctor:run",
        "show what is wrong with the logs of a broker, its cost, and what mends it; exit 3 if anything is",
        (
            "cleanerd doctor --config /etc/kafka/server.properties",
            "cleanerd doctor --config /etc/kafka/server.properties --read-max 5GB -o json > broker-1.json",
            "cleanerd doctor --merge broker-1.json broker-2.json broker-3.json -o html > fleet.html",
        ),
        configuration=CONFIGURATION,
        arguments=(
            *SELECTION,
            option(
                "--read-max",
                "read so much of compacted logs for what is superseded; 0: none; default: 50GB",
                metavar="SIZE",
                type=size,
                default=50e9,
            ),
            _io("50MB"),
            NOW,
            option("--price", "of a GB a month, to show what findings cost", metavar="PRICE", type=price),
            option(
                "--merge",
                "make one report of these, of one broker or more; those of `digest` among them are compared",
                metavar="FILE",
                nargs="+",
            ),
            output("html"),
        ),
    ),
    Command(
        "verify",
        "cleanerd.tools.cli.verify:run",
        "check log directories for damage, and change nothing; exit 1 if an error is found",
        (
            "cleanerd verify --config /etc/kafka/server.properties",
            "cleanerd verify --log-dir /restored/kafka-logs -o jsonl",
        ),
        arguments=(
            *LOG_DIRS,
            *SELECTION,
            option(
                "--severity",
                "list findings from this severity on: error, warning or info; default: warning",
                choices=("error", "warning", "info"),
                default="warning",
                metavar="LEVEL",
            ),
            _PROCESSES,
            output(),
        ),
    ),
    Command(
        "inspect",
        "cleanerd.tools.cli.inspect:run",
        "show why logs are so large: superseded records by age and key, keys in several partitions, codecs",
        (
            "cleanerd inspect --config /etc/kafka/server.properties",
            "cleanerd inspect --log-dir /data/kafka-logs --topic orders --partition 3",
            "cleanerd inspect --log-dir /data/kafka-logs -o csv > logs.csv",
        ),
        arguments=(
            *LOG_DIRS,
            *SELECTION,
            NOW,
            output("csv"),
        ),
    ),
    Command(
        "digest",
        "cleanerd.tools.cli.digest:run",
        "show one number for the state of a log, which no right cleaning changes; exit 3 if two differ",
        (
            "cleanerd digest --config /etc/kafka/server.properties --topic orders -o json > a.json",
            "cleanerd digest orders-0 --log-dir /replica-1/kafka-logs --log-dir /replica-2/kafka-logs",
            "cleanerd digest --compare a.json b.json --keys",
        ),
        arguments=(
            argument("logs", metavar="TOPIC-P", nargs="*", help="only these logs"),
            *LOG_DIRS,
            *SELECTION,
            option(
                "--at",
                "the state at this offset; default: the last that can be compared",
                metavar="OFFSET",
                type=number,
            ),
            option(
                "--from",
                "without keys whose newest record is older; default: the log start",
                metavar="OFFSET",
                type=number,
                dest="start",
            ),
            option(
                "--buckets",
                "groups of keys with a sum each, which show where two logs differ; default: 256",
                metavar="N",
                type=number,
                default=256,
            ),
            option(
                "--seed",
                "a number that all hashes depend on, the same for all that is compared; default: 0",
                metavar="S",
                type=number,
                default=0,
            ),
            option("--no-offsets", "of keys, values and headers only, to compare two clusters"),
            option(
                "--keys",
                "list the keys of these buckets, such as 3,17; default: of all; with --compare those that differ, from the "
                "logs on this machine",
                metavar="BUCKETS",
                nargs="?",
                const="",
            ),
            option(
                "--compare",
                "compare the logs in these reports, which -o json wrote",
                metavar="FILE",
                nargs="+",
            ),
            _io("unlimited"),
            output(),
        ),
    ),
    Command(
        "find",
        "cleanerd.tools.cli.find:run",
        "show every occurrence of a key, what it is, and when it goes; exit 4 if there is none",
        (
            "cleanerd find --config /etc/kafka/server.properties --topic customers --key 4711",
            "cleanerd find --log-dir /data/kafka-logs --encoding hex --key 00000000000012a7",
        ),
        arguments=(
            *LOG_DIRS,
            *SELECTION,
            repeated("--key", "K", "a key"),
            option("--keys-file", "a file with a key in each line", metavar="FILE"),
            option(
                "--encoding",
                "of the keys that are given: text, hex or base64; default: text",
                choices=("text", "hex", "base64"),
                default="text",
                metavar="NAME",
            ),
            _io("unlimited"),
            output(),
        ),
    ),
    Command(
        "salvage",
        "cleanerd.tools.cli.salvage:run",
        "copy the sound part of a partition directory; exit 1 if the copy lacks anything",
        ("cleanerd salvage /data/kafka-logs/orders-3 --output /restore/orders-3",),
        arguments=(
            argument("partition_dir", metavar="DIR", help="the partition directory, which stays as it is"),
            option(
                "--output",
                "the copy: a new or an empty directory",
                metavar="DIR",
                required=True,
                dest="output_dir",
            ),
            option("-o", OUTPUT_HELP, metavar="FORMAT", choices=FORMATS, default="table", dest="output"),
        ),
    ),
    Command(
        "demo",
        "cleanerd.tools.demo.run:run",
        "write logs, clean them while they are in use, check that no key is lost",
        ("cleanerd demo", "cleanerd demo --directory /tmp/demo"),
        arguments=(
            option("--directory", "keep the logs in DIR; default: a temporary directory", metavar="DIR"),
        ),
    ),
)
