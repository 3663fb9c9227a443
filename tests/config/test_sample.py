"""The samples beside the reference: every key, in the words and with the defaults of its declaration."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from cleanerd.config.keys import BROKER_KEYS, TOPIC_KEYS
from cleanerd.config.settings import Key
from cleanerd.config.values import DOUBLE_MAX

ETC = Path(__file__).parents[2] / "etc"
SAMPLES: dict[str, dict[str, Iterable[Key]]] = {
    "cleanerd.properties": {
        "Keys of Kafka": [key for name, key in BROKER_KEYS.items() if not name.startswith("cleanerd.")],
        "Keys of cleanerd": [key for name, key in BROKER_KEYS.items() if name.startswith("cleanerd.")],
    },
    "topics.d/TOPIC.properties": {"Keys of the topic": TOPIC_KEYS.values()},
}


def rendered(name: str) -> str:
    """What the file should be: its own introduction, then the keys."""
    introduction = (ETC / name).read_text().partition("\n## ")[0]
    return "\n".join([introduction, *(line for part in SAMPLES[name].items() for line in lines(*part))])


def lines(title: str, keys: Iterable[Key]) -> Iterator[str]:
    yield f"## {title}\n"
    for key in keys:
        yield f"# {key.doc}{' Not set by default.' if key.default is None else ''}"
        yield f"#{key.name}={text(key)}"
    yield ""


def text(key: Key) -> str:
    if isinstance(key.default, tuple):
        return ",".join(key.default)
    if key.default == DOUBLE_MAX and key.name.startswith("cleanerd."):
        return "unlimited"  # Kafka takes only numbers
    return (
        ""
        if key.default is None
        else str(key.default).lower()
        if key.type.value == "boolean"
        else str(key.default)
    )


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_have_every_key(name: str) -> None:
    """`python -m tests.config.test_sample` makes it so."""
    assert (ETC / name).read_text() == rendered(name)


if __name__ == "__main__":
    for sample in SAMPLES:
        (ETC / sample).write_text(rendered(sample))
