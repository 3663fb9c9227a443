"""Answers of /metrics as values, and what has become of them since."""

import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from cleanerd.daemon.api.http import Page
from cleanerd.daemon.api.metrics_server import MetricsServer
from cleanerd.daemon.telemetry.metric_table import Metric, MetricKind

Series = tuple[str, frozenset[tuple[str, str]]]


@dataclass(frozen=True)
class Scrape:
    text: str
    samples: Mapping[Series, float]

    def total(self, name: str, **labels: str) -> float:
        """Sum of all series of a name with these labels; 0 if there is none."""
        return sum(value for _, value in self.of(name, **labels))

    def of(self, name: str, **labels: str) -> list[tuple[Series, float]]:
        wanted = labels.items()
        return [(key, value) for key, value in self.samples.items() if key[0] == name and wanted <= key[1]]

    def has(self, metric: Metric) -> bool:
        return bool(self.of(_sample(metric)))

    def counters(self) -> dict[Series, float]:
        ends = ("_total", "_count", "_sum", "_bucket")
        return {key: value for key, value in self.samples.items() if key[0].endswith(ends)}


def parse(text: str) -> Scrape:
    found = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    return Scrape(text, found)


def get(address: str, path: str = "/metrics", accept: str = "") -> tuple[int, str, str]:
    request = urllib.request.Request(f"http://{address}{path}", headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


@contextmanager
def serving(pages: Mapping[str, Page], listen: str = "127.0.0.1:0") -> Iterator[str]:
    """The address of a server of these pages."""
    server = MetricsServer(listen, pages)
    server.start()
    try:
        yield server.address
    finally:
        server.stop()


def has_moved(metric: Metric, before: Scrape, after: Scrape) -> bool:
    """Whether any series of a metric is another one; a counter must have grown."""
    name = _sample(metric)
    olds, news = dict(before.of(name)), dict(after.of(name))
    if metric.kind is MetricKind.GAUGE:
        return olds != news
    assert all(news[key] >= value for key, value in olds.items()), f"{metric.name} went backwards"
    return sum(news.values()) > sum(olds.values())


def _sample(metric: Metric) -> str:
    return f"{metric.name}_count" if metric.kind is MetricKind.HISTOGRAM else metric.name
