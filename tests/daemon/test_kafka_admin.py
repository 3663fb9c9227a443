"""What the controller has taken a broker tells a little later; the same against real brokers is in tests/broker."""

from typing import Any

import pytest

from cleanerd.daemon import kafka_admin
from cleanerd.daemon.kafka_admin import KafkaAdmin
from cleanerd.errors import ClusterRefused

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the import of the library
KEY = "min.cleanable.dirty.ratio"


class LateBroker:
    """Tells what it was given once it has been asked so often; topics that it does not have it leaves out."""

    def __init__(self, late: int, **topics: str | None) -> None:
        self.late = late
        self.topics = topics
        self.taken: dict[str, str | None] = {}

    def alter_configs(self, resources: list[Any], **_: object) -> None:
        for resource in resources:
            ((_operation, value),) = resource.configs.values()
            self.taken[resource.name] = value

    def describe_configs(self, resources: list[Any], **_: object) -> dict[str, Any]:
        self.late -= 1
        if self.late < 0:
            self.topics |= {topic: value for topic, value in self.taken.items() if topic in self.topics}
        told = {
            resource.name: self.topics[resource.name]
            for resource in resources
            if resource.name in self.topics
        }
        return {"topic": {topic: {KEY: self._entry(value)} for topic, value in told.items()}}

    @staticmethod
    def _entry(value: str | None) -> dict[str, str]:
        source = "DEFAULT_CONFIG" if value is None else "DYNAMIC_TOPIC_CONFIG"
        return {"value": value or "0.5", "config_source": source}


def admin_of(broker: LateBroker, monkeypatch: pytest.MonkeyPatch) -> KafkaAdmin:
    monkeypatch.setattr(kafka_admin, "_TAKEN_S", 0.0)
    monkeypatch.setattr("kafka.admin.KafkaAdminClient", lambda **_: broker)
    return KafkaAdmin(["127.0.0.1:9092"], "")


@pytest.mark.parametrize("late", [0, 1, 20])
@pytest.mark.parametrize("value", ["1.0", None])
def test_a_value_is_taken_when_a_broker_tells_it(
    late: int, value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is taken away, which a broker still has for a while. A topic that is not there is not waited for."""
    broker = LateBroker(late, a="0.7", b="0.7")
    admin_of(broker, monkeypatch).set_own_values({"a": value, "b": "0.9", "gone": "0.9"}, KEY)
    assert broker.topics == {"a": value, "b": "0.9"}


def test_what_is_never_told_was_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an error that names the topics, after a while and not at once."""
    broker = LateBroker(1000, a="0.7", b="0.7")
    with pytest.raises(ClusterRefused, match=f"did not accept {KEY} of a, b"):
        admin_of(broker, monkeypatch).set_own_values({"a": "1.0", "b": "1.0"}, KEY)
    assert broker.late == 1000 - 21
