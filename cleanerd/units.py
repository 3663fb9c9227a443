"""Numbers as people write and read them: sizes, durations, instants, counts by reason.

Accepted texts: `50MB`, `1.5GiB`, `4096` (bytes); `90s`, `5m`, `2h`, `7d`, `90` (seconds).
"""

import codecs
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

_SIZES = ("B", "kB", "MB", "GB", "TB", "PB")
_BYTES = {unit.lower(): 1000**power for power, unit in enumerate(_SIZES)}
_BYTES |= {f"{unit}ib": 1024**power for power, unit in enumerate("kmgtp", start=1)}
_BYTES |= {unit: 1000**power for power, unit in enumerate("kmgtp", start=1)} | {"": 1}
_SECONDS = {"ms": 0.001, "s": 1, "": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


def size(size_bytes: int) -> str:
    """Bytes in the largest decimal unit that leaves a digit before the point."""
    value, unit = float(size_bytes), 0
    while value >= 999.95 and unit < len(_SIZES) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.1f} {_SIZES[unit]}" if unit else f"{size_bytes} B"


def duration(seconds: float) -> str:
    """A length of time in its two largest units; of less than ten seconds with a tenth."""
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    parts = (
        (whole // 86_400, "d"),
        (whole % 86_400 // 3600, "h"),
        (whole % 3600 // 60, "m"),
        (whole % 60, "s"),
    )
    first = next(index for index, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count}{unit}" for count, unit in parts[first : first + 2] if count)


def counted(number: int, what: str) -> str:
    """So many of something: `1 directory`, `2 directories`, `1,000 segments`."""
    if number == 1:
        return f"1 {what}"
    return f"{number:,} {what[:-1]}ies" if what.endswith("y") else f"{number:,} {what}s"


def first_of(words: Sequence[str], shown: int) -> str:
    """The first words of a list, and how many others there are: `a, b and 3 more`. Empty for none."""
    more = f" and {len(words) - shown} more" if len(words) > shown else ""
    return f"{', '.join(words[:shown])}{more}"


def instant(time_ms: int) -> str:
    """A point in time in the local time zone; timestamps outside the calendar, which producers may write, stay numbers."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError):
        return _no_date(time_ms)


def utc(time_ms: int) -> str:
    """`instant` for a reader whose time zone is not known."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError):
        return _no_date(time_ms)


def _no_date(time_ms: int) -> str:
    return f"{time_ms} ms, which no calendar has"


def reasons(removed: Mapping[str, int]) -> str:
    """Counts by reason, the largest first."""
    largest_first = sorted(removed.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{reason} {count}" for reason, count in largest_first if count)


def printable(text: str) -> str:
    """One line without control characters: names and reasons come from file names and from other programs."""
    return "".join(char if char.isprintable() else "?" for char in text)


def in_utf8(text: str) -> str:
    """A text in which bytes of file names that are no UTF-8 are escapes: JSON and SQLite take nothing else."""
    return text.encode(errors="backslashreplace").decode()


def key_text(key: bytes, length: int = 0) -> str:
    """The key of a record as text, else in hexadecimal; `length`: that of the whole key if these are its first bytes."""
    is_cut = length > len(key)
    try:  # the cut may go through a character
        text = codecs.getincrementaldecoder("utf-8")().decode(key, final=not is_cut)
    except UnicodeDecodeError:
        text = "\0"
    shown = text or '""' if text.isprintable() else f"0x{key.hex()}"
    return shown + "..." * is_cut


def parse_size(text: str) -> float:
    """Bytes. Raises ValueError."""
    return _parse(text, _BYTES, "a size, like 50MB or 1.5GiB")


def parse_duration(text: str) -> float:
    """Seconds. Raises ValueError."""
    return _parse(text, _SECONDS, "a length of time, like 90s, 5m, 2h or 7d")


def parse_number(text: str) -> int:
    """A number of 0 or more. Raises ValueError."""
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"expected a number of 0 or more, found {text!r}")
    return int(text)


def _parse(text: str, factors: dict[str, float] | dict[str, int], what: str) -> float:
    number = text.strip().lower().rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = text.strip().lower()[len(number) :]
    try:
        value = float(number) * factors[unit]
    except (ValueError, KeyError):
        raise ValueError(f"{text!r} is not {what}") from None
    if not 0 <= value < math.inf:
        raise ValueError(f"{text!r} is not {what}")
    return value
