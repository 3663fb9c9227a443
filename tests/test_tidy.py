"""The house stays tidy: what is small stays small, what is public is explained, and nothing is there for tests alone."""

import re
import tomllib
from collections.abc import Callable

import pytest

from cleanerd.config.keys import BROKER_KEYS, INERT_KEYS, TOPIC_KEYS, BrokerKey, TopicKey
from cleanerd.config.reference import render_reference
from tests.homes import HOMES, SUBSTANCE_LINES
from tests.tidy import (
    ROOT,
    Sources,
    import_circle,
    long_files,
    long_functions,
    shared_type_names,
    sources,
    undocumented,
    untested,
    unused_modules,
    unused_names,
    unused_parameters,
)

FUNCTION_LINES = 60
FILE_LINES = 500
CODE, TESTS = sources("cleanerd"), sources("tests")
EVERYTHING = {**CODE, **TESTS}

BLESSED = {
    "DaemonControl": "public API of cleanerd.client: keeps the daemon away while a writer truncates (rule 2.7)",
    "delete_log": "public API of cleanerd.client: deletes a log as Kafka does (rule 2.9)",
    "LogWriter.truncate_fully_and_start_at": "public API of cleanerd.client: a follower that starts over (rule 2.7)",
    "open_log": "public API of cleanerd.insight: what a consumer may read of a log",
    "read_columns": "public API of cleanerd.insight: records as columns",
    "Columns.timestamp_types": "a column of read_columns",
    "render_logs_reference": "makes etc/reference/logs.md",
    "render_metrics_reference": "makes etc/reference/metrics.md",
    "render_meta_properties": "format/ writes whatever it reads",
    "render_partition_metadata": "format/ writes whatever it reads",
}
"""What nothing in cleanerd uses, and why it is there. An entry may outlive its reason; it harms nobody."""

ODD_WORDS = re.compile(r"(?i)\b(nobody|somebody|whoever|anew|mend(s|ed|ing)?)\b")
"""Say who: a process, a client, an operator, no thread; and `again`, `repair`, `recover`."""

SEAMS = {"argv", "bundled", "clean_once", "clock", "environment", "files", "limits", "next_offset", "observer", "poll_s",
         "restart_pause_s", "stream"}  # fmt: skip
"""Parameters through which a test hands in time, files, randomness or a part that costs too much."""

BLESSED_PARAMETERS = {
    "client/": "public API of cleanerd.client",
    "insight/records.py:": "public API of cleanerd.insight",
    "format/legacy.py:encode_": "format/ writes whatever it reads",
    "send_error(": "overrides a method of http.server",
}
"""Parameters, by a part of how they are found, that no call in cleanerd passes, and why they are there."""

FEEDING = {"log.dirs", "log.dir", "metadata.log.dir", "node.id", "broker.id", "internal.segment.bytes"}
"""Keys without a field of their own: the loader reads them."""


def test_functions_are_short() -> None:
    assert long_functions(EVERYTHING, FUNCTION_LINES) == {}


def test_files_are_short() -> None:
    assert long_files(EVERYTHING, FILE_LINES) == {}


def test_every_public_name_is_documented() -> None:
    assert undocumented(CODE) == []


def test_a_type_has_its_name_for_itself() -> None:
    assert shared_type_names(CODE) == {}


def test_nothing_is_there_for_tests_alone() -> None:
    assert [found for found in unused_names(CODE) if found.split(":")[1] not in BLESSED] == []


def test_no_module_is_there_for_tests_alone() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    blessed = {path for path, name in (found.split(":") for found in unused_names(CODE)) if name in BLESSED}
    found = unused_modules(CODE, {script.partition(":")[0] for script in scripts.values()})
    assert set(found) - blessed == set()


def test_words_are_those_of_a_native_engineer() -> None:
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in sorted(ROOT.glob("*.md"))}
    for folder, pattern in (("etc", "*"), ("systemd", "*")):
        found = (path for path in sorted((ROOT / folder).rglob(pattern)) if path.is_file())
        texts |= {str(path.relative_to(ROOT)): path.read_text(errors="ignore") for path in found}
    found_at = [
        f"{path}:{number}: {line.strip()}"
        for path, text in {**CODE, **texts}.items()
        for number, line in enumerate(text.splitlines(), 1)
        if ODD_WORDS.search(line)
    ]
    assert found_at == []


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    assert import_circle(CODE) == []


