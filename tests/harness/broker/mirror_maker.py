"""MirrorMaker 2 in a process of its own, which copies topics from one broker to another under their names."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.harness.broker.kafka import KafkaBroker
from tests.harness.broker.releases import JVM_OPTIONS, mirror_maker_libs, required_program

_PROPERTIES = {
    "clusters": "source,target",
    "source->target.enabled": "true",
    "target->source.enabled": "false",
    "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
    "config.properties.exclude": ".*",
    "sync.topic.acls.enabled": "false",
    "emit.heartbeats.enabled": "false",
    "emit.checkpoints.enabled": "false",
    "replication.factor": "1",
    "offset-syncs.topic.replication.factor": "1",
    "config.storage.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "offset.storage.partitions": "1",
    "status.storage.replication.factor": "1",
    "status.storage.partitions": "1",
    "source.consumer.isolation.level": "read_committed",
    "dedicated.mode.enable.internal.rest": "false",
}


@contextmanager
def mirror_maker(
    work_dir: Path, source: KafkaBroker, target: KafkaBroker, topics: Sequence[str]
) -> Iterator[None]:
    """Copies what transactions have committed; settings of topics are those of the target's broker."""
    work_dir.mkdir()
    config = work_dir / "mm2.properties"
    rows = {
        **_PROPERTIES,
        "source.bootstrap.servers": source.bootstrap,
        "target.bootstrap.servers": target.bootstrap,
        "source->target.topics": ",".join(topics),
    }
    config.write_text("".join(f"{key}={value}\n" for key, value in rows.items()))
    jvm = [required_program("java"), "-Xmx256m", *JVM_OPTIONS, "-cp", f"{mirror_maker_libs()}/*"]
    with (work_dir / "log").open("wb") as log:
        process = subprocess.Popen(
            [*jvm, "org.apache.kafka.connect.mirror.MirrorMaker", str(config)],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield
    finally:
        process.kill()
        process.wait()
