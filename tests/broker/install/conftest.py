"""One cluster for each file of tests, with its topics; what a test that has failed leaves does not reach the next one.

A file says in `TOPICS` which topics there are and who has their partitions, in `STAGED` which of them have results waiting
beside which broker, and in `LOG_DIRS` the names of each broker's log directories.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tests.broker.cluster import KafkaCluster
from tests.broker.install.installing import clear, create, stage


@pytest.fixture(scope="module")
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaCluster]:
    """Three brokers."""
    log_dirs = getattr(request.module, "LOG_DIRS", ("logs",))
    with KafkaCluster(tmp_path_factory.mktemp("cluster"), log_dirs=log_dirs) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def admin(request: pytest.FixtureRequest, cluster: KafkaCluster) -> AdminClient:
    """All topics are there, with their results."""
    module: Any = request.module
    admin = create(cluster, module.TOPICS)
    for node, topics in getattr(module, "STAGED", {}).items():
        stage(request.getfixturevalue("spark"), cluster, node, topics)
    return admin


@pytest.fixture(autouse=True)
def cleared(cluster: KafkaCluster) -> None:
    """Nothing is left of the test before."""
    clear(cluster)
