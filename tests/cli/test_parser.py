"""The command lines of both programs: what their help teaches, what an error suggests, names that begin with a dash."""

import argparse
import re
import shlex

import pytest

from cleanerd import __version__
from cleanerd.cli import main as cleanerd
from cleanerd.cli.ctl import main as cleanerctl
from tests.harness.command_line import python, verbs

PROGRAMS = {"cleanerd": cleanerd, "cleanerctl": cleanerctl}
COMMANDS = [
    command
    for program in PROGRAMS.values()
    for command in (program.make_parser(), *(found for _, found in verbs(program.make_parser())))
]


def parsed(line: str) -> argparse.Namespace:
    """What the program at its beginning makes of a command line."""
    program, *words = shlex.split(line)
    return PROGRAMS[program].make_parser().parse_args(words)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.prog)
def test_help_of_every_command_teaches(
    command: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sentence, every argument and option explained, examples that are no usage errors; 100 columns at most."""
    monkeypatch.setenv("COLUMNS", "200")
    program, *words = command.prog.split()
    assert PROGRAMS[program].main([*words, "--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert f"usage: {command.prog} " in out
    assert max(map(len, out.splitlines())) <= 100
    assert re.search(r"^[A-Z].+\.$", command.description or "")
    assert all(action.help or isinstance(action, argparse._SubParsersAction) for action in command._actions)
    examples = re.findall(rf"^  ({command.prog}\b[^`]*?)(?: [>#|] .*)?$", out, re.MULTILINE)
    assert (1 <= len(examples) <= 5) != (command.prog == "cleanerd config")
    for example in examples:
        parsed(example)


@pytest.mark.parametrize("name", PROGRAMS)
def test_version(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert PROGRAMS[name].main(["--version"]) == 0
    assert capsys.readouterr().out == f"{name} {__version__}\n"


@pytest.mark.parametrize(
    "call", ["cleanerd.cli.main --help", "cleanerd.cli.ctl.main --socket /nowhere status"]
)
def test_it_starts_quickly_because_it_imports_little(call: str) -> None:
    """None of the heavy packages, and no HTTP client either; the time itself depends on the machine."""
    module, *words = call.split()
    code = (
        f"import sys; from {module} import main; main({words});"
        "heavy = {'pydantic', 'numpy', 'numba', 'pandas', 'pyspark', 'rich', 'structlog', 'javaproperties', 'asyncio',"
        " 'http.client', 'ssl', 'sqlite3'};"
        "print(sorted(heavy & sys.modules.keys()), len(sys.modules) < 150, file=sys.stderr)"
    )
    assert python("-c", code).stderr.endswith("[] True\n")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("cleanerd", ""),
        ("cleanerd clen", "unknown command clen; did you mean clean?"),
        ("cleanerd config", ""),
        ("cleanerd config shw", "unknown verb shw; did you mean show?"),
        ("cleanerd config show -o xml", "unknown value xml; there are table, wide, json, jsonl, yaml"),
        ("cleanerd clean --frce", "unknown option --frce; did you mean --force?"),
        ("cleanerd clean --forc", "unknown option --forc; did you mean --force or --topic?"),
        ("cleanerd clean extra", "unknown argument extra"),
        ("cleanerd clean --partition -1", ""),
        ("cleanerd clean --partition x", "argument --partition: expected a number of 0 or more"),
        ("cleanerd clean --now-ms yesterday", "argument --now-ms: expected a number of 0 or more"),
        (f"cleanerd clean --now-ms {2**63}", "argument --now-ms: expected less than 2^63"),
        ("cleanerd clean --set novalue", "argument --set: expected KEY=VALUE, found 'novalue'"),
        ("cleanerd clean --topic-set topic.key=1", "argument --topic-set: expected TOPIC:KEY=VALUE"),
        ("cleanerd clean --topic-set topic:key", "argument --topic-set: expected KEY=VALUE, found 'key'"),
        ("cleanerd clean --topic --force", "argument --topic: expected one argument"),
        ("cleanerd clean --topic --dry-run", "argument --topic: expected one argument"),
        ("cleanerctl", ""),
        ("cleanerctl cleen", "unknown verb cleen; did you mean clean?"),
        ("cleanerctl xyz", "unknown verb xyz; there are status, logs, "),
        ("cleanerctl log", ""),
        ("cleanerctl clean orders payments", "unknown argument payments"),
        ("cleanerctl clean orders --forse", "unknown option --forse; did you mean --force?"),
        ("cleanerctl clean --forse orders", "unknown option --forse; did you mean --force?"),
        ("cleanerctl clean -force orders", "unknown option -force; did you mean --force?"),
        ("cleanerctl delete-records -yes orders-0 100", "unknown option -yes; did you mean --yes?"),
        ("cleanerctl clean orders --watch 1", ""),
        ("cleanerctl logs --state uncleanabel", "unknown value uncleanabel; did you mean uncleanable or clean?"),
        ("cleanerctl throttle --io fast", ""),
        ("cleanerctl throttle --io 0", "expected more than 0, or unlimited; what stops a daemon is `cleanerctl pause '*'`"),
        ("cleanerctl await orders-3 end", ""),
        ("cleanerctl await orders-3 -1", "expected a number of 0 or more"),
        ("cleanerctl status --watch soon", ""),
        ("cleanerctl pause orders --ttl soon", "is not a length of time, like 90s, 5m, 2h or 7d"),
    ],
)  # fmt: skip
def test_a_usage_error_says_what_was_probably_meant(
    line: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2, nothing on stdout; the usage of the command that is known, and where to read more."""
    program, *words = shlex.split(line)
    assert PROGRAMS[program].main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    known = max((one.prog for one in COMMANDS if f"{line} ".startswith(f"{one.prog} ")), key=len)
    assert err.startswith(f"usage: {known} ")
    assert err.endswith(f"\n  `{known} --help` explains it\n")


# -- names of topics may begin with a dash ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["-sales-eu", "--sales-eu", "-offsets", "-h-1", "-", "-1"])
@pytest.mark.parametrize("command", ["clean", "verify", "inspect", "config show"])
def test_a_topic_follows_its_option(command: str, name: str) -> None:
    found = parsed(f"cleanerd {command} --topic {name} -o json --topic other")
    assert (found.topic, found.output) == ([name, "other"], "json")


def test_the_key_of_a_topic() -> None:
    found = parsed("cleanerd clean --topic-set -sales-eu:cleanup.policy=compact --force")
    assert (found.topic_set, found.force) == ([("-sales-eu", "cleanup.policy", "compact")], True)


TAKES_LOGS = "log logs explain clean commit abort retry pause mute retention history forecast"


@pytest.mark.parametrize("name", ["-sales-eu-0", "-offsets-0", "-orders*"])
@pytest.mark.parametrize("verb", TAKES_LOGS.split())
def test_a_log_is_an_argument_of_a_verb(verb: str, name: str) -> None:
    for words in (f"{name} -o json", f"-ojson {name}", f"-o=json -- {name}"):
        found = parsed(f"cleanerctl {verb} {words}")
        assert name in vars(found).values()
        assert found.output == "json"


def test_offsets_stay_in_their_place() -> None:
    found = parsed("cleanerctl delete-records -sales-eu-0 100 --yes")
    assert (found.topic_partition, found.offset, found.yes) == ("-sales-eu-0", 100, True)
