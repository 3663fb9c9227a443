"""What `cleanerctl --help` and `cleanerctl VERB --help` teach."""

import re
import shlex

import pytest

from cleanerd.cli.ctl.parser import make_parser
from tests.cli.conftest import verbs
from tests.ctl import ctl

VERBS = dict(verbs(make_parser()))


@pytest.mark.parametrize("name", VERBS)
def test_help_of_every_verb_teaches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence, every argument and option explained, examples that the parser takes; 100 columns at most."""
    monkeypatch.setenv("COLUMNS", "200")
    verb = VERBS[name]
    text = verb.format_help()
    assert max(map(len, text.splitlines())) <= 100
    assert re.search(r"^[A-Z][^.]+\.$", verb.description or "")
    assert all(action.help for action in verb._actions)
    examples = text.partition("examples:\n")[2].splitlines()
    assert 1 <= len(examples) <= 3
    for example in examples:
        words = shlex.split(re.split(" [>#|] ", example)[0])
        assert make_parser().parse_args(words[1:]).verb == name


def test_help_of_the_program_lists_verbs_examples_and_exit_codes() -> None:
    text = ctl("--help").stdout
    for name in VERBS:
        assert f"\n    {name} " in text
    for code in (0, 1, 2, 3, 4, 75, 77, 130):
        assert re.search(rf"^  {code} ", text, re.MULTILINE)
