"""What lies in systemd/ and etc/man: read by systemd's own tools, and true to the command line."""

import argparse
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cleanerd.cli import main
from cleanerd.cli.ctl import parser as ctl_parser
from cleanerd.config.keys import BROKER_KEYS
from cleanerd.env.cache import cache_directory
from tests.harness.command_line import verbs
from tests.harness.programs import ROOT, need, run

UNITS = ROOT / "systemd"
MAN = ROOT / "etc" / "man"
SCORE_MAX = 12  # tenths; a bare unit with User= has 92
PROGRAMS: dict[str, Callable[[], argparse.ArgumentParser]] = {
    "/opt/cleanerd/bin/cleanerd": main.make_parser,
    "/opt/cleanerd/bin/cleanerctl": ctl_parser.make_parser,
}
VERIFIED_WITH = (
    "/opt/cleanerd/bin/cleanerd",
    "/opt/cleanerd/bin/cleanerctl",
    "/usr/bin/timeout",
    "/bin/sh",
    "/bin/broker",
)


def settings(path: Path) -> Iterator[tuple[str, str]]:
    for line in path.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            yield name, value


def values(path: Path, name: str) -> list[str]:
    return [value for found, value in settings(path) if found == name]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A root with everything where it belongs, and stand-ins for the programs."""
    etc = tmp_path / "etc" / "systemd" / "system"
    etc.mkdir(parents=True)
    for unit in ("cleanerd.service", "cleanerd.socket"):
        shutil.copy(UNITS / unit, etc)
    shutil.copytree(UNITS / "kafka.service.d", etc / "kafka.service.d")
    (etc / "kafka.service").write_text("[Service]\nUser=kafka\nExecStart=/bin/broker\n")
    for program in VERIFIED_WITH:
        path = tmp_path / program[1:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    for target in ("sysinit", "basic", "multi-user", "shutdown", "sockets", "local-fs", "network"):
        (etc / f"{target}.target").write_text("[Unit]\n")
    return tmp_path


def verify(root: Path, *units: str) -> str:
    program = need("systemd-analyze", "systemd")
    return run(program, "verify", "--man=no", f"--root={root}", *units).stderr


def test_units_and_the_drop_in_of_the_broker_verify(installed: Path) -> None:
    for unit in ("cleanerd.service", "cleanerd.socket", "kafka.service"):
        assert verify(installed, unit) == ""


def test_host_example_verifies_with_every_line_in_force(installed: Path) -> None:
    drop_in = installed / "etc" / "systemd" / "system" / "cleanerd.service.d"
    drop_in.mkdir()
    example = (UNITS / "drop-ins" / "host.conf").read_text()
    (drop_in / "host.conf").write_text(re.sub(r"^#(?=[A-Z]\w+=)", "", example, flags=re.MULTILINE))
    assert verify(installed, "cleanerd.service") == ""


def test_exposure_stays_low() -> None:
    program = need("systemd-analyze", "systemd")
    command = ("security", "--offline=true", "--no-pager", f"--threshold={SCORE_MAX}")
    done = run(program, *command, UNITS / "cleanerd.service")
    assert "Overall exposure level for cleanerd.service: 1.1 OK" in done.stdout


def test_sandbox_leaves_numba_the_jvm_the_metrics_of_the_process_and_the_way_into_a_broker_alone() -> None:
    given = dict(settings(UNITS / "cleanerd.service"))
    assert given.keys().isdisjoint({"MemoryDenyWriteExecute", "PrivateUsers", "ProcSubset"})
    assert "AF_INET" in given["RestrictAddressFamilies"], "Spark in local mode"


def test_directories_are_those_that_the_daemon_uses_by_default() -> None:
    unit = UNITS / "cleanerd.service"
    assert BROKER_KEYS["cleanerd.state.dir"].default == f"/var/lib/{values(unit, 'StateDirectory')[0]}"
    socket = str(BROKER_KEYS["cleanerd.control.socket"].default)
    assert socket == ctl_parser.DEFAULT_SOCKET
    assert str(Path(socket).parent) == f"/run/{values(unit, 'RuntimeDirectory')[0]}"
    assert values(UNITS / "cleanerd.socket", "ListenStream") == [socket]
    assert values(unit, "RuntimeDirectoryPreserve") == ["yes"], "the socket unit's file lies in it"
    cache = f"/var/cache/{values(unit, 'CacheDirectory')[0]}"
    assert cache_directory({"CACHE_DIRECTORY": cache}) == cache
    assert f"d {cache}/spark " in (UNITS / "cleanerd.tmpfiles.conf").read_text()


def test_time_limits_agree() -> None:
    unit = UNITS / "cleanerd.service"
    shutdown_s = int(str(BROKER_KEYS["cleanerd.shutdown.timeout.ms"].default)) / 1000
    assert int(values(unit, "TimeoutStopSec")[0]) > shutdown_s + 15, (
        "else it is killed while it stops in order"
    )
    assert values(unit, "RestartPreventExitStatus") == ["78"]
    (command,) = values(UNITS / "kafka.service.d" / "cleanerd.conf", "ExecStartPre")
    _, kill_after, limit_s, *_ = shlex.split(command)
    assert int(limit_s) + int(kill_after.partition("=")[2]) < 90, (
        "DefaultTimeoutStartSec ends the broker's start"
    )


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every command of ours in a unit: program and arguments."""
    files = [*UNITS.glob("*.service"), *UNITS.glob("*/*.conf")]
    for path in files:
        for name, value in settings(path):
            if name.startswith("Exec") and value:
                words = shlex.split(value.lstrip("-+!@:"))
                found = [index for index, word in enumerate(words) if word in PROGRAMS]
                yield from ((words[index], words[index + 1 :]) for index in found)