def test_no_parameter_is_there_for_tests_alone() -> None:
    found = [name for name in unused_parameters(CODE) if name.rpartition("(")[2].rstrip(")") not in SEAMS]
    assert [name for name in found if not any(part in name for part in BLESSED_PARAMETERS)] == []


def test_a_module_is_tested_in_a_file_of_its_name_or_where_the_table_says() -> None:
    nameless = {path for path in untested(CODE, TESTS) if len(CODE[path].splitlines()) > SUBSTANCE_LINES}
    assert nameless - HOMES.keys() == set(), "give it a test file of its name, or an entry in tests/homes.py"
    assert {f"tests/{file}" for file in HOMES.values()} <= TESTS.keys()
    assert HOMES.keys() <= nameless, "it has a test file of its name now, or it is small"


@pytest.mark.parametrize(
    ("find", "text", "expected"),
    [
        (lambda files: list(long_functions(files, 3)), "def f():\n    a\n    b\n    c\n", ["x.py:f"]),
        (lambda files: list(long_files(files, 3)), "a\n" * 4, ["x.py"]),
        (undocumented, '"""M."""\nclass A:\n    def f(self): ...\n    def _g(self): ...\n', ["x.py:A", "x.py:A.f"]),
        (lambda files: list(shared_type_names({**files, "y.py": "class Row: ..."})), "Row = int\nCell = int\n", ["Row"]),
        (lambda files: list(shared_type_names({**files, "y.py": "Row: object = int"})), "class Row: ...\n", ["Row"]),
        (unused_names, "def f():\n    return f()\ndef g(): ...\nX = g()\nprint(X)\n", ["x.py:f"]),
        (unused_names, "class A:\n    def f(self): ...\n    y: int = 1\nprint(A().y)\n", ["x.py:A.f"]),
        (unused_names, "import http\nclass A(http.Handler):\n    def f(self): ...\nA()\n", []),
        (unused_names, "def f(): ...\nROUTES = ['f']\nprint(ROUTES)\n", []),
        (unused_parameters, "def f(a, b=1, *, c=2): ...\nf(1, 2)\n", ["x.py:f(c)"]),
        (unused_parameters, "class A:\n    def __init__(self, a=1, b=2): ...\nA(1)\n", ["x.py:A.__init__(b)"]),
        (unused_parameters, "class A:\n    def f(self, a=1): ...\nA().f()\n", ["x.py:A.f(a)"]),
        (unused_parameters, "def f(a=1, b=2): ...\nf(*x)\nmap(f, y)\n", []),
        (lambda files: unused_modules(files, {"y"}), "import x\n", []),
        (lambda files: unused_modules(files, {"y"}), "import z\n", ["x.py"]),
        (lambda files: untested(files, {"tests/test_x.py": ""}), "", []),
        (lambda files: untested(files, {"tests/test_y.py": ""}), "", ["x.py"]),
        (import_circle, "import y\n", []),
        (import_circle, "def f():\n    from x import f\n", ["x", "x"]),
    ],
)  # fmt: skip
def test_the_finders_find(find: Callable[[Sources], list[str]], text: str, expected: list[str]) -> None:
    assert find({"x.py": text}) == expected


def test_every_key_is_read_or_said_to_have_no_effect() -> None:
    modules = [text for path, text in CODE.items() if not path.startswith("cleanerd/config/")]
    keys: list[tuple[str, BrokerKey | TopicKey]] = [*BROKER_KEYS.items(), *TOPIC_KEYS.items()]
    fields = {key.field for _, key in keys if key.field}
    read = {field for field in fields if any(re.search(rf"\.{field}\b", text) for text in modules)}
    fed = {name for key in TOPIC_KEYS.values() if key.field for name in key.synonyms}
    used = {name for name, key in keys if key.field in read or name in FEEDING or name in fed}
    assert {name for name, key in keys if key.field and key.field not in read} == set()
    assert {name for name, _ in keys} - used == INERT_KEYS


def test_the_reference_says_which_keys_have_no_effect() -> None:
    rows = dict(re.findall(r"(?m)^\| `([a-z.]+)` \|.*\| ([^|]*) \|$", render_reference()))
    assert {name for name, doc in rows.items() if doc.endswith("*No effect.*")} == INERT_KEYS & rows.keys()
    assert {
        "segment.ms",
        "flush.ms",
        "preallocate",
        "max.message.bytes",
        "log.cleaner.io.buffer.size",
    } <= INERT_KEYS & rows.keys()
