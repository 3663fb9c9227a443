"""Templates, and the protection of viewers from hostile names and errors.

Everything is escaped, what does not print is replaced, and the policy that goes with each page lets a browser run no script
and ask for nothing: the style is part of the page, and allowed by its hash.
"""

import base64
import functools
import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from markupsafe import Markup, escape

from cleanerd.units import duration, size, utc

if TYPE_CHECKING:
    import jinja2

_CODE = re.compile(r"`([^`]+)`")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def _printable(value: object) -> object:
    """Names and reasons come from file names and from other programs: no control characters, no change of direction."""
    if not isinstance(value, str) or value.isprintable():
        return value
    return "".join(char if char.isprintable() else _REPLACEMENT for char in value)


def age(time_ms: int, now_ms: int) -> str:
    """How long ago something was, in its largest unit; `in 3h` where it is to come."""
    seconds = (now_ms - time_ms) / 1000
    text = duration(abs(seconds)).split(" ")[0] if abs(seconds) >= 9.95 else f"{abs(seconds):.0f}s"
    return text if seconds >= 0 else f"in {text}"


@functools.cache
def _environment() -> "jinja2.Environment":
    """Made at the first look: templates cost memory, and most daemons are left alone."""
    import jinja2  # noqa: PLC0415 - 8 MB

    def coded(text: str) -> Markup:
        """Text with the parts between backticks as code."""
        return Markup(_CODE.sub(r"<code>\1</code>", str(escape(_printable(text)))))  # noqa: S704 - escaped

    made = jinja2.Environment(
        loader=jinja2.PackageLoader("cleanerd.daemon.page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else _printable(value),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "size": size,
        "duration": duration,
        "utc": utc,
        "age": age,
        "coded": coded,
        "quoted": lambda text: quote(text, safe="", errors="replace"),
        "query": lambda fields: urlencode(fields, errors="replace"),
        "count": lambda number: f"{number:,}",
    }
    made.globals["style"] = Markup(made.get_template("style.css").render())  # noqa: S704 - a file beside this one
    return made


@functools.cache
def headers() -> Mapping[str, str]:
    """The headers of every page."""
    digest = hashlib.sha256(str(_environment().globals["style"]).encode()).digest()
    return {
        "Content-Security-Policy": (
            f"default-src 'none'; style-src 'sha256-{base64.b64encode(digest).decode()}'; img-src data:; "
            "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        ),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }


def render(template: str, **values: object) -> bytes:
    """A page."""
    return _environment().get_template(template).render(values).encode(errors="replace")
