"""From the options to a resolved configuration.

Two steps: the static layers say where the log directories are; the metadata log that is found there adds what
the cluster says about topics and brokers.
"""

import os
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass

from cleanerd.config.load import Configuration, resolve
from cleanerd.config.sources import read_sources
from cleanerd.env.files import Files, RealFiles
from cleanerd.errors import BadUsage
from cleanerd.format.names import META_PROPERTIES
from cleanerd.storage.metadata_log import find_metadata


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration and the log directories that it is for, as absolute paths."""

    configuration: Configuration
    log_dirs: tuple[str, ...]


def load(arguments: Namespace, warn: Callable[[str], None], files: Files | None = None) -> Loaded:
    """Resolve what the options say. Raises `BadConfiguration`, `BadUsage`, or what `find_metadata` raises."""
    files = files or RealFiles()
    sources = read_sources(arguments.config, arguments.set, arguments.topic_set)
    configuration = resolve(sources)
    log_dirs = _log_dirs(arguments.log_dir, configuration.broker.log_dirs)
    metadata = find_metadata(files, log_dirs, configuration.broker.metadata_log_dir)
    if metadata is not None:
        configuration = resolve(sources, metadata)
    elif any(files.exists(os.path.join(log_dir, META_PROPERTIES)) for log_dir in log_dirs):
        warn("no metadata log found: what the cluster overrides for topics and brokers is not known")
    return Loaded(configuration, log_dirs)


def _log_dirs(named: list[str], configured: tuple[str, ...]) -> tuple[str, ...]:
    for log_dir in named:
        if not os.path.isdir(log_dir):
            raise BadUsage(f"--log-dir: expected a directory, found {log_dir!r}")
    log_dirs = tuple(os.path.abspath(log_dir) for log_dir in named or configured)
    if len({os.path.realpath(log_dir) for log_dir in log_dirs}) < len(log_dirs):
        raise BadUsage(f"a log directory is named twice: {', '.join(log_dirs)}")
    return log_dirs
