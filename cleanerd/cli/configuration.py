"""From the command line options to a resolved configuration.

Two steps: the static layers name the log directories; the metadata log in them adds the cluster's settings of topics and
brokers. Without a metadata log, the live broker is asked for these.
"""

import contextlib
import os
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from cleanerd.broker_agent.brokers import LiveBrokers
from cleanerd.cleaning.foreign import left_alone
from cleanerd.cleaning.knowledge import node_setting
from cleanerd.cli.privileges import become_owner
from cleanerd.config.load import Configuration, examine, resolve
from cleanerd.config.model import CleanerdConfig, ClusterMetadata
from cleanerd.config.settings import Layer
from cleanerd.config.sources import read_sources
from cleanerd.daemon.configuration.answers import ask_brokers
from cleanerd.env.clock import SystemClock
from cleanerd.env.files import Files, RealFiles
from cleanerd.errors import BadConfiguration, BadUsage, CleanerdError, ours
from cleanerd.format.names import DirKind, parse_partition_dir
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.metadata_log import by_node, find_metadata, why_other_node
from cleanerd.storage.no_log_dir import why_no_log_dir
from cleanerd.storage.whose import whose
from cleanerd.units import first_of

_NO_METADATA = "no metadata log found: the cluster's overrides for topics and brokers are not known"
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration, its log directories as absolute paths, and warnings."""

    configuration: Configuration
    log_dirs: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def load(arguments: Namespace, *, is_daemon: bool = False) -> Loaded:
    """Resolve the options. Raises `BadConfiguration`, `BadUsage`, or what `find_metadata` raises.

    A daemon asks brokers itself. As root it becomes the owner of its log directories.
    """
    static = _static(arguments)
    if is_daemon:
        config = static.configuration.broker
        if become_owner(static.log_dirs, (config.state_dir, os.path.dirname(config.control_socket))):
            _check_read_again(arguments)
    return _with_cluster(static, static.log_dirs, None, is_daemon=is_daemon)


def load_each(
    arguments: Namespace, named: frozenset[str]
) -> Iterator[Loaded | tuple[tuple[str, ...], CleanerdError]]:
    """`load` for each node that owns some of the log directories; an error of one node does not affect the others.

    Yields what is loaded, or directories and why nothing is known of them. `named`: the topics that a one-shot was given;
    none for all. As root this becomes the owner of the log directories. Raises as `load` where there is one node.
    """
    static = _static(arguments)
    become_owner(static.log_dirs)
    nodes = by_node(RealFiles(), static.log_dirs)
    for log_dirs in nodes:
        try:
            yield _with_cluster(static, log_dirs, named)
        except Exception as error:
            if len(nodes) == 1:
                raise
            yield log_dirs, ours(error, ", ".join(log_dirs))


def _static(arguments: Namespace) -> Loaded:
    """Load the configuration without the settings of the cluster."""
    configuration = resolve(read_sources(arguments.config, arguments.set, arguments.topic_set))
    return Loaded(configuration, _named_log_dirs(arguments, configuration))


def _named_log_dirs(arguments: Namespace, configuration: Configuration) -> tuple[str, ...]:
    if not (arguments.log_dir or arguments.config or _names_log_dirs(configuration)):
        unread = "".join(f"; {text}" for text in configuration.unread)
        raise BadUsage(f"which logs? give the broker's --config FILE, or --log-dir DIR{unread}")
    return _log_dirs(arguments.log_dir, configuration.broker.log_dirs)


def _check_read_again(arguments: Namespace) -> None:
    """Raise BadConfiguration if only root could read it: nobody would vouch for it as soon as it may have changed."""
    problems = read_sources(arguments.config, arguments.set, arguments.topic_set).problems
    if problems:
        why = "a daemon reads it again when it changes, as the owner of the log directories: let that user read it"
        raise BadConfiguration([f"{problem}; {why} (chgrp, chmod g+r)" for problem in problems])


def _with_cluster(
    static: Loaded, log_dirs: tuple[str, ...], named: frozenset[str] | None, *, is_daemon: bool = False
) -> Loaded:
    """Load the configuration with the settings of the cluster that these directories belong to."""
    files, configuration = RealFiles(), static.configuration
    metadata = _metadata(files, log_dirs, configuration.broker, asks=not is_daemon)
    if metadata is not None:
        configuration = configuration.with_metadata(metadata)
    unknown = () if is_daemon else _unknown_topics(files, log_dirs, configuration, named)
    return Loaded(configuration, log_dirs, (*configuration.warnings, *unknown))


def log_dirs(arguments: Namespace) -> tuple[str, ...]:
    """The log directories that the options name, else those of `--config` and the environment, as absolute paths.

    Nothing in them is read, whatever state they are in. Raises `BadConfiguration`, `BadUsage`.
    """
    if arguments.log_dir:
        return _log_dirs(arguments.log_dir, ())
    return _named_log_dirs(arguments, resolve(read_sources(arguments.config)))


def load_anyhow(arguments: Namespace) -> Loaded:
    """As `load`; where the settings of the cluster cannot be read without them, and with a warning.

    Raises `BadConfiguration`, `BadUsage` for what the files and options say.
    """
    static = _static(arguments)
    try:
        return _with_cluster(static, static.log_dirs, None)
    except (CleanerdError, OSError) as error:
        where = ", ".join(static.log_dirs)
        return replace(static, warnings=(f"the settings of the cluster are not known: {ours(error, where)}",))


def _metadata(
    files: Files, log_dirs: Sequence[str], config: CleanerdConfig, *, asks: bool = True
) -> ClusterMetadata | None:
    """Settings of the cluster: from the metadata log, else from the live broker. Raises as `find_metadata`."""
    found = find_metadata(files, log_dirs, config.metadata_log_dir)
    if found is not None or not asks:
        return found
    with contextlib.closing(LiveBrokers(files, SystemClock(), lambda: config)) as brokers:
        return ask_brokers(brokers, files, log_dirs)


def _unknown_topics(
    files: Files, log_dirs: Iterable[str], configuration: Configuration, named: frozenset[str] | None
) -> Iterator[str]:
    """A warning that a broker's directories have no metadata log, with the topics left alone; `named`: see `left_alone`."""
    metadata = configuration.metadata
    if configuration.has_metadata_log:
        return

    brokers = list[set[str]]()
    for path in log_dirs:
        with contextlib.suppress(CleanerdError, OSError):
            log_dir = LogDir.at(files, path, SystemClock())
            parsed = [parse_partition_dir(name) for name in files.list_names(path)]
            current = [one[0] for one in parsed if one is not None and one[1] is DirKind.CURRENT]
            asked = [tp for tp in current if not named or tp.topic in named]
            if log_dir.is_kafka:
                brokers.append({tp.topic for tp in left_alone(log_dir, asked, configuration, named)})
    topics = sorted(set().union(*brokers))
    left = f"; until their cleanup.policy is set, these are left alone: {first_of(topics, _SHOWN)}"
    if topics or (brokers and metadata is None):
        yield f"{_NO_METADATA}{left if topics else ''}"


