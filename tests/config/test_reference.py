"""The reference of all keys; `tests/test_references.py` compares it with the one that is committed."""

from cleanerd.config.keys import BROKER_KEYS, TOPIC_KEYS
from cleanerd.config.reference import render_reference


def test_every_key_is_in_the_reference() -> None:
    text = render_reference()
    assert not [name for name in [*BROKER_KEYS, *TOPIC_KEYS] if f"`{name}`" not in text]
