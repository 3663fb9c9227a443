"""The process around the supervisor: signals, configuration, control socket, exit code.

=======  ==========================================================================
signal   what it does
=======  ==========================================================================
TERM     stop; every cleaning is aborted, nothing is half committed
INT      the same
TERM or INT again   leave at once; the next start recovers what was interrupted
HUP      reload; the service manager is notified when it begins and ends (`notify`)
USR1     stacks of all threads to stderr
=======  ==========================================================================
"""

import contextlib
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType

import structlog

from cleanerd import __version__
from cleanerd.broker_agent.brokers import LiveBrokers
from cleanerd.config.load import Configuration
from cleanerd.config.model import CleanerdConfig, ClusterMetadata
from cleanerd.config.reload import ReloadPlan
from cleanerd.daemon.api.control import Control
from cleanerd.daemon.api.control_server import ControlServer
from cleanerd.daemon.api.control_socket import listen
from cleanerd.daemon.api.metrics_server import MetricsServer, pages
from cleanerd.daemon.api.status_page import StatusPage, landing_page
from cleanerd.daemon.api.verbs import ROUTES
from cleanerd.daemon.configuration.reload import Reloader, ReloadStatus, ReloadTrigger
from cleanerd.daemon.configuration.watch import ConfigWatcher
from cleanerd.daemon.notify import ServiceManager
from cleanerd.daemon.parts import Parts
from cleanerd.daemon.store import Store
from cleanerd.daemon.telemetry import log_setup as logs
from cleanerd.daemon.work.kept_holds import HISTORY, STATE_LOCK
from cleanerd.daemon.work.topic_answers import ClusterChanges, TopicAnswers
from cleanerd.env.clock import Clock, SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.env.host import user_name
from cleanerd.errors import BadConfiguration, DirOffline, Fatal, LockHeld
from cleanerd.format.names import CLUSTER_METADATA_TOPIC
from cleanerd.storage.lock import LogDirLock, stop_between_holds
from cleanerd.storage.metadata_tail import MetadataTail

_log = structlog.get_logger("cleanerd")
_LEFT_AT_ONCE = 130
_CUT_OFF = 1
_HUNG_S = 600.0
"""A worker that reports nothing for so long hangs: no slow fsync or scan of a large disk takes that long."""
_STOP_MARGIN_S = 15.0
"""What a stop may need beside cleanerd.shutdown.timeout.ms: the engine, the keepers, open requests."""


