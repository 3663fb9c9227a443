"""Requests to the cluster through its admin API: the one importer of the Kafka client library.

The client takes Java's names: `cleanerd.kafka.client.config` is a properties file as Kafka's own tools read it. Its values
are secrets: they are in no message, log line or answer.
"""

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, Self
from uuid import UUID

import javaproperties

from cleanerd.config.model import CleanerdConfig
from cleanerd.errors import ClusterRefused

_TIMEOUT_MS = 10_000
_TAKEN_S, _TAKEN_TRIES = 0.5, 20  # pause between questions, and how many more than one
_JAAS = re.compile(r'(username|password)="((?:[^"\\]|\\.)*)"')
_DYNAMIC = "DYNAMIC_TOPIC_CONFIG"


class AnsweredTopic(NamedTuple):
    """A topic: the values that hold, and the names of those that are its own. `topic_id` None: its broker knows of none."""

    name: str
    topic_id: UUID | None
    values: Mapping[str, str]
    own: Collection[str]


class KafkaAdmin:
    """A connection to the cluster, for a few calls; a context manager. Raises ClusterRefused, from every method."""

    def __init__(self, bootstrap_servers: Iterable[str], client_config: str) -> None:
        settings = _client_settings(client_config) if client_config else {}
        logging.getLogger("kafka").setLevel(logging.CRITICAL)  # what goes wrong is raised, and reported once
        from kafka.admin import KafkaAdminClient  # noqa: PLC0415 - only for those who use it
        from kafka.errors import KafkaError  # noqa: PLC0415

        self._errors: tuple[type[Exception], ...] = (KafkaError, OSError, ValueError, AssertionError)
        self._client = self._ask(
            lambda: KafkaAdminClient(
                bootstrap_servers=list(bootstrap_servers),
                client_id="cleanerd",
                request_timeout_ms=_TIMEOUT_MS,
                bootstrap_timeout_ms=_TIMEOUT_MS,
                **settings,
            )
        )

    @classmethod
    def of(cls, config: CleanerdConfig) -> Self:
        """To the cluster that is configured, if there is one."""
        if not config.kafka_bootstrap_servers:
            raise ClusterRefused("no cluster to ask: set cleanerd.kafka.bootstrap.servers")
        return cls(config.kafka_bootstrap_servers, config.kafka_client_config)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def own_values(self, topics: Iterable[str], key: str) -> dict[str, str | None]:
        """The value that each topic has of its own, None for none. A topic that the cluster does not have is left out."""
        from kafka.admin import ConfigResource, ConfigResourceType  # noqa: PLC0415

        resources = [ConfigResource(ConfigResourceType.TOPIC, topic, {key: None}) for topic in topics]
        found = self._ask(lambda: self._client.describe_configs(resources, config_filter="all"))
        entries = {topic: configs[key] for topic, configs in found.get("topic", {}).items() if key in configs}
        return {
            topic: entry["value"] if entry["config_source"] == _DYNAMIC else None
            for topic, entry in entries.items()
        }

    def topics(self, names: Iterable[str]) -> list[AnsweredTopic]:
        """Those of these topics that the cluster has."""
        from kafka.admin import ConfigResource, ConfigResourceType  # noqa: PLC0415

        described = self._ask(lambda: self._client.describe_topics(sorted(names)))
        ids = {topic["name"]: topic.get("topic_id") for topic in described if not topic["error_code"]}
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in ids]
        found = self._ask(lambda: self._client.describe_configs(resources, config_filter="all"))
        configs = found.get("topic", {})
        return [
            AnsweredTopic(
                name,
                topic_id if isinstance(topic_id, UUID) and topic_id.int else None,
                {key: entry["value"] for key, entry in configs[name].items() if entry["value"] is not None},
                frozenset(key for key, entry in configs[name].items() if entry["config_source"] == _DYNAMIC),
            )
            for name, topic_id in ids.items()
            if configs.get(name)
        ]

    def set_own_values(self, values: Mapping[str, str | None], key: str) -> None:
        """Give each topic a value of its own; None takes it away, so that the broker's holds again.

        A broker learns a little later what the controller has taken: it is asked until it answers the same.
        """
        from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType  # noqa: PLC0415

        resources = [
            ConfigResource(
                ConfigResourceType.TOPIC,
                topic,
                {key: (AlterConfigOp.DELETE, None) if value is None else (AlterConfigOp.SET, value)},
            )
            for topic, value in values.items()
        ]
        self._ask(lambda: self._client.alter_configs(resources, raise_on_unknown=False, incremental=True))
        asked = 0
        while wrong := [
            topic for topic, value in self.own_values(values, key).items() if value != values[topic]
        ]:
            asked += 1
            if asked > _TAKEN_TRIES:
                raise ClusterRefused(f"the cluster did not accept {key} of {', '.join(sorted(wrong))}")
            threading.Event().wait(_TAKEN_S)

    def _ask(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except self._errors as error:
            raise ClusterRefused(f"the cluster cannot be asked: {type(error).__name__}: {error}") from None


def _client_settings(path: str) -> dict[str, Any]:
    """Options of the client library for a properties file of Kafka's. Raises ClusterRefused, without any value."""
    try:
        with open(path, encoding="latin-1") as file:
            found = javaproperties.load(file)
    except (OSError, javaproperties.InvalidUEscapeError) as error:
        raise ClusterRefused(
            f"{path}: expected a properties file that can be read: {type(error).__name__}"
        ) from None
    settings: dict[str, Any] = {}
    for key, value in found.items():
        if key == "sasl.jaas.config":
            found_in = _JAAS.findall(value)
            settings |= {f"sasl_plain_{name}": re.sub(r"\\(.)", r"\1", text) for name, text in found_in}
        elif key == "ssl.endpoint.identification.algorithm":
            settings["ssl_check_hostname"] = bool(value.strip())
        elif key in _OPTIONS:
            settings[_OPTIONS[key]] = value.strip()
        elif key not in _IMPLIED:
            raise ClusterRefused(f"{path}: {key} is not a known key; known are {', '.join(sorted(_KNOWN))}")
    for kind in ("keystore", "truststore"):
        if found.get(f"ssl.{kind}.location") and found.get(f"ssl.{kind}.type", "").strip().upper() != "PEM":
            raise ClusterRefused(
                f"{path}: ssl.{kind}.location: expected a PEM file, with ssl.{kind}.type=PEM"
            )
    return settings


_OPTIONS = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "ssl.truststore.location": "ssl_cafile",
    "ssl.keystore.location": "ssl_certfile",
    "ssl.key.password": "ssl_password",
    "client.dns.lookup": "client_dns_lookup",
}
_IMPLIED = {"ssl.truststore.type", "ssl.keystore.type", "bootstrap.servers", "client.id"}
_KNOWN = {*_OPTIONS, *_IMPLIED, "sasl.jaas.config", "ssl.endpoint.identification.algorithm"}
