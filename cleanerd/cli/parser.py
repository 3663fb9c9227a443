"""The command line parser of both programs: its help has examples, its errors suggest corrections."""

import argparse
import difflib
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from cleanerd.cli.arguments import Argument
from cleanerd.cli.output import write

SHELLS = ("bash", "zsh", "fish")
"""Those that `cleanerd.cli.completion` knows."""

_MAX_WIDTH = 100
_OF_TOPICS = ("--topic", "--topic-set")


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` with help in this order: description, arguments, options, `examples`, `more`."""

    def __init__(
        self,
        prog: str | None = None,
        *,
        description: str = "",
        examples: Sequence[str] = (),
        more: str = "",
        **_: object,  # argparse passes more to the parsers of verbs
    ) -> None:
        shown = "".join(f"  {example}\n" for example in examples)
        super().__init__(
            prog=prog,
            description=description,
            epilog=(f"examples:\n{shown}" if examples else "") + more,
            formatter_class=_Formatter,
            allow_abbrev=False,
        )
        self._positionals.title = "arguments"

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As in argparse, but unknown words are reported by this parser, with suggestions from its own options."""
        found, extra = super().parse_known_args(
            self._joined(sys.argv[1:] if args is None else args), namespace
        )
        if extra:
            names = [name for name in self._option_string_actions if name.startswith("--")]
            what = "option" if extra[0].startswith("-") else "argument"
            self.error(f"unknown {what} {extra[0]}{did_you_mean(extra[0].partition('=')[0], names)}")
        return found, extra

    def _joined(self, words: Sequence[str]) -> list[str]:
        """Join `--topic NAME` to `--topic=NAME`, so that argparse accepts names of topics that begin with a dash."""
        joined: list[str] = []
        for word in words:
            last = joined[-1] if joined else ""
            is_taken = last in _OF_TOPICS and last in self._option_string_actions and "--" not in joined
            if is_taken and word.startswith("-") and word not in self._option_string_actions:
                joined[-1] = f"{last}={word}"
            else:
                joined.append(word)
        return joined

    def _parse_optional(self, arg_string: str) -> Any:
        """None for a word that is no option: `-sales-eu-0` is a log, where a verb has arguments."""
        is_name = self._has_arguments() and re.match(r"-[^-]", arg_string) and not self._is_option(arg_string)
        return None if is_name else super()._parse_optional(arg_string)

    def _has_arguments(self) -> bool:
        return any(
            not action.option_strings and not isinstance(action, argparse._SubParsersAction)
            for action in self._actions
        )

    def _is_option(self, word: str) -> bool:
        """Whether a word with one dash is an option of ours, has its value in it (`-ojson`), or lacks a dash (`-wait`)."""
        name = word.partition("=")[0]
        if name in self._option_string_actions or f"-{name}" in self._option_string_actions:
            return True
        action = self._option_string_actions.get(word[:2])
        return action is not None and word[2:] in (action.choices or ())

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = list(map(str, action.choices))
        is_verb = isinstance(action, argparse._SubParsersAction)
        kind = f"unknown {str(action.metavar).lower()}" if is_verb else "unknown value"
        hint = did_you_mean(str(value), choices) or f"; there are {', '.join(choices)}"
        raise argparse.ArgumentError(None if is_verb else action, f"{kind} {value}{hint}")

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is sys.stdout:
            write(message)  # quiet when the reader has gone
        else:
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        """Print usage, the error and a pointer to the help; exit with 2."""
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog.split()[0]}: {message}\n  `{self.prog} --help` explains it\n")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """A help formatter with a maximal width that is comfortable to read."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=min(shutil.get_terminal_size().columns - 2, _MAX_WIDTH))

    def add_argument(self, action: argparse.Action) -> None:
        """Leave room for the indentation of verbs, too, which argparse forgets."""
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            self._action_max_length += self._indent_increment


class Command(NamedTuple):
    """A command of `cleanerd`, or a verb of one. `run`: the function that carries it out, `module:name`.

    `configuration`: arguments that help shows under that heading; of `exclusive` ones no two go together. `defaults`: values
    of attributes for which it has no argument. `verbs`: one of which follows it.
    """

    name: str
    run: str
    text: str
    examples: tuple[str, ...] = ()
    configuration: tuple[Argument, ...] = ()
    arguments: tuple[Argument, ...] = ()
    exclusive: tuple[Argument, ...] = ()
    defaults: Mapping[str, object] = {}
    verbs: "tuple[Command, ...]" = ()


def add_commands(parser: Parser, commands: Iterable[Command], metavar: str = "COMMAND") -> None:
    """Have a parser take one of these."""
    below = parser.add_subparsers(dest=metavar.lower(), metavar=metavar, required=True)
    for command in commands:
        text = command.text
        made = below.add_parser(
            command.name, help=text, description=_sentence(text), examples=command.examples
        )
        made.set_defaults(run=command.run, **command.defaults)
        if command.configuration:
            add_arguments(made.add_argument_group("configuration"), command.configuration)
        add_arguments(made, command.arguments)
        if command.exclusive:
            add_arguments(made.add_mutually_exclusive_group(), command.exclusive)
        if command.verbs:
            add_commands(made, command.verbs, "VERB")


def add_arguments(parser: argparse._ActionsContainer, arguments: Iterable[Argument]) -> None:
    """Have a parser take all of these."""
    for argument in arguments:
        parser.add_argument(*argument.names, **argument.settings)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """The question to add to an error, empty when nothing is like `text`."""
    near = difflib.get_close_matches(text, list(known), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(near)}?" if near else ""
