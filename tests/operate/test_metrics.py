"""Every metric moves when what it counts happens, and only then; how they are served."""

import shutil
import socket
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from cleanerd.broker_agent.swap import Swapped
from cleanerd.cleaning.outcomes import Failed
from cleanerd.cleaning.result import LogResult, Statistics
from cleanerd.daemon.api.http import Answer, Page
from cleanerd.daemon.api.metrics_server import MetricsServer, pages
from cleanerd.daemon.api.verbs import throttle
from cleanerd.daemon.configuration.reload import ReloadStatus
from cleanerd.daemon.engine.client import EngineDied
from cleanerd.daemon.reports import scraped_metrics
from cleanerd.daemon.telemetry import metric_table as table
from cleanerd.daemon.telemetry.metric_table import METRICS, Metric, MetricKind
from cleanerd.daemon.telemetry.metrics import Metrics, cause_of
from cleanerd.daemon.values.holds import Hold
from cleanerd.daemon.values.models import ThrottleChange
from cleanerd.env.clock import SystemClock
from cleanerd.errors import (
    BadConfiguration,
    CorruptFile,
    DirOffline,
    Fatal,
    LogUncleanable,
    NoSpace,
    SourceChanged,
)
from cleanerd.pipeline.rewrite import VerificationFailed
from cleanerd.policy.pace import FLOOR_BYTES_PER_S
from cleanerd.policy.verdicts import RecordVerdict
from cleanerd.spark_runtime.lazy_spark import SparkFailed
from tests.daemon.test_beside_broker import stage
from tests.daemon.test_pacer import Paced
from tests.harness.daemon.processes import wait_until
from tests.harness.daemon.scrape import get, has_moved, parse, serving
from tests.harness.daemon.world import World
from tests.harness.logs.troubled import lock_of_another, segment
from tests.operate.story import MOVED_BY_STORY

CANNOT_MOVE = {
    table.BUILD_INFO: "the version of a process is what it is",
    table.DIR_BYTES: "that would take resizing a file system",
}


