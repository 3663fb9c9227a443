"""A hold binds whoever finds the log directory: the one-shot, its retention, a second daemon (architecture 2)."""

import os
import shutil
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from threading import Event, Thread

import pytest

from cleanerd.config.load import resolve
from cleanerd.config.sources import read_sources
from cleanerd.daemon.parts import Parts
from cleanerd.daemon.store import HOLD, Store
from cleanerd.daemon.values.holds import Hold
from cleanerd.daemon.work.kept_holds import HISTORY, HoldsOnDisk, kept_holds
from cleanerd.env.clock import SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.errors import DirOffline
from cleanerd.format.names import CLEAN_SHUTDOWN, CLEANERD_LOCK, TopicPartition
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.storage.whose import Onlooker, Whose
from tests.harness.daemon.processes import wait_until
from tests.harness.logs.troubled import assert_cleaned, clean, contents, write_logs

DAY_MS = 86_400_000
LOG = TopicPartition("orders", 0)


class Daemon:
    """The parts of a daemon that was in these log directories; `stop` ends it."""

    def __init__(self, state_dir: Path, *log_dirs: Path) -> None:
        state_dir.mkdir(exist_ok=True)
        self.state_dir = state_dir
        self.store = Store(str(state_dir / HISTORY))
        configuration = resolve(read_sources(None))
        self.parts = Parts(
            lambda: configuration, tuple(map(str, log_dirs)), self.store, RealFiles(), SystemClock()
        )
        self.offline = self.parts.ownership.take_at_start(self.parts.log_dirs)

    def pause(self, pattern: str, ttl_ms: int | None = None) -> Hold:
        hold = Hold.new(pattern, "legal", "evidence", SystemClock().now_ms(), ttl_ms)
        assert self.store.put(HOLD, hold.id, asdict(hold))
        self.parts.states.hold(hold, 0.0)
        self.parts.ownership.name_holds()
        return hold

    def resume(self, hold: Hold) -> None:
        self.parts.states.release(hold.id)
        self.store.delete(HOLD, hold.id)
        self.parts.ownership.name_holds()

    def held(self) -> list[str]:
        return [hold.pattern for hold in self.parts.states.holds()]

    def stop(self) -> None:
        self.parts.ownership.release()
        self.store.close()


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    found = write_logs(tmp_path / "logs", "orders", "clicks")
    (found / CLEAN_SHUTDOWN).touch()  # else nothing could be rolled
    return found


@pytest.fixture
def stopped(tmp_path: Path, log_dir: Path) -> Daemon:
    """It has paused orders, and is down."""
    daemon = Daemon(tmp_path / "state", log_dir)
    daemon.pause("orders")
    daemon.stop()
    return daemon


@pytest.mark.parametrize(
    "more", [(), ("--dry-run",), ("--roll",), ("--set=log.cleanup.policy=compact,delete",)]
)
def test_a_one_shot_touches_no_held_log(
    more: tuple[str, ...], stopped: Daemon, log_dir: Path, spark: LazySpark
) -> None:
    """It finds the hold by the log directory alone; neither --now-ms nor retention goes around it."""
    before = contents(log_dir / "orders-0")
    later = SystemClock().now_ms() + DAY_MS // 2
    ran = clean(spark, log_dir, options=[f"--now-ms={later}", *more])
    assert ran.outcome("orders") == "held"
    assert contents(log_dir / "orders-0") == before
    assert "legal paused orders (evidence)" in ran.results["logs", "orders"]["reason"]
    assert str(stopped.state_dir) in ran.results["logs", "orders"]["reason"]
    assert ran.outcome("clicks") in ("committed", "planned")
    assert ran.code == 0


def test_a_hold_that_has_ended_binds_nobody(tmp_path: Path, log_dir: Path, spark: LazySpark) -> None:
    daemon = Daemon(tmp_path / "state", log_dir)
    released = daemon.pause("orders")
    daemon.pause("orders", ttl_ms=-1)
    daemon.resume(released)
    daemon.stop()
    assert_cleaned(clean(spark, log_dir), log_dir / "orders-0")


