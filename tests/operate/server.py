"""A real Prometheus, and what Grafana would ask it."""

import json
import re
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.harness.daemon.processes import wait_until
from tests.harness.programs import ROOT, need

RULES = ROOT / "etc/prometheus/cleanerd.rules.yml"
DASHBOARD = ROOT / "etc/grafana/cleanerd.json"
EVERY_S = 0.5
_VARIABLES = {"$instance": ".+", "$log_dir": ".+", "$__rate_interval": "15s"}
_CONFIG = """
global: {{scrape_interval: {every}, evaluation_interval: {every}}}
rule_files: [{rules}]
scrape_configs: [{{job_name: cleanerd, static_configs: [{{targets: ['{target}']}}]}}]
"""


class Prometheus:
    """The HTTP API of a server."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.began_s = time.time()  # noqa: TID251  # of the queries

    def instant(self, query: str) -> list[dict[str, Any]]:
        return list(self._api("query", query=query)["result"])

    def values(self, query: str) -> dict[str, float]:
        """The last number that each series of a query had since the server started; those that are no number left out."""
        now_s = time.time()  # noqa: TID251  # of the queries
        found = self._api("query_range", query=query, start=self.began_s, end=now_s, step=1)["result"]
        last: dict[str, float] = {}
        for series in found:
            numbers = [float(value) for _, value in series["values"] if value != "NaN"]
            if numbers:
                last[json.dumps(series["metric"], sort_keys=True)] = numbers[-1]
        return last

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self._api("rules")["groups"] for rule in group["rules"]]

    def targets(self) -> list[dict[str, Any]]:
        return list(self._api("targets")["activeTargets"])

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _api(self, what: str, **parameters: object) -> dict[str, Any]:
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"http://{self.address}/api/v1/{what}?{query}", timeout=20) as answer:
            document = json.load(answer)
        assert document["status"] == "success", document
        return dict(document["data"])


@contextmanager
def scraping(directory: Path, target: str) -> Iterator[Prometheus]:
    """A server that scrapes a target and evaluates our rules; skips or fails the test where there is none."""
    program = need("prometheus", "prometheus")
    directory.mkdir()
    config = directory / "prometheus.yml"
    config.write_text(_CONFIG.format(every=f"{int(EVERY_S * 1000)}ms", rules=RULES, target=target))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    arguments = [
        f"--config.file={config}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen([program, *arguments], stdout=log, stderr=log, cwd=directory)
    try:
        server = Prometheus(address)
        wait_until(server.is_ready, 60, (directory / "log").read_text)
        wait_until(lambda: server.instant("up == 1"), 20, (directory / "log").read_text)
        yield server
    finally:
        process.kill()
        process.wait()


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def queries(panel: Mapping[str, Any]) -> list[str]:
    """What a panel asks, with its variables filled in."""
    return [filled(target["expr"]) for target in panel["targets"]]


def filled(query: str) -> str:
    """Variables have their values, and none is left over."""
    for name, value in _VARIABLES.items():
        query = query.replace(name, value)
    assert "$" not in query, query
    return query


def names_in(text: str) -> set[str]:
    """Names of our metrics in a query or a file of rules; recorded ones have colons and are left out."""
    found = re.findall(r"(?<![\w:])cleanerd_[a-z_]+(?![\w:])", text)
    return {re.sub("_(bucket|sum|count)$", "", name) for name in found}
