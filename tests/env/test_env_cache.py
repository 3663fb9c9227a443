"""Where things are kept that can be made again."""

import os

import pytest

from cleanerd.env.cache import cache_directory


@pytest.mark.parametrize(
    ("environment", "directory"),
    [
        ({"CACHE_DIRECTORY": "/var/cache/cleanerd:/other", "XDG_CACHE_HOME": "/x"}, "/var/cache/cleanerd"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/cleanerd"),
        ({}, os.path.expanduser("~/.cache/cleanerd")),
    ],
)
def test_cache_directory(environment: dict[str, str], directory: str) -> None:
    """systemd's, else the user's."""
    assert cache_directory(environment) == directory