@pytest.fixture(autouse=True)
def moved(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Those that a test says that it moves."""
    marker = request.node.get_closest_marker("moves")
    if marker is None:
        yield
        return
    monkeypatch.setattr(scraped_metrics, "_PARTITIONS_MAX", 1)
    world: World = request.getfixturevalue("world")
    before = world.scrape()
    yield
    after = world.scrape()
    assert [metric.name for metric in marker.args if not has_moved(metric, before, after)] == []


# -- what moves what ------------------------------------------------------------------------------------------------


@pytest.mark.moves(
    table.SCANS, table.LAST_SCAN, table.PHASE_SECONDS, table.LOG_BYTES, table.PARTITIONS, table.CLEANABLE_BYTES,
    table.FREE_BYTES,
)  # fmt: skip
def test_a_log_appears_and_is_found_by_a_scan(world: World) -> None:
    before = world.scrape()
    world.clock.advance(7000)
    world.add("four")
    (world.b / "ballast").write_bytes(bytes(1 << 20))
    world.scan()
    after = world.scrape()
    a, b = str(world.a), str(world.b)
    assert after.total("cleanerd_scans_total", log_dir=b, outcome="ok") == 2
    assert (
        after.total("cleanerd_last_scan_timestamp_seconds", log_dir=a)
        == before.total("cleanerd_last_scan_timestamp_seconds", log_dir=a) + 7
    )
    assert after.total("cleanerd_partitions", log_dir=a, state="dirty") == 4
    assert after.total("cleanerd_partitions", log_dir=b) == 0
    sizes = {path: path.stat().st_size for path in world.a.glob("*/*.log")}
    active = {segment(world.a / name, -1) for name in ("one-0", "two-0", "three-0", "four-0")}
    closed = {path: size for path, size in sizes.items() if path not in active}
    assert after.total("cleanerd_log_bytes", log_dir=a) == sum(sizes.values())
    assert after.total("cleanerd_cleanable_bytes", log_dir=a) == sum(closed.values())
    assert after.total("cleanerd_largest_cleaning_bytes", log_dir=a) == sum(closed.values()) / 4
    assert after.total("cleanerd_max_dirty_ratio", log_dir=a) == 1


@pytest.mark.moves(table.MAX_DELAY)
def test_max_compaction_lag_passes(world: World) -> None:
    """Rule 1.18: for how long."""
    world.configure(log_cleaner_max_compaction_lag_ms=world.clock.now_ms() - 1000 + 5000)
    assert world.scrape().total("cleanerd_max_compaction_delay_seconds") == 0
    world.clock.advance(65_000)
    delay_s = world.scrape().total("cleanerd_max_compaction_delay_seconds", log_dir=str(world.a))
    assert delay_s == pytest.approx(60, abs=0.01)


@pytest.mark.moves(table.MAX_DIRTY_RATIO, table.CLEANABLE_BYTES)
def test_checkpoints_move(world: World) -> None:
    """The upper bound falls when a cleaning, here of nobody, has moved the first dirty offset."""
    ends = [f"{name} 0 {int(segment(world.a / f'{name}-0', -1).stem)}" for name in ("one", "two", "three")]
    (world.a / "cleaner-offset-checkpoint").write_text("\n".join(["0", "3", *ends, ""]))
    world.scan()
    after = world.scrape()
    assert after.total("cleanerd_max_dirty_ratio") == 0
    assert after.total("cleanerd_partitions", log_dir=str(world.a), state="clean") == 3


@pytest.mark.moves(table.KEEPING)
def test_tombstones_stay_in_a_log(world: World) -> None:
    world.parts.due_logs.note_tombstones(world.log("one"), "replica 3 is not in sync")
    assert world.scrape().total("cleanerd_logs_keeping_tombstones", log_dir=str(world.a)) == 1
    world.parts.due_logs.note_tombstones(world.log("one"), None)
    assert world.scrape().total("cleanerd_logs_keeping_tombstones") == 0
    world.parts.due_logs.note_tombstones(world.log("two"), "replica 3 is not in sync")


@pytest.mark.moves(table.LOG_DIR_ONLINE, table.PARTITIONS, table.SCANS)
def test_a_log_directory_goes_offline(world: World) -> None:
    world.a.rename(world.root / "away")
    world.scan()
    after, a = world.scrape(), str(world.a)
    assert after.total("cleanerd_log_dir_online", log_dir=a) == 0
    assert after.total("cleanerd_log_dir_online") == 1
    assert after.total("cleanerd_partitions", log_dir=a, state="offline") == 3
    assert after.total("cleanerd_scans_total", log_dir=a, outcome="offline") == 1
    assert not after.of("cleanerd_log_dir_free_bytes", log_dir=a), "nobody knows"


@pytest.mark.moves(table.STAGED_RESULTS, table.STAGED_FREED, table.STAGED_SINCE, table.STAGED_WASTED)
def test_a_result_waits_and_is_dropped(world: World) -> None:
    """More of it in `test_beside_broker`."""
    stage(world, segment(world.a / "one-0", 0), 100)
    world.scan()
    (log,) = world.parts.states.try_start_all([world.log("one")])
    world.parts.commits.record(log, SourceChanged("stale"))
    assert world.scrape().total("cleanerd_staged_results", log_dir=str(world.a)) == 1


@pytest.mark.moves(table.UNREADABLE)
def test_a_partition_directory_cannot_be_read(world: World) -> None:
    (world.a / "linked-0").symlink_to(world.a / "one-0")
    world.scan()
    assert world.scrape().total("cleanerd_unreadable_partitions", log_dir=str(world.a)) == 1


@pytest.mark.moves(table.RECOVERIES)
def test_leftovers_of_a_crash_are_mended(world: World) -> None:
    """One commit that had not reached its point of no return, one staged file that belongs to nothing."""
    one, two = segment(world.a / "one-0", 1), segment(world.a / "two-0", 1)
    shutil.copy(one, one.with_name(one.name + ".cleaned"))
    two.with_name(two.name + ".cleanerd").write_bytes(b"half")
    world.parts.ownership.release()  # as another process, which recovers what it takes
    world.scan()
    found = {dict(key)["action"]: n for (_, key), n in world.scrape().of("cleanerd_recoveries_total") if n}
    assert found == {"roll_back": 1, "delete_leftover": 1}


@pytest.mark.moves(table.RETENTION_SEGMENTS, table.RECLAIMED_BYTES, table.LOG_BYTES, table.LARGEST_BYTES)
def test_retention_takes_segments(world: World) -> None:
    before = world.scrape().total("cleanerd_log_bytes")
    world.configure(log_cleanup_policy="delete", log_retention_ms=1)
    world.parts.retention.run([world.log("one")])
    world.scan()
    after = world.scrape()
    gone = [path.stat().st_size for path in world.a.glob("one-0/*.log.deleted")]
    assert after.total("cleanerd_retention_segments_total", log_dir=str(world.a)) == len(gone) > 0
    assert after.total("cleanerd_reclaimed_bytes_total", by="retention") == sum(gone)
    assert after.total("cleanerd_reclaimed_bytes_total", by="compaction") == 0
    assert before - after.total("cleanerd_log_bytes") == sum(gone)
    assert after.total("cleanerd_partitions", state="retained") == 3, "retention only"


@pytest.mark.moves(table.RETENTION_ERRORS)
def test_a_retention_pass_fails(world: World) -> None:
    world.configure(log_cleanup_policy="delete", log_retention_ms=1)
    shutil.rmtree(world.a / "one-0")
    (world.a / "one-0").write_text("not a directory")
    world.parts.retention.run([world.log("one"), world.log("two")])
    after = world.scrape()
    assert after.total("cleanerd_retention_errors_total", log_dir=str(world.a)) == 1
    assert after.total("cleanerd_retention_segments_total", log_dir=str(world.a)) > 0, "the other went on"


@pytest.mark.moves(table.PAUSED, table.PARTITIONS)
def test_everything_is_paused(world: World) -> None:
    world.parts.states.hold(Hold("1", "one", "me", "because", 0))
    some = world.scrape()
    assert (some.total("cleanerd_paused"), some.total("cleanerd_partitions", state="paused")) == (0, 1)
    world.parts.states.hold(Hold("2", "*", "me", "because", 0))
    assert world.scrape().total("cleanerd_partitions", state="paused") == 3


@pytest.mark.moves(table.CONFIG_OK, table.CONFIG_RELOADS)
def test_a_reload_is_refused(world: World) -> None:
    assert world.configure(log_cleaner_threads=0).status is ReloadStatus.REJECTED


@pytest.mark.moves(table.CONFIG_OK_AT, table.CONFIG_RELOADS, table.DEDUPE_BYTES, table.IO_LIMIT)
def test_a_reload_is_accepted(world: World) -> None:
    world.clock.advance(5000)
    changes = {"log_cleaner_dedupe_buffer_size": 10_000_000, "cleanerd_io_max_write_bytes_per_second": 7e6}
    assert world.configure(**changes).status is ReloadStatus.ACCEPTED
    after = world.scrape()
    assert after.total("cleanerd_dedupe_buffer_bytes") == 9_000_000
    limits = {dict(key)["limit"]: rate for (_, key), rate in after.of("cleanerd_io_limit_bytes_per_second")}
    assert limits == dict.fromkeys(("total", "read", "request_queue"), float("inf")) | {"write": 7e6}
    assert world.configure().status is ReloadStatus.UNCHANGED
    outcomes = {dict(key)["outcome"]: n for (_, key), n in world.scrape().of("cleanerd_config_reloads_total")}
    assert outcomes == {"accepted": 1, "unchanged": 1, "rejected": 0}


@pytest.mark.moves(table.IO_LIMIT)
def test_an_operator_throttles(world: World) -> None:
    throttle.set_throttle(world.control, ThrottleChange(io_bytes_per_s=5e6))
    assert world.scrape().total("cleanerd_io_limit_bytes_per_second", limit="total") == 5e6


@pytest.mark.moves(table.DEADLINE_MISSES)
def test_more_becomes_due_than_can_be_done(world: World) -> None:
    """Three logs become due together for one worker, which a limit makes slow: those that wait are late."""
    world.configure(log_cleaner_max_compaction_lag_ms=world.clock.now_ms() - 1000 + 5000)
    assert world.scrape().total("cleanerd_deadline_misses_predicted") == 0
    throttle.set_throttle(world.control, ThrottleChange(io_bytes_per_s=2))
    assert world.scrape().total("cleanerd_deadline_misses_predicted") == 2


@pytest.mark.moves(table.IO_LIMIT)
def test_requests_wait_in_the_brokers_queue(world: World) -> None:
    """Its agent reports that: the limit that follows it falls."""
    with Paced(world) as paced:
        paced.steps(3, wait_ms=50)
        after = world.scrape()
    assert after.total("cleanerd_io_limit_bytes_per_second", limit="request_queue") == FLOOR_BYTES_PER_S


@pytest.mark.moves(table.HISTORY_LOST)
def test_the_history_cannot_be_written(world: World) -> None:
    with sqlite3.connect(world.root / "history.sqlite", isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        world.parts.events.record("daemon", "tested")
    other.close()
    assert world.scrape().total("cleanerd_history_lost_events_total") == 1


@pytest.mark.moves(table.READY, table.WORKERS, table.THREAD_DEATHS)
def test_a_worker_dies_and_lives_again(world: World) -> None:
    """7.16: Kafka's stay dead."""
    failed = threading.Event()

    def fail() -> None:
        if not failed.is_set():
            failed.set()
            raise ZeroDivisionError("as in a bug")

    world.parts.schedule.next = fail  # type: ignore[method-assign]
    world.daemon.start()
    wait_until(lambda: world.scrape().total("cleanerd_workers", state="dead") == 1, 10)
    assert world.scrape().total("cleanerd_thread_deaths_total") == 1
    assert world.scrape().total("cleanerd_workers") == 2, "one, and the one for reserved topics"


def test_a_log_that_can_no_longer_be_read_counts_as_it_was_seen_last(world: World) -> None:
    """`cleanerd_uncleanable_bytes` and its alert are about just such logs."""
    dirty = world.scrape().total("cleanerd_cleanable_bytes", log_dir=str(world.a))
    directory = Path(world.log("one").directory)
    directory.rename(world.root / "elsewhere")
    directory.symlink_to(world.root / "elsewhere")
    world.parts.inventory.touch(str(world.a), directory.name)
    world.scan()
    after = world.scrape()
    assert after.total("cleanerd_uncleanable_bytes", log_dir=str(world.a)) == dirty / len(world.topics)


@pytest.mark.moves(table.PARTITION_RATIO, table.PARTITION_BYTES, table.PARTITIONS_DROPPED)
def test_somebody_asks_for_partitions(world: World) -> None:
    """No more of them than `_PARTITIONS_MAX`."""
    world.configure(cleanerd_metrics_per_partition_topics="t*,nothing")
    after = world.scrape()
    assert {dict(key)["topic"] for (_, key), _ in after.of("cleanerd_partition_dirty_ratio")} == {"three"}
    assert after.total("cleanerd_partition_dirty_ratio", topic="three", partition="0") == 1
    assert len(after.of("cleanerd_partition_dirty_bytes")) == 1
    assert after.total("cleanerd_partition_metrics_dropped") == 1, "two"
    assert not after.has(table.PARTITION_CLEANED), "never since the start"


@pytest.mark.moves(table.SWAPS, table.SWAP_REFUSALS, table.SWAP_SECONDS, table.RESULTS_WAIT)
def test_a_broker_swaps_and_another_one_cannot_be_asked(world: World) -> None:
    world.configure(cleanerd_commit_live="auto")
    world.others.enter_context(lock_of_another(world.b / ".lock"))
    world.scan()
    for outcome in ("swapped", "changed"):
        answer = Swapped(outcome, "leader_epochs", "", (0.004,), "", has_cleaner=True)
        world.parts.metrics.asked_to_swap(str(world.a), answer)


@pytest.mark.moves(table.LEASES_GIVEN_BACK)
def test_a_muted_log_was_due_before_the_daemon_started(world: World) -> None:
    world.parts.lease_duty.to_lease([world.log("one")])


def test_every_metric_moves_in_some_test() -> None:
    marks = [mark for test in globals().values() for mark in getattr(test, "pytestmark", ())]
    moved = {metric for mark in marks if mark.name == "moves" for metric in mark.args} | set(MOVED_BY_STORY)
    assert {metric.name for metric in METRICS} == {metric.name for metric in moved | CANNOT_MOVE.keys()}
    assert not moved & CANNOT_MOVE.keys()


def test_what_cannot_move_is_right(world: World) -> None:
    scrape, stat = world.scrape(), shutil.disk_usage(world.a)
    assert scrape.total("cleanerd_log_dir_capacity_bytes", log_dir=str(world.a)) == stat.total
    assert len(scrape.of("cleanerd_build_info")) == 1


def test_an_idle_world_moves_nothing_that_counts(world: World) -> None:
    before, after = world.scrape(), world.scrape()
    ours = {key: value for key, value in before.counters().items() if key[0].startswith("cleanerd_")}
    assert {key: after.samples[key] for key in ours} == ours


@pytest.mark.trap("metrics that are lost when threads are reconfigured")
def test_counters_outlive_a_reload_that_changes_the_number_of_threads(world: World) -> None:
    """C149: Kafka's cleaner loses its metrics there."""
    world.configure(log_cleaner_min_cleanable_ratio=1)  # nothing is due
    world.daemon.start()
    metrics = world.parts.metrics
    metrics.moved(str(world.a), "index", 123, 0)
    before = world.scrape()
    assert world.configure(log_cleaner_threads=2).status is ReloadStatus.ACCEPTED
    wait_until(lambda: world.scrape().total("cleanerd_workers") == 3, 10)
    assert world.configure(log_cleaner_threads=0).status is ReloadStatus.REJECTED
    after = world.scrape()
    assert after.total("cleanerd_read_bytes_total", phase="index") == 123
    assert [key for key, value in before.counters().items() if after.samples[key] < value] == []
    assert before.samples.keys() <= after.samples.keys(), "no series goes"
    assert after.total("cleanerd_max_compaction_delay_seconds") == 0, "nothing is due"


# -- what they say agrees with what others say ------------------------------------------------------------------------


def test_states_are_those_of_the_control_api(world: World) -> None:
    """Whatever the combination: a hold, a policy, a stranger, a failed log, one in progress."""
    world.add("four", "five", "six", "seven")
    world.configure(log_cleaner_min_compaction_lag_ms=0)
    world.scan()
    parts = world.parts
    parts.states.try_start_all([world.log("two")])
    parts.states.hold(Hold("1", "three", "me", "because", 0))
    (world.a / "five-0" / f"{0:020d}.manifest.cleanerd").write_text("{}")
    parts.states.try_start_all([world.log("six")])
    parts.states.stop(world.log("six"), "the test")
    world.scan()
    parts.obstacles.ignored[world.log("four")] = "foreign"
    parts.obstacles.ignored[world.log("two")] = "foreign"
    views = Counter(one.state for _, one in parts.conditions.all(parts.inventory.logs()))
    found = {dict(key)["state"]: int(n) for (_, key), n in world.scrape().of("cleanerd_partitions") if n}
    assert found == dict(views)
    assert set(found) == {"dirty", "paused", "ignored", "staged", "aborted"}


def test_vocabulary_is_that_of_the_code() -> None:
    """Values of labels that are named beforehand: of verdicts and errors."""
    assert set(table.RECORDS_REMOVED.values["reason"]) == {v.reason for v in RecordVerdict if v}
    ours = (CorruptFile, DirOffline, EngineDied, Fatal, LogUncleanable, NoSpace, SourceChanged)
    errors = (*ours, SparkFailed, VerificationFailed)
    assert {cause_of(error.__name__) for error in errors} == set(table.CAUSES) - {"other"}
    assert cause_of("Surprise") == cause_of(None) == "other"


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_are_as_prometheus_wants_them(metric: Metric) -> None:
    assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
    assert set(metric.values) <= set(metric.labels)
    assert metric.name.startswith("cleanerd_")


# -- cost -----------------------------------------------------------------------------------------------------------


def test_number_of_series_does_not_depend_on_the_number_of_partitions(tmp_path: Path) -> None:
    world = World(tmp_path)
    before = world.scrape()
    world.add(*(f"more{number}" for number in range(20)))
    world.scan()
    after = world.scrape()
    world.close()
    assert after.samples.keys() == before.samples.keys()
    assert not [key for key in after.samples if key[0].endswith("_created")]
    assert after.total("process_resident_memory_bytes") > 0


# -- over HTTP ------------------------------------------------------------------------------------------------------


def daemon_pages(unlike: str = "") -> Mapping[str, Page]:
    """Of a daemon that is well and ready; `unlike`: but for this."""
    metrics = Metrics(["/logs"], SystemClock())
    return pages(metrics, lambda: "it hangs" if unlike == "alive" else None, lambda: unlike != "ready")


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0", "localhost:0"])
def test_any_form_of_address_is_served(listen: str) -> None:
    with serving(daemon_pages(), listen) as address:
        assert address.rpartition(":")[0] in ("127.0.0.1", "[::1]")
        status, content_type, text = get(address)
        assert (status, content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert parse(text).of("cleanerd_scans_total", log_dir="/logs")


def test_openmetrics_with_exemplars_for_who_asks_for_it(world: World) -> None:
    parts, job = world.parts, world.parts.jobs.start("schedule", [world.log("one")])
    log, took = world.log("one"), Statistics(seconds=3.2)
    parts.metrics.cleaned(
        job.id, log, LogResult(log.topic_partition, log.log_dir, Failed("why"), statistics=took)
    )
    body, content_type = parts.metrics.page("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert body.endswith(b"# EOF\n")
    assert f'# {{job_id="{job.id}"}} 3.2' in body.decode()


@pytest.mark.parametrize(("path", "name"), [("/healthz", "alive"), ("/readyz", "ready")])
def test_health_and_readiness(path: str, name: str) -> None:
    with serving(daemon_pages()) as address:
        assert get(address, path)[::2] == (200, f"{name}\n")
    with serving(daemon_pages(unlike=name)) as address:
        assert get(address, path)[0] == 503


def test_other_paths_are_not_found_and_other_methods_refused() -> None:
    with serving(daemon_pages()) as address:
        assert get(address, "/")[0] == 404
        host, port = address.split(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 405")


def test_an_address_in_use_is_told_with_its_key() -> None:
    with (
        serving(daemon_pages()) as address,
        pytest.raises(BadConfiguration, match=r"cleanerd\.metrics\.listen: cannot listen on"),
    ):
        MetricsServer(address, {})


def test_a_page_that_fails_is_a_500_and_the_next_is_served() -> None:
    def fail(_: str) -> Answer:
        raise ZeroDivisionError

    with serving({"/bad": fail, "/good": lambda _: Answer(b"good")}) as address:
        assert get(address, "/bad")[0] == 500
        assert get(address, "/good")[::2] == (200, "good")


def test_400_half_open_connections_keep_nobody_from_scraping() -> None:
    """The one that has been silent for longest makes room, so the latest scrape is always heard."""
    with serving(daemon_pages()) as address, ExitStack() as half_open:
        host, port = address.split(":")
        for _ in range(400):
            client = half_open.enter_context(socket.create_connection((host, int(port))))
            client.sendall(b"GET /metrics HTTP/1.1\r\n")
        began = time.monotonic()
        assert get(address)[0] == 200
        assert time.monotonic() - began < 5  # else one would wait for `RequestLimits.request_s`
