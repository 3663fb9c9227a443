"""An environment without variables of the machine that runs the tests."""

import os

import pytest


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drop whatever would be read as configuration."""
    for name in list(os.environ):
        if name.startswith(("KAFKA_", "CLEANERD_")):
            monkeypatch.delenv(name)