def test_commands_of_the_units_are_understood() -> None:
    found = list(commands())
    assert [(program, arguments[0]) for program, arguments in sorted(found)] == [
        ("/opt/cleanerd/bin/cleanerctl", "commit"),
        ("/opt/cleanerd/bin/cleanerd", "run"),
    ]
    for program, arguments in found:
        PROGRAMS[program]().parse_args(arguments)


def test_a_broker_starts_whatever_becomes_of_the_commit() -> None:
    """Nor does its start start a daemon that nobody has enabled (Wants=)."""
    drop_in = UNITS / "kafka.service.d" / "cleanerd.conf"
    assert [value[0] for value in values(drop_in, "ExecStartPre")] == ["-"]
    names = {name for name, _ in settings(drop_in)}
    assert names == {"After", "ExecStartPre"}, "Requires= or BindsTo= would tie the broker to the daemon"


def test_sysusers_and_tmpfiles_do_what_they_say(tmp_path: Path) -> None:
    sysusers, tmpfiles = need("systemd-sysusers", "systemd"), need("systemd-tmpfiles", "systemd")
    (tmp_path / "etc").mkdir()
    run(sysusers, f"--root={tmp_path}", "--dry-run", UNITS / "cleanerd.sysusers.conf")
    run(sysusers, f"--root={tmp_path}", UNITS / "cleanerd.sysusers.conf")
    assert re.search(r"^kafka:x:\d+:\d+:", (tmp_path / "etc" / "passwd").read_text(), re.MULTILINE)
    run(tmpfiles, "--create", f"--root={tmp_path}", UNITS / "cleanerd.tmpfiles.conf")
    for directory in ("run/cleanerd", "var/cache/cleanerd/spark"):
        assert (tmp_path / directory).stat().st_mode & 0o777 == 0o750


# -- manual pages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["cleanerd.8", "cleanerctl.1"])
def test_manual_pages_are_well_formed(page: str) -> None:
    done = run(need("groff", "groff"), "-man", "-ww", "-Tutf8", "-z", MAN / page)
    assert done.stderr == ""


@pytest.mark.parametrize("page", ["cleanerd.8", "cleanerctl.1"])
def test_manual_pages_name_every_verb_and_exactly_the_options_that_exist(page: str) -> None:
    text = (MAN / page).read_text().replace("\\-", "-").replace("\\~", " ").replace("\\fI", "")
    parser = PROGRAMS[f"/opt/cleanerd/bin/{page.partition('.')[0]}"]()
    for verb, _ in verbs(parser):
        assert re.search(rf"^(?:\.B.*\b|\\fB){verb}\b", text, re.MULTILINE), verb
    programs = [make() for make in PROGRAMS.values()]
    parsers = [*programs, *(found for program in programs for _, found in verbs(program))]
    options = {option for found in parsers for action in found._actions for option in action.option_strings}
    without_examples = re.sub(r"^\.EX$.*?^\.EE$", "", text, flags=re.DOTALL | re.MULTILINE)
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", without_examples.replace("\\fB", "")))
    assert named <= options
    own = {
        option for _, found in verbs(parser) for action in found._actions for option in action.option_strings
    }
    assert {option for option in own if option.startswith("--")} - named == {"--help"}
    for example in re.findall(rf"^{page.partition('.')[0]} ([a-z].+)$", text, re.MULTILINE):
        parser.parse_args(shlex.split(example))