def test_a_state_that_cannot_be_read_binds_everything(
    stopped: Daemon, log_dir: Path, spark: LazySpark
) -> None:
    """Damage, a hold of another version, a volume that is not mounted: what is not known is no permission."""
    history = stopped.state_dir / HISTORY
    before = contents(log_dir / "orders-0")

    def refused() -> str:
        ran = clean(spark, log_dir)
        assert ran.code == 1
        assert contents(log_dir / "orders-0") == before
        return ran.told

    sound = history.read_bytes()
    history.write_bytes(b"x" * 5000)
    assert "the holds are not known" in refused()
    history.write_bytes(sound)
    store = Store(str(history))
    store.put(HOLD, "h", {"pattern": "orders"})
    store.close()
    assert "expected holds of this version" in refused()
    history.rename(history.with_suffix(".moved"))
    assert "mount what belongs there" in refused()
    history.with_name("history.lock").touch()  # that of a daemon, whose history somebody has moved away
    assert clean(spark, log_dir).code == 0


def test_a_lock_file_of_another_kind_binds_everything(log_dir: Path, spark: LazySpark) -> None:
    (log_dir / CLEANERD_LOCK).write_text("pid 17\n")
    ran = clean(spark, log_dir)
    assert ran.code == 1
    assert "expected cleanerd.state.dir=PATH, found 'pid 17" in ran.told
    assert (log_dir / CLEANERD_LOCK).read_text() == "pid 17\n"


def lost(stopped: Daemon) -> Path:
    """Its state: seen only by itself, in another container, or gone for good."""
    return stopped.state_dir.rename(stopped.state_dir.with_name("gone"))


def test_of_a_copy_elsewhere_nothing_is_held(stopped: Daemon, log_dir: Path, spark: LazySpark) -> None:
    """The state that its lock file names is not there: a warning says so."""
    copy = Path(shutil.copytree(log_dir, log_dir.with_name("copy")))
    lost(stopped)
    ran = clean(spark, copy)
    assert_cleaned(ran, copy / "orders-0")
    assert "no log is held" in ran.told


def test_a_hold_binds_without_the_state_that_has_it(stopped: Daemon, log_dir: Path, spark: LazySpark) -> None:
    """The lock file has it, too (rule A.7). Without that it is not known what is held."""
    lost(stopped)
    ran = clean(spark, log_dir)
    assert (ran.outcome("orders"), ran.outcome("clicks")) == ("held", "committed")
    assert f"in {log_dir}/.cleanerd.lock (to be removed if" in ran.results["logs", "orders"]["reason"]
    (log_dir / CLEANERD_LOCK).write_text(f"cleanerd.state.dir={stopped.state_dir}\n")
    ran = clean(spark, log_dir)
    assert ran.code == 1
    assert "and so they are not known; mount that directory, or remove the file" in ran.told


def test_the_state_of_another_host_at_the_same_path_says_nothing_of_these_logs(
    stopped: Daemon, tmp_path: Path, log_dir: Path, spark: LazySpark
) -> None:
    """The volume was moved to a host with a cleanerd of its own (rule A.7)."""
    lost(stopped)
    Daemon(stopped.state_dir).stop()
    assert clean(spark, log_dir).outcome("orders") == "held"
    there = Daemon(stopped.state_dir, log_dir)
    assert there.held() == ["orders"]
    there.resume(there.parts.states.holds()[0])
    there.stop()
    assert_cleaned(clean(spark, log_dir), log_dir / "orders-0")


def test_a_state_that_was_moved_is_the_same(stopped: Daemon, log_dir: Path) -> None:
    moved = Daemon(lost(stopped), log_dir)
    assert moved.held() == ["orders"]
    moved.stop()


def test_a_part_of_a_lock_file_lifts_no_hold(tmp_path: Path, log_dir: Path) -> None:
    """What a power failure leaves of one write, or of two, where the states are not there (rule A.7)."""
    states, texts = [tmp_path / "a state with a longer path", tmp_path / "state"], list[str]()
    for state, pattern in zip(states, ("orders", "clicks"), strict=True):
        daemon = Daemon(state, log_dir)
        daemon.pause(pattern)
        daemon.stop()
        shutil.rmtree(state)
        texts.append((log_dir / CLEANERD_LOCK).read_text())
    old, new = texts
    lifted = list[str]()
    for cut in range(1, len(old)):
        for found in (
            old[:cut],
            new[:cut],
            new[:cut] + old[cut:],
            old[:cut] + new[cut:],
            f"{new[:cut]:\0<999}",
        ):
            (log_dir / CLEANERD_LOCK).write_text(found)
            with suppress(DirOffline):
                if HoldsOnDisk(SystemClock(), (), lifted.append).of(str(log_dir))(LOG) is None:
                    lifted.append(found)
    assert lifted == []


