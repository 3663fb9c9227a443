"""`cleanerd config`: the values that hold, and where they come from."""

from argparse import Namespace
from collections.abc import Mapping

from cleanerd.cli import output
from cleanerd.cli.configuration import diagnose, load
from cleanerd.cli.tables import table
from cleanerd.config.keys import is_secret
from cleanerd.config.load import Configuration, SettingsByKey
from cleanerd.config.reference import render_reference
from cleanerd.config.settings import Setting
from cleanerd.config.values import DOUBLE_MAX, UNLIMITED
from cleanerd.errors import BadConfiguration

_HIDDEN = "(hidden)"


def show(arguments: Namespace) -> int:
    """Every key with its value: those of each topic asked for; asked for none, those of the broker, and the values that
    topics have of their own: all others follow from the broker's. A document has the broker's in any case.
    """
    loaded = load(arguments)
    for warning in loaded.warnings:
        output.print_message(warning)
    configuration = loaded.configuration
    if arguments.topic:
        topics = {topic: configuration.topic_settings(topic) for topic in arguments.topic}
    else:
        topics = {topic: _own(configuration, topic) for topic in sorted(configuration.topics)}
    if not output.is_table(arguments.output):
        show_origin = arguments.origin
        output.write_document(
            arguments.output,
            broker=_plain(configuration.broker_settings, show_origin),
            topics={topic: _plain(settings, show_origin) for topic, settings in topics.items()},
        )
    else:
        broker = {} if arguments.topic else {"BROKER": configuration.broker_settings}
        parts = {**broker, **topics}
        output.write("\n".join(_table(name, settings, arguments.origin) for name, settings in parts.items()))
    return 0


def check(arguments: Namespace) -> int:
    """Read and validate everything; all that is wrong is raised as one `BadConfiguration`."""
    found, problems = diagnose(arguments)
    for warning in found.warnings:
        output.print_message(f"warning: {warning}")
    if problems:
        raise BadConfiguration(problems)
    output.print_message(f"the configuration is valid; log directories: {', '.join(found.log_dirs)}")
    return 0


def reference(_: Namespace) -> int:
    """The reference of all keys."""
    output.write(render_reference())
    return 0


def _own(configuration: Configuration, topic: str) -> SettingsByKey:
    own = configuration.own_texts(topic)
    return {key: setting for key, setting in configuration.topic_settings(topic).items() if key in own}


def _plain(settings: Mapping[str, Setting], show_origin: bool) -> dict[str, object]:
    shown = {key: _HIDDEN if is_secret(key) else setting.value for key, setting in sorted(settings.items())}
    if not show_origin:
        return shown
    return {key: {"value": value, "origin": str(settings[key].origin)} for key, value in shown.items()}


def _table(heading: str, settings: Mapping[str, Setting], show_origin: bool) -> str:
    keys = sorted(settings)
    columns = {
        heading: keys,
        "VALUE": [_HIDDEN if is_secret(key) else _text(settings[key].value) for key in keys],
        "ORIGIN": [str(settings[key].origin) if show_origin else "" for key in keys],
    }
    return table(columns)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if value == DOUBLE_MAX:
        return UNLIMITED
    return ",".join(value) if isinstance(value, tuple) else str(value)
