"""What `cleanerctl --help` and `cleanerctl VERB --help` teach."""

import argparse
import re
import shlex
from collections.abc import Iterator

import pytest

from cleanerd.cli.ctl.parser import make_parser
from tests.ctl import ctl


def _verbs(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from (verb for name, verb in action.choices.items() if not name.startswith("_"))


@pytest.mark.parametrize("verb", list(_verbs(make_parser())), ids=lambda verb: verb.prog.split()[1])
def test_help_of_every_verb_teaches(verb: argparse.ArgumentParser, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence, every argument and option explained, examples that the parser takes; 100 columns at most."""
    monkeypatch.setenv("COLUMNS", "200")
    text = verb.format_help()
    assert max(map(len, text.splitlines())) <= 100
    assert re.search(r"^[A-Z][^.]+\.$", verb.description or "")
    assert all(action.help for action in verb._actions)
    examples = text.partition("examples:\n")[2].splitlines()
    assert 1 <= len(examples) <= 3
    for example in examples:
        words = shlex.split(re.split(" [>#|] ", example)[0])
        assert make_parser().parse_args(words[1:]).verb == verb.prog.split()[1]


def test_help_of_the_program_lists_verbs_examples_and_exit_codes() -> None:
    """All of them."""
    text = ctl("--help").stdout
    for verb in _verbs(make_parser()):
        assert f"\n    {verb.prog.split()[1]} " in text
    for code in (0, 1, 2, 3, 4, 75, 77, 130):
        assert re.search(rf"^  {code} ", text, re.MULTILINE)