def no_log_dirs(log_dirs: Iterable[str]) -> Iterator[str]:
    """Why some of these are no log directories; one that cannot be read is passed over."""
    for path in log_dirs:
        with contextlib.suppress(CleanerdError, OSError):
            reason = why_no_log_dir(RealFiles(), path)
            if reason is not None:
                yield reason


def _damaged(log_dirs: Iterable[str], configuration: Configuration) -> Iterator[str]:
    """Those of the directories whose owner is unknown; unreadable ones are skipped."""
    node = node_setting(configuration)
    for path in log_dirs:
        with contextlib.suppress(CleanerdError, OSError):
            damage = whose(RealFiles(), path, node, thorough=True).damage
            if damage is not None:
                yield damage


def diagnose(arguments: Namespace) -> tuple[Loaded, list[str]]:
    """Look at everything: values, names, directories, the metadata log; with all problems.

    A default directory of which a file that cannot be read may differ is not looked at.

    Raises: `BadUsage` for directories that make no sense together.
    """
    files = RealFiles()
    sources = read_sources(arguments.config, arguments.set, arguments.topic_set)
    configuration, problems = examine(sources)
    broker = configuration.broker
    log_dirs = _log_dirs(arguments.log_dir, broker.log_dirs)
    if sources.problems and not (arguments.log_dir or _names_log_dirs(configuration)):
        return Loaded(configuration, log_dirs, configuration.warnings), problems
    directories = dict.fromkeys(log_dirs)
    if "metadata.log.dir" in configuration.broker_settings:
        directories[os.path.abspath(broker.metadata_log_dir)] = None
    unusable = [problem for directory in directories for problem in _directory_problems(directory)]
    unusable += filter(None, [why_other_node(files, directory, broker) for directory in log_dirs])
    try:
        metadata = _metadata(files, log_dirs, broker)
    except CleanerdError as error:
        unusable.append(str(error))
    else:
        configuration, problems = examine(sources, metadata)
    damaged = list(
        _damaged(log_dirs, configuration)
    )  # left alone, whatever is configured: the daemon starts without
    warnings = [*configuration.warnings, *no_log_dirs(log_dirs), *damaged]
    if not unusable and not damaged:
        warnings += _unknown_topics(files, log_dirs, configuration, None)
    return Loaded(configuration, log_dirs, tuple(warnings)), problems + unusable


def _names_log_dirs(configuration: Configuration) -> bool:
    """Whether any layer sets them: Kafka's default, a directory under /tmp, is not meant by a call without arguments."""
    settings = configuration.broker_settings
    names = ("log.dirs", "log.dir")
    return any(name in settings and settings[name].origin.layer is not Layer.DEFAULT for name in names)


def _directory_problems(directory: str) -> Iterator[str]:
    try:
        os.listdir(directory)
    except OSError as error:
        yield f"{directory}: expected a readable directory, found: {error.strerror}"
    else:
        if not os.access(directory, os.W_OK):
            yield f"{directory}: expected a writable directory, found one that may only be read"


def _log_dirs(named: list[str], configured: tuple[str, ...]) -> tuple[str, ...]:
    for log_dir in named:
        if not os.path.isdir(log_dir):
            raise BadUsage(f"--log-dir: expected a directory, found {log_dir!r}")
    log_dirs = tuple(os.path.abspath(log_dir) for log_dir in named or configured)
    if len({os.path.realpath(log_dir) for log_dir in log_dirs}) < len(log_dirs):
        raise BadUsage(f"a log directory is named twice: {', '.join(log_dirs)}")
    return log_dirs