@pytest.mark.parametrize("name", ["state", "second"])
def test_a_daemon_whose_state_is_new_takes_over_what_the_lock_file_has(
    name: str, stopped: Daemon, tmp_path: Path, log_dir: Path
) -> None:
    """The state was lost with its volume, and made anew at the same path or at another one (rule A.7)."""
    lost(stopped)
    daemon = Daemon(tmp_path / name, log_dir)
    assert daemon.held() == ["orders"]
    daemon.stop()
    assert [hold.pattern for hold in kept_holds(str(daemon.state_dir)) or ()] == ["orders"]


def test_a_hold_that_has_ended_does_not_come_back(tmp_path: Path, log_dir: Path) -> None:
    """Of a daemon that was killed before its lock file said so, or whose directory was away meanwhile."""
    daemon = Daemon(tmp_path / "state", log_dir)
    hold = daemon.pause("orders")
    named = (log_dir / CLEANERD_LOCK).read_text()
    daemon.resume(hold)
    (log_dir / CLEANERD_LOCK).write_text(named)
    daemon.parts.ownership.release()
    assert daemon.parts.ownership.take([str(log_dir)]) == {}
    assert daemon.held() == []
    (log_dir / CLEANERD_LOCK).write_text(named)
    daemon.stop()
    again = Daemon(tmp_path / "state", log_dir)
    assert again.held() == []
    again.stop()


def test_a_log_directory_that_hangs_keeps_no_pause_waiting(
    tmp_path: Path, log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in force before; the lock files have it once that disk works again (rule A.7)."""
    daemon, look, met, over = Daemon(tmp_path / "state", log_dir), Onlooker.look, Event(), Event()

    def hangs(onlooker: Onlooker, path: str, *, thorough: bool = False) -> Whose:
        if thorough:
            met.set()
            assert over.wait(60)
        return look(onlooker, path, thorough=thorough)

    monkeypatch.setattr(Onlooker, "look", hangs)
    monkeypatch.setattr("cleanerd.daemon.work.ownership._NAMING_S", 0.1)
    scanner = Thread(target=daemon.parts.ownership.take, args=([str(log_dir)],))
    scanner.start()
    assert met.wait(60)
    pausing = Thread(target=daemon.pause, args=("orders",))
    pausing.start()
    pausing.join(10)
    over.set()
    assert not pausing.is_alive()
    scanner.join()
    wait_until(lambda: "orders" in (log_dir / CLEANERD_LOCK).read_text(), 30)
    daemon.stop()


def test_without_a_lock_file_the_state_of_the_configuration_holds(
    stopped: Daemon, log_dir: Path, spark: LazySpark
) -> None:
    (log_dir / CLEANERD_LOCK).unlink()
    ran = clean(spark, log_dir, options=[f"--set=cleanerd.state.dir={stopped.state_dir}"])
    assert ran.outcome("orders") == "held"


def test_a_second_daemon_takes_the_holds_over(stopped: Daemon, tmp_path: Path, log_dir: Path) -> None:
    """Once, and for good: its own state has them, which the lock file names from then on. The first one has its own."""
    second = Daemon(tmp_path / "second", log_dir)
    assert second.held() == ["orders"]
    second.stop()
    assert (log_dir / CLEANERD_LOCK).read_text().startswith(f"cleanerd.state.dir={second.state_dir}\n")
    assert [hold.pattern for hold in kept_holds(str(second.state_dir)) or ()] == ["orders"]
    again = Daemon(stopped.state_dir, log_dir)
    assert again.held() == ["orders"]
    again.stop()


def test_a_second_daemon_stays_out_where_the_holds_are_not_known(
    stopped: Daemon, tmp_path: Path, log_dir: Path
) -> None:
    (stopped.state_dir / HISTORY).write_bytes(b"x" * 5000)
    second = Daemon(tmp_path / "second", log_dir)
    assert "the holds are not known" in second.offline[str(log_dir)]
    assert second.parts.ownership.take([str(log_dir)]) == second.offline, "and does not have its lock"
    assert str(stopped.state_dir) in (log_dir / CLEANERD_LOCK).read_text()
    second.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="root may read what others may not")
def test_a_state_of_another_user_binds_everything(stopped: Daemon, log_dir: Path) -> None:
    """In a process of its own, which has another user for good."""
    stopped.state_dir.chmod(0o700)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresuid(4711, 4711, 4711)
            try:
                kept_holds(str(stopped.state_dir))
            except DirOffline as error:
                code = 0 if "cannot be read" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
