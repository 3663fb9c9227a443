"""Documents from other machines may be of another release, cut, or forged: each is taken as a whole, or named with the key
that is wrong.
"""

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from cleanerd import API_VERSION
from cleanerd.cli.main import main
from cleanerd.errors import BadUsage
from cleanerd.tools.insight.digest_report import compare
from cleanerd.tools.insight.digest_report import read_reports as read_digests
from cleanerd.tools.insight.doctor import report as doctor_report
from cleanerd.tools.insight.doctor.facts import Limits
from cleanerd.tools.insight.doctor.merge import merged, read_reports
from cleanerd.tools.insight.doctor.page import page
from tests.harness.ctl import captured
from tests.tools.insight.test_digest import DENSE, damaged
from tests.tools.insight.test_doctor import NOW_MS, dead

WRONG = (None, True, -1, 1 << 70, 1.5, 1e300, "", "x", "../x", "\udc80", [], [None], {}, {"x": 1})


def asked(root: Path, command: str, *words: str) -> dict[str, Any]:
    settings = ("--topic-set=t:cleanup.policy=compact", f"--now-ms={NOW_MS}") if command == "doctor" else ()
    ran = captured(main, [command, f"--log-dir={root}", *settings, *words, "-o", "json"])
    return dict(json.loads(ran.stdout))


@pytest.fixture
def of_doctor(tmp_path: Path) -> dict[str, Any]:
    (root := tmp_path / "logs").mkdir()
    dead(root)
    return asked(root, "doctor", "--price=1")


@pytest.fixture
def of_digest(tmp_path: Path) -> dict[str, Any]:
    directory = damaged(tmp_path / "digested", DENSE)
    (directory.parent / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\n")
    (directory.parent / "replication-offset-checkpoint").write_text("0\n1\nt 0 16\n")
    return asked(directory.parent, "digest", "--keys") | {"failed": [{"directory": "x-0", "reason": "y"}]}


def damages(found: Any) -> Iterator[tuple[str, Any]]:
    """Each place of a document, and the document without it, or with something else there."""

    def places(at: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
        items = at.items() if isinstance(at, dict) else enumerate(at[:1]) if isinstance(at, list) else ()
        for key, value in items:
            yield (*path, key)
            yield from places(value, (*path, key))

    for *path, last in places(found, ()):
        for what in ("delete", *WRONG):
            changed = deepcopy(found)
            at = changed
            for key in path:
                at = at[key]
            if what == "delete":
                del at[last]
            else:
                at[last] = what
            yield f"{path} {last}: {what!r}", changed


def test_a_report_of_doctor(of_doctor: dict[str, Any], tmp_path: Path) -> None:
    """What is taken makes a table and a page; what is not is a finding, beside those of other reports."""
    path = tmp_path / "report.json"
    assert of_doctor.keys() == {"apiVersion", *doctor_report.Document.model_fields}
    taken = 0
    for what, report in damages(of_doctor):
        path.write_text(json.dumps(report))
        reports, sides, failed = read_reports([str(path)])
        assert sides == [], what
        fleet = merged(reports, Limits(), sides, failed)
        assert page(fleet, NOW_MS), what
        if failed:
            (one,) = fleet["findings"]
            assert (one["code"], one["path"]) == ("unreadable", str(path)), what
            assert str(path) in one["evidence"], what
        taken += not failed
    assert taken > 20, "a cost that is not known, for one"


def test_a_report_of_digest(of_digest: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    taken = 0
    for what, report in damages(of_digest):
        path.write_text(json.dumps(report))
        refused = ""
        try:
            sides, _ = read_digests([str(path)])
        except BadUsage as error:
            refused = str(error)
        else:
            taken += 1
            assert [one.fields for one in compare([*sides, *sides])] or "logs" in what, what
        assert not refused or str(path) in refused, what
    assert taken > 20


def test_the_key_that_is_wrong_is_named(of_doctor: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    what = f"{path}: expected what `cleanerd doctor -o json` writes"
    log = of_doctor["logs"][0]

    def why(content: object) -> str:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        _, _, failed = read_reports([str(path)])
        return failed.get(str(path), "")

    def with_log(**changed: object) -> str:
        return why(of_doctor | {"logs": [log, log | changed]})

    assert why(of_doctor) == ""
    assert why("").startswith(f"{what}, found: Expecting value")
    assert why("[" * 100_000).startswith(f"{what}, found: ")
    assert why("[]") == f"{what} with apiVersion {API_VERSION}, found None: use the same cleanerd for both"
    assert "found 'cleanerd/v2': use the same" in why(of_doctor | {"apiVersion": "cleanerd/v2"})
    assert why(of_doctor | {"at_ms": float("inf")}) == f"{what}, found: the number Infinity"
    del (lacks := dict(log))["log_end"]
    assert why(of_doctor | {"logs": [lacks]}) == f"{what}, found no logs[0].log_end"
    assert with_log(size_bytes="9") == f"{path}: logs[1].size_bytes: expected a valid integer, found '9'"
    assert "logs[1]: expected cleanable_bytes beside due_since_ms, found" in with_log(
        due_since_ms=1, cleanable_bytes=None
    )
    assert "logs[1]: expected all of superseded_bytes, after_roll_bytes" in with_log(error_bytes=None, keys=1)
    assert with_log(of_a_later_release=1) == ""
    path.unlink()
    nowhere = read_reports([str(path)])[2][str(path)]
    assert nowhere == f"{path}: expected a readable file, found: No such file or directory"


def test_the_others_are_merged(of_doctor: dict[str, Any], tmp_path: Path) -> None:
    """A broker that did not answer has an empty file: the rest of the fleet is told, and so is that."""
    (good := tmp_path / "good.json").write_text(json.dumps(of_doctor))
    (bad := tmp_path / "bad.json").touch()
    ran = captured(main, ["doctor", "--merge", str(good), str(bad), "-o", "json"])
    found = json.loads(ran.stdout)["findings"]
    assert [(one["code"], one["path"]) for one in found[-1:]] == [("unreadable", str(bad))]
    assert (ran.returncode, len(found), str(bad) in ran.stderr) == (3, 2, True)
    ran = captured(main, ["doctor", "--merge", str(bad)])
    assert (ran.returncode, ran.stdout, str(bad) in ran.stderr) == (2, "", True)
