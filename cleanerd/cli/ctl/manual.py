"""The verbs in the man page cleanerctl(1), etc/man/cleanerctl.1."""

import re
from collections.abc import Sequence

from cleanerd.cli.ctl.parser import PUBLIC
from cleanerd.daemon.api.verb import Argument, Verb

_QUERIES = r""".SS Queries
Each of these but
.B top
takes
.BI \-\-watch\~ time
to repeat it at that interval.
"""


def render_verbs_reference() -> str:
    """From `.SS Queries` up to `.SH OPTIONS`, as man(1) reads it."""
    looks = [verb for verb in PUBLIC if verb.is_look or verb.name == "top"]
    actions = [verb for verb in PUBLIC if verb not in looks]
    return f"{_QUERIES}{_entries(looks)}.SS Actions\n{_entries(actions)}"


def _entries(verbs: Sequence[Verb]) -> str:
    return "".join(
        f".TP\n{_bold(verb.name)}{''.join(map(_argument, verb.arguments))}\n{_text(verb.manual)}\n"
        for verb in verbs
    )


def _argument(argument: Argument) -> str:
    name, value = argument.names[0], str(argument.settings.get("metavar", "")).lower()
    if not name.startswith("-"):
        shown = f"\\fI{value}\\fP"
        return f" [{shown}]" if argument.settings.get("nargs") == "?" else f" {shown}"
    return f" [{_bold(name)} \\fI{value}\\fP]" if value else f" [{_bold(name)}]"


def _text(text: str) -> str:
    return re.sub(r"`([^`]+)`", lambda found: _bold(found[1]), text)


def _bold(text: str) -> str:
    return "\\fB" + text.replace("-", "\\-") + "\\fP"
