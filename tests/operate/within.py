"""A client of a broker whose network is its own: `nsenter --net ... python -m tests.operate.within`.

`answers` fails while the broker does not; `create TOPIC KEY=VALUE...`; `write TOPIC` takes JSON `[[key, value], ...]`;
`read TOPIC` prints the newest value of each key as JSON.
"""

import json
import sys

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

BROKER = {"bootstrap.servers": "127.0.0.1:9092", "reconnect.backoff.max.ms": 200}
SOON_S = 30.0


def answers() -> None:
    AdminClient(BROKER).list_topics(timeout=SOON_S / 3)


def create(topic: str, *configs: str) -> None:
    new = NewTopic(topic, 1, 1, config=dict(text.split("=") for text in configs))
    client = AdminClient(BROKER)
    client.create_topics([new])[topic].result(SOON_S)


def write(topic: str) -> None:
    producer = Producer(BROKER)
    for key, value in json.load(sys.stdin):
        producer.produce(topic, value, key, partition=0)
        producer.poll(0)
    assert producer.flush(SOON_S) == 0


def read(topic: str) -> None:
    consumer = Consumer(BROKER | {"group.id": "within", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    newest: dict[str, str] = {}
    while (message := consumer.poll(SOON_S)) is not None and message.error() is None:
        newest[message.key().decode()] = message.value().decode()
    consumer.close()
    print(json.dumps(newest))


if __name__ == "__main__":
    {"answers": answers, "create": create, "write": write, "read": read}[sys.argv[1]](*sys.argv[2:])
