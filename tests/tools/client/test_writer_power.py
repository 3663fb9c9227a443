"""A writer with `fsync` on a machine that loses power: what it said was written is there, and says the same."""

import random
from collections.abc import Iterator
from contextlib import suppress

from cleanerd.env.files import RealFiles
from cleanerd.format.names import FileKind, segment_path
from cleanerd.tools.client.producer import Producer
from cleanerd.tools.client.reader import read_records
from cleanerd.tools.client.writer import LogWriter, WriterOptions
from tests.harness.disks.simulated import SwitchedOff
from tests.simulation.disk import Disk
from tests.simulation.play import empty_disk

SEEDS = range(20)


def opened(disk: Disk) -> LogWriter:
    return LogWriter(disk.root, "t", 0, segment_bytes=10_000, options=WriterOptions(fsync=True, repair=True))


def write_aborted(writer: LogWriter) -> None:
    """A record, another one of the same key in a transaction that is aborted."""
    Producer(writer).put(b"k", b"good")
    producer = Producer(writer, producer_id=7)
    producer.begin()
    producer.put(b"k", b"bad")
    producer.abort()


def committed(disk: Disk) -> list[bytes | None]:
    found = read_records(f"{disk.root}/t-0", isolation="read_committed")
    return [record.value for record in found if record.key == b"k"]


def test_what_was_appended_to_a_new_log_outlives_a_power_cut() -> None:
    for seed in SEEDS:
        with empty_disk() as disk:
            Producer(opened(disk)).put(b"k", b"good")
            disk.power_cut(random.Random(seed))
            opened(disk)
            assert committed(disk) == [b"good"]


def test_a_transaction_index_that_was_rebuilt_is_on_stable_storage_when_its_segment_is_closed() -> None:
    """The second power cut is the one that hurts: nobody looks at a closed segment again."""
    for seed in SEEDS:
        with empty_disk() as disk:
            write_aborted(opened(disk))
            path = segment_path(f"{disk.root}/t-0", 0, FileKind.TXN_INDEX)
            RealFiles().truncate(path, 7)
            RealFiles().fsync(path)
            opened(disk).roll()
            disk.power_cut(random.Random(seed))
            opened(disk)
            assert committed(disk) == [b"good"]


def test_a_closed_segment_has_its_transaction_index_wherever_the_power_fails_in_a_roll() -> None:
    for operations in range(26):
        for seed in SEEDS[:4]:
            with empty_disk() as disk:
                writer = opened(disk)
                write_aborted(writer)
                left = iter(range(operations))

                def stop(_: str, __: str, left: Iterator[int] = left) -> None:
                    if next(left, None) is None:
                        raise SwitchedOff

                disk.before = stop
                with suppress(SwitchedOff):
                    writer.roll()
                disk.before = lambda *_: None
                disk.power_cut(random.Random(seed))
                opened(disk)
                assert committed(disk) == [b"good"]
