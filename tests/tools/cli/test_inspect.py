"""`cleanerd inspect`: documents, tables, files and exit codes."""

import csv
import io
import json
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cleanerd.tools.cli.inspect import page
from cleanerd.tools.insight.inspect import inspect_partition
from cleanerd.units import key_text
from tests.cli.conftest import Run
from tests.tools.insight import damage
from tests.tools.insight.logdirs import GOLDEN

NOW = ("--now-ms", "1795237300000")


def test_documents_say_what_the_library_says(run: Run) -> None:
    ran = run("inspect", "--log-dir", str(GOLDEN), "--topic", "transactions", *NOW, "-o", "json")
    (log,) = json.loads(ran.out)["logs"]
    found = inspect_partition(str(GOLDEN / "transactions-0"), now_ms=int(NOW[1]))
    assert ran.code == 0
    assert (log["topic"], log["partition"], log["log_dir"]) == ("transactions", 0, str(GOLDEN))
    assert log["superseded_bytes"] == {"value": found.superseded_bytes.value, "error": 0}
    assert log["hot_keys"][0] == found.hot_keys[0]._asdict() | {"key": found.hot_keys[0].key.decode()}
    assert log["days"] == [day._asdict() for day in found.days]


def test_every_log_a_row(run: Run) -> None:
    """As CSV, as JSON lines and as a Parquet file, with the same numbers; the largest first."""
    rows = list(csv.DictReader(io.StringIO(run("inspect", f"--log-dir={GOLDEN}", *NOW, "-o", "csv").out)))
    lines = run("inspect", f"--log-dir={GOLDEN}", *NOW, "-o", "jsonl").out.splitlines()
    documents = [json.loads(line) for line in lines]
    assert [row["topic"] for row in rows] == [one["topic"] for one in documents]
    assert [int(row["bytes"]) for row in rows] == [one["bytes"] for one in documents]
    assert [int(row["keys"]) for row in rows] == [one["keys"]["value"] for one in documents]
    assert {"transactions", "zstd", "cleaned"} <= {row["topic"] for row in rows}


def test_parquet(run: Run, tmp_path: Path) -> None:
    """Lists in lists, and an error that names the extra where pyarrow is missing."""
    file = tmp_path / "logs.parquet"
    ran = run("inspect", f"--log-dir={GOLDEN}", *NOW, "--parquet", str(file), "-o", "json")
    assert pq.read_table(file).to_pylist() == json.loads(ran.out)["logs"]
    assert {path.suffix for path in tmp_path.iterdir()} == {"", file.suffix}


def test_parquet_without_the_extra(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "cleanerd.tools.spark.parquet", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    ran = run("inspect", f"--log-dir={GOLDEN}", "--topic=plain", "--parquet", str(tmp_path / "logs.parquet"))
    assert (ran.code, ran.out) == (1, "")
    assert "pip install 'cleanerd[spark]'" in ran.err


def test_logs_that_are_not_there(run: Run) -> None:
    ran = run("inspect", f"--log-dir={GOLDEN}", "--topic=plian", "-o", "json")
    assert (ran.code, json.loads(ran.out)["logs"]) == (1, [])
    assert "no log of topic plian was found; did you mean plain?" in ran.err


def test_tables_that_no_memory_holds(run: Run) -> None:
    ran = run("inspect", f"--log-dir={GOLDEN}", "--topic=plain", f"--keys-max={10**15}")
    assert ran.code == 1
    assert f"plain-0: there is no room for {10**15} keys" in ran.err


def test_one_log_is_explained(run: Run) -> None:
    """Why, which keys, since when, what would help; of several logs only with --details."""
    ran = run("inspect", f"--log-dir={GOLDEN}", "--topic=idempotent", *NOW)
    assert "idempotent-0 is 2.0 kB: 63% is superseded" in ran.out
    assert "keys key-..." in ran.out
    assert "Superseded since 2023-11-14" in ran.out
    assert "What would help: a cleaning (at most 1.2 kB)" in ran.out
    assert "HOT KEY" in ran.out
    assert "HOT KEY" not in run("inspect", f"--log-dir={GOLDEN}", *NOW).out
    assert run("inspect", f"--log-dir={GOLDEN}", *NOW, "--details").out.count("HOT KEY") > 5


def test_a_damaged_log_does_not_hide_the_others(run: Run, log_dir: Path) -> None:
    path, position = damage.bad_crc(log_dir)
    ran = run("inspect", f"--log-dir={log_dir}", *NOW, "-o", "json")
    document = json.loads(ran.out)
    assert ran.code == 1
    (failed,) = document["failed"]
    assert (failed["topic"], failed["partition"]) == ("plain", 0)
    assert f"{path}: at byte {position}" in failed["reason"]
    assert "zstd" in {log["topic"] for log in document["logs"]}


@pytest.mark.parametrize(
    ("key", "length", "text"),
    [
        (b"order-1", 7, "order-1"),
        (b"", 0, '""'),
        (b"\x00\x01", 2, "0x0001"),
        ("schlüssel".encode()[:5], 10, "schl..."),  # cut inside of a character
        (b"\xff\xfe", 99, "0xfffe..."),
    ],
)
def test_keys_are_text_or_hexadecimal(key: bytes, length: int, text: str) -> None:
    assert key_text(key, length) == text


def test_html_is_one_file_that_asks_for_nothing(run: Run, tmp_path: Path) -> None:
    """Well formed, every log in it, no script and no address; keys from outside cannot become markup."""
    file = tmp_path / "logs.html"
    assert run("inspect", f"--log-dir={GOLDEN}", *NOW, "--html", str(file)).code == 0
    text = file.read_text()
    parser = Tags()
    parser.feed(text)
    assert parser.open == []
    assert {"svg", "rect", "table", "title"} <= parser.seen
    assert not {"script", "link", "img", "iframe"} & parser.seen
    assert "http" not in text.replace("http-equiv", "")
    assert "prefers-color-scheme: dark" in text
    for topic in ("idempotent", "zstd", "cleaned"):
        assert f"<h2>{topic}-0</h2>" in text
    evil = inspect_partition(str(GOLDEN / "plain-0"), now_ms=0)
    hot = evil.hot_keys[0]._replace(key=b"<script>", key_length=8)
    assert "&lt;script&gt;" in page([replace(evil, hot_keys=(hot,))])
    assert "</html>" in page([])
    assert "<script>" not in page([replace(evil, hot_keys=(hot,))])


class Tags(HTMLParser):
    """Which tags there are, and which are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_codec_of_the_topic_is_that_of_its_configuration(run: Run, tmp_path: Path) -> None:
    """Where the configuration cannot be read, that is said and the rest is shown."""
    config = tmp_path / "server.properties"
    options = ("inspect", f"--config={config}", f"--log-dir={GOLDEN}", "--topic=plain", *NOW)
    config.write_text("compression.type=zstd\n")
    (log,) = json.loads(run(*options, "-o", "json").out)["logs"]
    assert [one["codec"] for one in log["alternatives"] if one["is_of_topic"]] == ["zstd"]
    assert "zstd (of the topic)" in run(*options).out
    config.write_text("compression.type=zip\n")
    ran = run(*options)
    assert "the configuration of topics is not known: " in ran.err
    assert ran.code == 0
    assert "(of the topic)" not in ran.out
