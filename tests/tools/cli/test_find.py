"""`cleanerd find`: documents, keys in every form, exit codes."""

import json
import shutil
from pathlib import Path

import pytest

from tests.harness.command_line import Run
from tests.harness.logs.logdirs import GOLDEN
from tests.tools.cli.test_digest import stats


def test_documents_and_exit_codes(log_dir: Path, tmp_path: Path, run: Run) -> None:
    """0 found, 4 not found, 1 not there; nothing is changed, nothing has to be writable."""
    before = stats(log_dir)
    for path in (log_dir, *log_dir.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    ran = run("find", f"--log-dir={log_dir}", "--topic=transactions", "--key=key-1", "-o", "json")
    assert ran.code == 0
    (first, *_) = json.loads(ran.out)["found"]
    assert first["path"] == str(log_dir / "transactions-0" / f"{0:020d}.log")
    assert (first["key"], first["offset"], first["state"], first["goes"]) == (
        "key-1",
        1,
        "superseded",
        "with the next cleaning, with cleanup.policy=compact",
    )
    ran = run("find", f"--log-dir={log_dir}", "--key=no such key")
    assert (ran.code, "not found anywhere, and everything was read: no such key\n" in ran.err) == (4, True)
    ran = run("find", f"--log-dir={log_dir}", "--key=no such key", "--key=key-1")
    assert (ran.code, "everything was read: no such key\n" in ran.err) == (0, True)
    assert run("find", f"--log-dir={log_dir}", "--topic=nowhere", "--key=key-1").code == 1
    (empty := tmp_path / "empty").mkdir()
    ran = run("find", f"--log-dir={empty}", "--key=key-1")
    assert (ran.code, str(empty) in ran.err) == (1, True)
    assert stats(log_dir) == before


@pytest.mark.parametrize(
    ("properties", "is_compact"), [(None, False), ("", False), ("log.cleanup.policy=compact\n", True)]
)
@pytest.mark.parametrize("of_broker", [False, True])
def test_no_command_that_would_leave_the_log_alone(
    properties: str | None, is_compact: bool, of_broker: bool, tmp_path: Path, run: Run
) -> None:
    """Where its topic is not known to be compacted; the default of a broker says nothing about one of its topics."""
    shutil.copytree(GOLDEN / "transactions-0", tmp_path / "logs" / "transactions-0")
    if of_broker:
        for name in ("meta.properties", "replication-offset-checkpoint"):
            shutil.copy(GOLDEN / name, tmp_path / "logs")
    words = [f"--log-dir={tmp_path / 'logs'}"]
    if properties is not None:
        (config := tmp_path / "server.properties").write_text(f"log.dirs={tmp_path / 'logs'}\n{properties}")
        words = [f"--config={config}"]
    ran = run("find", *words, "--key=key-1", "-o", "jsonl")
    first = json.loads(ran.out.splitlines()[0])
    told = is_compact and not of_broker
    assert first["goes"] == "with the next cleaning" + ", with cleanup.policy=compact" * (not told)
    said = run("find", *words, "--key=key-1").out
    assert ((first["command"] is not None), "cleanerd clean" in said) == (told, told)
    if told:
        command = f"cleanerd clean {words[0].replace('=', ' ')} --topic transactions --partition 0 --force"
        assert f"to have it go now: {command}\n" in said
        ran = run(*command.split()[1:], "--dry-run")
        assert (ran.code, "compact" in ran.out) == (0, False), "it is not left alone"


@pytest.mark.parametrize(
    ("encoding", "key"),
    [("text", "key-1"), ("hex", "6b65792d31"), ("hex", "0x6b65792d31"), ("base64", "a2V5LTE=")],
)
def test_keys_in_every_form(encoding: str, key: str, log_dir: Path, tmp_path: Path, run: Run) -> None:
    words = ("find", f"--log-dir={log_dir}", "--topic=idempotent", f"--encoding={encoding}", "-o", "jsonl")
    one = run(*words, "--key", key)
    keys = tmp_path / "keys"
    keys.write_text(f"{key}\n\n")
    assert (one.code, len(one.out.splitlines())) == (0, 2)
    assert run(*words, "--keys-file", str(keys)).out == one.out


def test_keys_that_make_no_sense(log_dir: Path, run: Run) -> None:
    assert run("find", f"--log-dir={log_dir}").code == 2
    for encoding, key in (("hex", "6"), ("base64", "-")):
        ran = run("find", f"--log-dir={log_dir}", f"--encoding={encoding}", f"--key={key}")
        assert (ran.code, ran.out) == (2, "")
        assert f"expected a key in {encoding}, found {key!r}" in ran.err
    ran = run("find", f"--log-dir={log_dir}", f"--keys-file={log_dir}")
    assert (ran.code, ran.out) == (2, "")
    assert f"--keys-file: cannot read '{log_dir}': Is a directory" in ran.err


def test_a_file_of_another_system_does_not_make_a_key_pass_for_gone(
    log_dir: Path, tmp_path: Path, run: Run
) -> None:
    """Nobody writes keys that end in CR, and exit 4 would be believed."""
    keys = tmp_path / "keys"
    for content, line in ((b"key-1\nkey-2\r\n", 2), (b"\xef\xbb\xbfkey-1\n", 1)):
        keys.write_bytes(content)
        ran = run("find", f"--log-dir={log_dir}", f"--keys-file={keys}")
        assert (ran.code, ran.out) == (2, "")
        assert f"'{keys}', line {line}: expected keys ended by line feeds alone" in ran.err


def test_what_cannot_be_read_may_hold_it(log_dir: Path, run: Run) -> None:
    log = log_dir / "plain-0" / f"{0:020d}.log"
    log.unlink()
    log.mkdir()
    ran = run("find", f"--log-dir={log_dir}", "--topic=plain", "--key=no such key")
    assert ran.code == 1
    assert str(log) in ran.err
    assert "not found in what could be read: no such key" in ran.err
