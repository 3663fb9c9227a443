"""The directory of a broker that has stopped, with the metadata log that it has read, and what was written there."""

from collections.abc import Callable
from pathlib import Path

from cleanerd.cleaning.one_shot import clean_once
from cleanerd.cleaning.result import CleanRequest, LogResult, Progress
from cleanerd.config.load import resolve
from cleanerd.config.sources import read_sources
from cleanerd.env.clock import FixedNow, SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.format import names
from cleanerd.format.names import TopicPartition
from cleanerd.format.partition_metadata import render_partition_metadata
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.storage.metadata_log import find_metadata
from cleanerd.tools.client.producer import Producer, ProducerRecord
from cleanerd.tools.client.reader import read_records
from cleanerd.tools.client.writer import LogWriter
from tests.harness.logs.metadata import SAMPLE_ID, SKIPPED, batch, partition, topic
from tests.harness.logs.troubled import stop_broker

TP = TopicPartition("orders", 0)
DAY_MS = 86_400_000
T0_MS = SystemClock().now_ms() // 1000 * 1000
"""What is known of replicas is never younger than by the clock of the machine."""
NODE, OTHER = 2, 3
Write = Callable[[Producer], None]


class Broker:
    """The log directory of a stopped broker, and the metadata log that it has read."""

    def __init__(self, log_dir: Path, spark: LazySpark | None, *replicas: int, began_ms: int = T0_MS) -> None:
        """With a topic on these nodes. `spark`: None where the test cleans by other means."""
        self.log_dir = log_dir
        self._spark = spark
        self._offset = 0
        self._metadata = log_dir / f"{names.CLUSTER_METADATA_TOPIC}-0"
        self._metadata.mkdir(parents=True)
        voters = ", ".join(f'{{"voterId": {voter}}}' for voter in (1, 4, 5))
        (self._metadata / "quorum-state").write_text(f'{{"currentVoters": [{voters}]}}')
        if replicas:
            self.hear(began_ms, topic(TP.topic, SAMPLE_ID), partition(SAMPLE_ID, 0, replicas))

    def hear(self, at_ms: int, *frames: bytes) -> None:
        """The end of the metadata log, at this time, in a leader epoch of its own."""
        with (self._metadata / f"{0:020}.log").open("ab") as file:
            file.write(batch(self._offset, frames or [SKIPPED], leader_epoch=self._offset, at_ms=at_ms))
        self._offset += max(len(frames), 1)

    def write(self, *segments: Write, producer_id: int = -1) -> None:
        """Closed segments, and an active one with another record; then the broker stops."""
        with LogWriter(str(self.log_dir), TP.topic, TP.partition, segment_bytes=1 << 24) as log:
            producer = Producer(log, producer_id=producer_id)
            for each in segments:
                each(producer)
                log.roll()
            Producer(log).put(b"last", b"1", T0_MS)
            (self.log_dir / str(TP) / names.PARTITION_METADATA).write_bytes(
                render_partition_metadata(SAMPLE_ID)
            )
            stop_broker(self.log_dir, {TP.topic: log.log_end_offset})
        path = self.log_dir / names.META_PROPERTIES
        path.write_text(path.read_text().replace("node.id=1", f"node.id={NODE}"))

    def clean(self, now_ms: int, *, force: bool = False, assumed: frozenset[str] = frozenset()) -> LogResult:
        """One run, which remembers nothing."""
        assert self._spark is not None
        texts = [(TP.topic, "cleanup.policy", "compact")]
        metadata = find_metadata(RealFiles(), [str(self.log_dir)], "")
        found = resolve(read_sources(topic_assignments=texts), metadata)
        request = CleanRequest(
            config=found.broker, topic_config=found.topic, log_dirs=(str(self.log_dir),),
            configuration=found, force=force, assumed=assumed, horizons=True, topics=frozenset({TP.topic}),
        )  # fmt: skip
        (result,) = clean_once([request], Progress(), FixedNow(now_ms), session=self._spark)
        return result

    def keys(self) -> set[bytes | None]:
        return {record.key for record in read_records(str(self.log_dir / str(TP)))}


def values(producer: Producer) -> None:
    producer.send([ProducerRecord(b"%d" % key, b"value", T0_MS - DAY_MS) for key in range(5)])


def deletions(producer: Producer) -> None:
    producer.send([ProducerRecord(b"%d" % key, None, T0_MS - DAY_MS) for key in range(5)])


def others(producer: Producer) -> None:
    producer.send([ProducerRecord(b"other %d" % key, b"value", T0_MS) for key in range(5)])


def aborted(producer: Producer) -> None:
    producer.begin()
    producer.put(b"k", b"aborted", T0_MS - 2 * DAY_MS)
    producer.abort(T0_MS - 2 * DAY_MS)
