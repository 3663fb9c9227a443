"""Documents of `-o json` that travel between machines, read again."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cleanerd import API_VERSION
from cleanerd.errors import BadUsage


@contextmanager
def read_report(path: str, command: str) -> Iterator[dict[str, Any]]:
    """A document of this command; what its reader finds missing or wrong in the block is a `BadUsage`, too.

    So are a file that cannot be read and a document of another version, whose fields may mean something else.
    """
    what = f"{path}: expected what `cleanerd {command} -o json` writes"
    try:
        with open(path, "rb") as file:
            found = json.load(file, parse_constant=_no_number)
        version = found["apiVersion"]
        if version != API_VERSION:
            raise BadUsage(
                f"{what} with apiVersion {API_VERSION}, found {version!r}: use the same cleanerd for both"
            )
        yield found
    except OSError as error:
        raise BadUsage(f"{path}: expected a readable file, found: {error.strerror}") from None
    except KeyError as error:
        raise BadUsage(f"{what}, found a document without {error}") from None
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise BadUsage(f"{what}, found: {error}") from None


def _no_number(text: str) -> float:
    raise ValueError(f"the number {text}")
