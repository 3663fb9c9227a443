"""The reference that is committed is the one that the table of keys makes."""

from pathlib import Path

from cleanerd.config.keys import BROKER_KEYS, TOPIC_KEYS
from cleanerd.config.reference import render_reference

COMMITTED = Path(__file__).parents[2] / "etc" / "reference" / "configuration.md"


def test_committed_reference_is_current() -> None:
    """`cleanerd config reference > etc/reference/configuration.md` makes it so."""
    assert COMMITTED.read_text().rstrip() == render_reference().rstrip()


def test_every_key_is_in_the_reference() -> None:
    text = render_reference()
    assert not [name for name in [*BROKER_KEYS, *TOPIC_KEYS] if f"`{name}`" not in text]
