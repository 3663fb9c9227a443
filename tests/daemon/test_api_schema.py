"""The control API does what its OpenAPI document says: requests made from it, right and wrong ones (schemathesis)."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error

from cleanerd.daemon.api.openapi import document
from cleanerd.daemon.api.verbs import ROUTES
from tests.harness.daemon.served import Served

pytestmark = pytest.mark.soak

API = schemathesis.openapi.from_dict(document(ROUTES))


class Bridge:
    """A port on loopback that leads to a unix socket: the generator speaks to ports only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """No more connections."""
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self._path))
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=_pass_on, args=ends, daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the API of a small daemon answers."""
    served = Served(tmp_path_factory.mktemp("api"))
    served.parts.life.stopping.set()  # what would be waited for is not
    bridge = Bridge(served.path)
    yield bridge.url
    bridge.close()
    served.close()


@API.parametrize()
@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_the_api_is_as_its_document_says(case: Any, url: str) -> None:
    """What fits is not refused as wrong, what does not fit is; no answer but those described, and no error inside."""
    response = case.call(base_url=url)
    if response.status_code == 400 and "is out of range" in response.text:
        return  # which no schema can say: it depends on the log
    case.validate_response(response, excluded_checks=[not_a_server_error])  # 503 and 504 are answers
    assert response.status_code != 500