class Daemon:
    """`cleanerd run`. `load` reads the whole configuration again, `read_metadata` the metadata log alone."""

    def __init__(
        self,
        configuration: Configuration,
        log_dirs: tuple[str, ...],
        config_file: str | None,
        load: Callable[[], Configuration],
        read_metadata: Callable[[], ClusterMetadata | None],
    ) -> None:
        config, clock = configuration.broker, SystemClock()
        logs.configure(config.log_format, config.log_level)
        self._warned: set[str] = set()
        self._warn(configuration.warnings)
        sys.excepthook = _report_unexpected
        self._manager = ServiceManager(os.environ, os.getpid(), clock)
        self._stopping = threading.Event()
        self._reload_wanted = threading.Event()
        _take_state(config.state_dir)
        self._history = Store(os.path.join(config.state_dir, HISTORY))
        self._answers = TopicAnswers(self._history, RealFiles(), clock, log_dirs)
        self._reloader = Reloader(
            self._first(configuration, clock),
            lambda: self._whole(load()),
            lambda: read_metadata() or self._answers.held,
            self._apply,
            clock,
        )
        self._parts = Parts(
            lambda: self._reloader.current,
            log_dirs,
            self._history,
            RealFiles(),
            clock,
            recovering=self._manager.extend_timeout,
            refresh=self._refresh,
        )
        self._supervisor = self._parts.supervisor()
        self._control = Control(self._parts, self._supervisor, self._reloader)
        self._parts.metrics.read_with(self._control.scraped.read)
        roots = dict.fromkeys([configuration.broker.metadata_log_dir, *log_dirs])
        self._cluster_changes = ClusterChanges(
            MetadataTail(RealFiles(), [f"{path}/{CLUSTER_METADATA_TOPIC}-0" for path in roots]),
            self._answers,
            self._parts.brokers,
            self._parts.configuration,
            partial(self._reload, ReloadTrigger.METADATA),
        )
        reload_files = partial(self._reload, ReloadTrigger.FILES)
        self._watcher = ConfigWatcher(config_file, self._cluster_changes.take_in, reload_files, clock=clock)

    def _first(self, configuration: Configuration, clock: Clock) -> Configuration:
        """The configuration at the start; asks a broker if there is no metadata log."""
        if configuration.metadata is None:
            config = configuration.broker
            with contextlib.closing(LiveBrokers(RealFiles(), clock, lambda: config)) as brokers:
                self._answers.ask(brokers)
        try:
            return self._whole(configuration)
        except BadConfiguration as error:  # by the broker's answer: once asked again, a reload is refused
            _log.warning("configuration_warning", reason=str(error))
            return configuration

    def _whole(self, configuration: Configuration) -> Configuration:
        """The configuration, with the topics that a broker has answered if there is no metadata log."""
        if configuration.metadata is None:
            configuration = configuration.with_metadata(self._answers.held)
        return configuration

    def run(self) -> int:
        """Run until a signal to stop; the exit code. Raises Fatal when it cannot start."""
        faulthandler.register(signal.SIGUSR1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        stop_between_holds()
        signal.signal(signal.SIGHUP, lambda *_: self._reload_wanted.set())
        config = self._reloader.current.broker
        # Before ports and sockets: the error of a second daemon names the first one, not a port that is taken.
        self._parts.ownership.take_at_start(self._parts.log_dirs)
        server, metrics = self._servers(config)
        server.start()
        if metrics is not None:
            metrics.start()
        try:
            self._supervisor.start()
        except BaseException:
            server.stop(0)
            raise
        self._watcher.start()
        _log.info("ready", version=__version__, pid=os.getpid(), control_socket=config.control_socket)
        self._manager.ready(self._control.status_line.text())
        self._wait()
        _log.info("stopping")
        self._manager.stopping(self._reloader.current.broker.shutdown_timeout_ms / 1000 + _STOP_MARGIN_S)
        self._watcher.stop()
        is_drained = self._supervisor.stop()
        server.stop(1.0)
        if metrics is not None:
            metrics.stop()
        _log.info("stopped", drained=is_drained)
        return 0 if is_drained else _CUT_OFF

    def _servers(self, config: CleanerdConfig) -> tuple[ControlServer, MetricsServer | None]:
        """Open the control socket and the metrics port; neither is served yet. Raises Fatal."""
        parts = self._parts
        served = pages(parts.metrics, lambda: self._supervisor.trouble(_HUNG_S), lambda: parts.life.is_ready)
        status = StatusPage(self._control).by_path() if config.page else {"/": landing_page}
        on_port = {**served, **status}
        metrics = MetricsServer(config.metrics_listen, on_port) if config.metrics_listen else None
        server = ControlServer(
            listen(config.control_socket, os.environ),
            self._control,
            ROUTES,
            pages=served,
            own_uid=os.geteuid(),
        )
        return server, metrics

    def _wait(self) -> None:
        while not self._stopping.is_set():
            if self._reload_wanted.wait(0.5):
                self._reload_wanted.clear()
                self._manager.reloading()
                self._reload(ReloadTrigger.SIGNAL)
                self._manager.ready(self._control.status_line.text())
            self._manager.keep_watch(is_alive=self._supervisor.is_alive(_HUNG_S))
            if self._manager.listens:
                self._manager.status(self._control.status_line.text())

    def _on_stop(self, *_: object) -> None:
        if self._stopping.is_set():
            os._exit(_LEFT_AT_ONCE)
        self._stopping.set()

    def _apply(self, plan: ReloadPlan) -> None:
        logs.configure(plan.new.broker.log_format, plan.new.broker.log_level)
        self._supervisor.apply(plan)

    def _refresh(self, *, with_files: bool = False) -> bool:
        """Take in the cluster's changes since the last look: before a commit, ahead of the watcher.

        False while they cannot be read or were rejected; `with_files`, also while the content of the files was.
        """
        return self._cluster_changes.take_in(quickly=True) and not (with_files and self._reloader.is_rejected)

    def _reload(self, trigger: ReloadTrigger) -> bool:
        """Reload the configuration, and log its warnings; False if it was rejected."""
        outcome = self._control.reload(trigger)
        self._warn(self._reloader.current.warnings)
        return outcome.status is not ReloadStatus.REJECTED

    def _warn(self, texts: Iterable[str]) -> None:
        """Log each of these warnings once in the life of the daemon."""
        for text in texts:
            if text not in self._warned:
                self._warned.add(text)
                _log.warning("configuration_warning", reason=text)


def _take_state(state_dir: str) -> None:
    """Make the state directory where there is none, and take it for this process until it ends. Raises Fatal."""
    lock = LogDirLock(state_dir, STATE_LOCK)
    try:
        os.makedirs(state_dir, mode=0o750, exist_ok=True)
    except OSError as error:
        raise Fatal(
            f"{state_dir}: cannot keep state there: {error.strerror}; set cleanerd.state.dir to a directory that "
            f"{user_name() or f'user {os.geteuid()}'} may write"
        ) from error
    try:
        with contextlib.suppress(DirOffline):  # where nothing can be written, the history decides
            lock.__enter__()
    except LockHeld as held:
        raise Fatal(
            f"{state_dir}: another cleanerd keeps its state there (process {held.pid or 'unknown'}); each needs a "
            "cleanerd.state.dir of its own"
        ) from held


def _report_unexpected(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """`sys.excepthook`: an error that ended the work on one log is a log line like any other."""
    _log.error("internal_error", exc_info=(kind, error, trace))
