"""A daemon of real parts behind a real control socket, for tests of the API and of cleanerctl; no thread works by itself."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from cleanerd.daemon.api.control_server import ControlServer
from cleanerd.daemon.api.control_socket import listen
from cleanerd.daemon.api.http import Page, RequestLimits
from cleanerd.daemon.api.routes import Route
from cleanerd.daemon.api.verbs import ROUTES, clean
from cleanerd.daemon.values.log_id import LogId
from cleanerd.format.names import TopicPartition
from tests.harness.clock import RealClock
from tests.harness.daemon.world import World


class Served(World):
    """With two dirty logs, orders-0 and orders-3, and the real clock. `own`: routes beside those of the daemon."""

    topics = ("orders",)

    def __init__(
        self,
        root: Path,
        path: Path | None = None,
        *,
        own: Sequence[Route] = (),
        limits: RequestLimits | None = None,
        pages: Mapping[str, Page] | None = None,
    ) -> None:
        root.mkdir(exist_ok=True)
        super().__init__(root, RealClock())
        shutil.copytree(self.a / "orders-0", self.a / "orders-3")
        self.configure(log_cleanup_policy="compact,delete", log_retention_ms=-1)
        self.scan()
        self.path = path or root / "control.sock"
        self.own, self._limits, self._pages = own, limits, pages
        self.serve()

    def serve(self) -> None:
        """Answer on the socket."""
        self.server = ControlServer(
            listen(str(self.path), os.environ),
            self.control,
            (*ROUTES, *self.own),
            own_uid=os.geteuid(),
            limits=self._limits,
            pages=self._pages,
        )
        self.server.start()

    def order(self, number: int) -> LogId:
        """One of the logs."""
        return LogId(str(self.a), TopicPartition("orders", number))

    def job(self, pattern: str = "orders-3") -> str:
        """Id of a job that was asked for, and is done."""
        (view,) = clean.clean(self.control, pattern)
        (job,) = self.parts.jobs.requested()
        self.parts.jobs.end(job, ["committed"], None)
        return view.id

    def clean_up_to(self, offset: int) -> None:
        """As if a cleaning had come that far."""
        (self.a / "cleaner-offset-checkpoint").write_text(f"0\n2\norders 0 {offset}\norders 3 {offset}\n")
        self.scan()

    def audit(self) -> list[tuple[str, str | None]]:
        """Requests for a change: outcome and words, the oldest first."""
        found = self.parts.store.events(None, 100, None, ("control",))
        return [(event.outcome, event.reason) for event in reversed(found)]

    def close(self) -> None:
        """Nobody answers any more."""
        self.server.stop(1.0)
        super().close()
