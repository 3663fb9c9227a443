"""Shell completion as a static script, made from the parser of a program.

What may stand after an option or in the place of an argument follows from its choices, else from its metavar: FILE and PATH,
DIR, KEY=VALUE (keys of the broker), and LOG, PATTERN, JOB, HOLD, which the script asks the daemon for (`cleanerctl _names`).
zsh runs the script for bash through its bashcompinit.
"""

from argparse import Action, ArgumentParser, _SubParsersAction
from collections.abc import Iterator
from typing import NamedTuple

_FILES, _DIRECTORIES, _NAMES = ("FILE", "PATH"), ("DIR",), ("LOG", "PATTERN", "JOB", "HOLD")
_BASH = r"""# %(shell)s completion for %(prog)s, made by `%(prog)s completion %(shell)s`
%(prologue)s_%(prog)s() {
    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" verb="" last="" socket="" word words=""
    COMPREPLY=()
    if [ "$cur" = "=" ]; then cur=""
    elif [ "$prev" = "=" ]; then prev="${COMP_WORDS[COMP_CWORD-2]}"; fi
    for word in "${COMP_WORDS[@]:1:$((COMP_CWORD-1))}"; do
        case "$last" in
            --socket) socket="$word" ;;
            %(valued)s) ;;
            *) case "$verb/$word" in
%(verbs)s
            esac ;;
        esac
        if [ "$word" != "=" ]; then last="$word"; fi
    done
    case "$prev" in
%(values)s
        *) case "$cur" in
            -*) case "$verb" in
%(options)s
            esac ;;
            *) case "$verb" in
%(positionals)s
            esac ;;
        esac ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -F _%(prog)s %(prog)s
"""
_ZSH_PROLOGUE = """whence compdef >/dev/null || { autoload -Uz compinit && compinit; }
autoload -Uz bashcompinit && bashcompinit
"""
_CASE = "                {}) {} ;;"


class _Level(NamedTuple):
    """A parser: the verbs that lead to it, and what it takes."""

    path: tuple[str, ...]
    verbs: dict[str, str]  # with what they do
    options: list[Action]
    positional: Action | None


def script(parser: ArgumentParser, shell: str) -> str:
    """The script to source, or to put where the shell looks for completions."""
    levels = list(_levels(parser, ()))
    return _fish(parser.prog, levels) if shell == "fish" else _bash(parser.prog, levels, shell)


def _levels(parser: ArgumentParser, path: tuple[str, ...]) -> Iterator[_Level]:
    subparsers = next((a for a in parser._actions if isinstance(a, _SubParsersAction)), None)
    verbs = {choice.dest: choice.help or "" for choice in subparsers._choices_actions} if subparsers else {}
    positional = next((a for a in parser._actions if not a.option_strings and a is not subparsers), None)
    yield _Level(path, verbs, [a for a in parser._actions if a.option_strings], positional)
    for verb in verbs:
        assert subparsers is not None
        yield from _levels(subparsers.choices[verb], (*path, verb))


def _bash(prog: str, levels: list[_Level], shell: str) -> str:
    valued = {name: a for level in levels for a in level.options if a.nargs != 0 for name in a.option_strings}
    values = [(name, _bash_words(action)) for name, action in sorted(valued.items())]
    options = [(_key(level), f'words="{_option_names(level)}"') for level in levels]
    positionals = [(_key(level), f'words="{" ".join(level.verbs)}"') for level in levels if level.verbs]
    positionals += [(_key(level), _bash_words(level.positional)) for level in levels if level.positional]
    verbs = [
        (" | ".join(f"{_key(level)}/{verb}" for verb in level.verbs), f'verb="{_prefix(level)}$word"')
        for level in levels
        if level.verbs
    ]
    return _BASH % {
        "prog": prog,
        "shell": shell,
        "prologue": _ZSH_PROLOGUE if shell == "zsh" else "",
        "valued": " | ".join(sorted(valued)),
        "verbs": _cases(verbs),
        "values": _cases(values),
        "options": _cases(options),
        "positionals": _cases(positionals),
    }


def _cases(pairs: list[tuple[str, str]]) -> str:
    return "\n".join(_CASE.format(pattern, command) for pattern, command in pairs)


def _key(level: _Level) -> str:
    return "-".join(level.path) or '""'


def _prefix(level: _Level) -> str:
    return "".join(f"{verb}-" for verb in level.path)


def _option_names(level: _Level) -> str:
    return " ".join(name for action in level.options for name in action.option_strings)


def _bash_words(action: Action) -> str:
    """The command that finds what may stand there."""
    if action.choices is not None:
        return f'words="{" ".join(map(str, action.choices))}"'
    if action.metavar in _FILES or action.metavar in _DIRECTORIES:
        return f'COMPREPLY=($(compgen -{"f" if action.metavar in _FILES else "d"} -- "$cur")); return'
    if action.metavar in _NAMES:
        ask = f'_names {str(action.metavar).lower()} "$cur" 2>/dev/null'
        return f'words="$("${{COMP_WORDS[0]}}" ${{socket:+--socket "$socket"}} {ask})"'
    if action.metavar == "KEY=VALUE":
        return f'words="{" ".join(_config_keys())}"; compopt -o nospace 2>/dev/null'
    return "return"


def _fish(prog: str, levels: list[_Level]) -> str:
    lines = [f"# fish completion for {prog}, made by `{prog} completion fish`", f"complete -c {prog} -f"]
    for level in levels:
        begin = f"complete -c {prog} -n '{_fish_condition(level)}'"
        lines += [f"{begin} -a {verb} -d {_quoted(what)}" for verb, what in level.verbs.items()]
        if level.positional:
            lines.append(f"{begin}{_fish_words(prog, level.positional)}")
        for action in level.options:
            names = "".join(
                f" -{'l' if n.startswith('--') else 's'} {n.lstrip('-')}" for n in action.option_strings
            )
            value = f" -r{_fish_words(prog, action)}" if action.nargs != 0 else ""
            lines.append(f"{begin}{names}{value} -d {_quoted(action.help or '')}")
    return "\n".join(lines) + "\n"


def _fish_condition(level: _Level) -> str:
    seen = [f"__fish_seen_subcommand_from {verb}" for verb in level.path]
    deeper = [f"not __fish_seen_subcommand_from {' '.join(level.verbs)}"] if level.verbs else []
    return "; and ".join(seen + deeper)


def _fish_words(prog: str, action: Action) -> str:
    if action.choices is not None:
        return f" -a '{' '.join(map(str, action.choices))}'"
    if action.metavar in _FILES or action.metavar in _DIRECTORIES:
        return " -F"
    if action.metavar in _NAMES:
        return f" -a '({prog} _names {str(action.metavar).lower()} (commandline -ct) 2>/dev/null)'"
    if action.metavar == "KEY=VALUE":
        return f" -a '{' '.join(_config_keys())}'"
    return ""


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _config_keys() -> list[str]:
    from cleanerd.config.keys import BROKER_KEYS  # noqa: PLC0415 - cleanerctl does not need them

    return [f"{name}=" for name in sorted(BROKER_KEYS)]
