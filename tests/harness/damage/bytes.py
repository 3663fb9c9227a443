"""From valid bytes to hostile ones: damage anywhere, pieces of other inputs, words of the format, pure noise."""

import copy
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from tests.harness.damage.batches import damage, damage_inside_crc

Mutate = Callable[[random.Random, Sequence[bytes]], bytes]
"""From valid inputs to one that may be anything."""

NUMBERS = (
    *b"0 -1 2147483647 2147483648 9223372036854775807 9223372036854775808 1e999".split(), b"9" * 5000,
)  # fmt: skip
WORDS = (
    *NUMBERS,
    b"\n",
    b"\r\n",
    b"\0",
    b" ",
    b"=",
    b":",
    b"\\",
    b"\xff\xfe",
    b"\xc3\x28",
    b"NaN",
    b"Infinity",
)
ODD_VALUES: tuple[Any, ...] = (
    None, True, [], {}, "", "x", "\0", "../..", "\ud800", -1, 0, 2**31, 2**63, 2**64, 10**400, 1.5, float("inf"),
    float("nan"), [None], {"": None}, "9" * 5000,
)  # fmt: skip
_DEEP = 20_000


def mutated(rng: random.Random, valid: Sequence[bytes], words: Sequence[bytes] = WORDS) -> bytes:
    """One of the valid inputs, changed in up to some places; rarely noise, rarely as it is."""
    if rng.random() < 0.03:
        return rng.randbytes(rng.choice((0, 1, 5, 61, 300)))
    data = rng.choice(valid)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
        data = _changed(rng, data, valid, words)
    return data


def _changed(rng: random.Random, data: bytes, valid: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    match rng.choices(range(4), (10, 3, 2, 1))[0]:
        case 0:
            return damage(rng, data)
        case 1:
            return data[:at] + rng.choice(words) + data[at + rng.choice((0, 0, 1, 4)) :]
        case 2:
            other = rng.choice(valid)
            return data[:at] + other[rng.randrange(len(other) + 1) :]
        case _:
            return data + data[at:]


def batches_mutated(rng: random.Random, valid: Sequence[bytes]) -> bytes:
    return spoilt(rng, [rng.choice(valid) for _ in range(rng.choice((1, 1, 2, 4)))], 0.7)


def spoilt(rng: random.Random, batches: list[bytes], share: float) -> bytes:
    """Batches with damage inside of a CRC that is right again, so that it gets past it; or damage anywhere."""
    if rng.random() < share:
        number = rng.randrange(len(batches))
        batches[number] = damage_inside_crc(rng, batches[number])
    data = b"".join(batches)
    return damage(rng, data) if rng.random() < 0.3 else data


def json_mutated(rng: random.Random, valid: Sequence[bytes]) -> bytes:
    """Values exchanged, keys gone, documents too deep to walk; or bytes that are JSON no more."""
    if rng.random() < 0.3:
        return mutated(rng, valid)
    if rng.random() < 0.02:
        return rng.choice((b"[", b'{"a":')) * _DEEP
    document = json.loads(rng.choice(valid))
    for _ in range(rng.choice((1, 1, 2))):
        document = _value_changed(rng, document)
    return json.dumps(document).encode("utf-8", "surrogatepass")


def _value_changed(rng: random.Random, value: Any) -> Any:
    inside: list[Any] = list(value) if isinstance(value, dict) else []
    if isinstance(value, list):
        inside = list(range(len(value)))
    if not inside or rng.random() < 0.15:
        return copy.deepcopy(rng.choice(ODD_VALUES))
    at = rng.choice(inside)
    if rng.random() < 0.1:
        del value[at]
    else:
        value[at] = _value_changed(rng, value[at])
    return value
