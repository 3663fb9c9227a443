"""`cleanerd run`: the daemon, in the foreground, until a signal to stop."""

from argparse import Namespace

from cleanerd.cli.configuration import load
from cleanerd.env.files import RealFiles
from cleanerd.storage.metadata_log import find_metadata


def run(arguments: Namespace) -> int:
    """Exit code of the daemon. Raises BadConfiguration, BadUsage, Fatal."""
    loaded = load(arguments, is_daemon=True)
    from cleanerd.daemon.process import Daemon  # noqa: PLC0415 - after `load`: root has become the owner

    metadata_log_dir = loaded.configuration.broker.metadata_log_dir
    return Daemon(
        loaded.configuration,
        loaded.log_dirs,
        arguments.config,
        lambda: load(arguments, is_daemon=True).configuration,
        lambda: find_metadata(RealFiles(), loaded.log_dirs, metadata_log_dir),
    ).run()
