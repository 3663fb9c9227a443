"""cleanerd's own keys: what each accepts."""

from pathlib import Path

import pytest

from cleanerd.cli.main import main
from cleanerd.config.keys import BROKER_KEYS
from cleanerd.config.load import resolve
from cleanerd.config.model import ClusterMetadata
from cleanerd.config.reload import plan_reload
from cleanerd.config.sources import read_sources
from cleanerd.errors import BadConfiguration

FORMS = {
    "cleanerd.io.max.read.bytes.per.second": ("1e6 0.5 unlimited", "0 -1 NaN fast"),
    "cleanerd.reserved.topics": ("__consumer_offsets,a.b", f"a/b a,,b {'x' * 250}"),
    "cleanerd.staged.min.free.ratio": ("0 0.25 1", "-0.1 1.1"),
    "cleanerd.state.dir": ("/var/lib/x", "var/lib"),
    "cleanerd.control.socket": (f"/run/c.sock /{'s' * 106}", f"control.sock /{'s' * 107}"),
    "cleanerd.metrics.listen": (
        "0.0.0.0:1 [::1]:11308 localhost:65535",
        "11308 :11308 host: host:65536 ::1:11308 /x:1",
    ),
    "cleanerd.metrics.per.partition.topics": ("orders orders-*,a[0-9]?", "a/b a,,b"),
    "cleanerd.log.level": ("debug error", "INFO trace"),
    "cleanerd.page": ("true False", "yes 1"),
    "cleanerd.retry.max": ("1", "0 -1 x 1.0"),
    "cleanerd.shutdown.timeout.ms": ("0 1", "-1"),
}
"""A key of each form: what it accepts, and what it refuses."""


@pytest.mark.parametrize("key", FORMS)
def test_what_a_key_of_each_form_accepts(key: str) -> None:
    """Every bound from both sides; a refused value is named with key, expectation and origin."""
    row = BROKER_KEYS[key]
    good, bad = FORMS[key]
    for text in good.split():
        broker = resolve(read_sources(None, [(key, text)])).broker
        assert getattr(broker, row.field) == row.type.parse(text)
    for text in bad.split():
        with pytest.raises(BadConfiguration) as caught:
            resolve(read_sources(None, [(key, text)]))
        (problem,) = caught.value.problems
        assert problem.startswith(f"{key}: expected ")
        assert problem.endswith(f"found {text!r} (command line: --set {key})")


def test_records_of_the_metadata_log_set_what_may_change_at_run_time() -> None:
    """7.22 for keys of ours: one `kafka-configs` call for all machines; not what needs a restart."""
    records = {"cleanerd.scan.interval.ms": "5", "cleanerd.state.dir": "/elsewhere"}
    broker = resolve(read_sources(), ClusterMetadata({}, {}, {"": records}, "/m")).broker
    assert (broker.scan_interval_ms, broker.state_dir) == (5, "/var/lib/cleanerd")


def spark_conf(*assignments: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    return resolve(read_sources(None, assignments)).broker.spark_conf


def test_properties_of_spark_are_passed_on(tmp_path: Path) -> None:
    """`cleanerd.spark.conf.*` from the config file and from `--set`, which wins; any property, any text."""
    path = tmp_path / "server.properties"
    path.write_text("cleanerd.spark.conf.spark.executor.memory=1g\ncleanerd.spark.conf.spark.x.y=\n")
    assignments = [("cleanerd.spark.conf.spark.executor.memory", "2g")]
    found = resolve(read_sources(str(path), assignments)).broker.spark_conf
    assert found == (("spark.executor.memory", "2g"), ("spark.x.y", ""))
    assert spark_conf() == ()


@pytest.mark.parametrize("name", ["", "executor.memory", "spark.master", "spark.app.name"])
def test_what_is_no_property_of_spark_is_unknown(name: str) -> None:
    """And what cleanerd itself has a key for."""
    with pytest.raises(BadConfiguration, match=r"found an unknown name"):
        spark_conf((f"cleanerd.spark.conf.{name}", "1"))


def test_secrets_of_spark_are_shown_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither by `config show` nor by what a reload says of itself."""
    key = "cleanerd.spark.conf.spark.authenticate.secret"
    for arguments in (["-o", "json", "--origin"], ["-o", "json"], []):
        assert main(["config", "show", *arguments, "--log-dir", str(tmp_path), "--set", f"{key}=s3cret"]) == 0
        told = capsys.readouterr().out
        assert key in told
        assert "s3cret" not in told
    old, new = (resolve(read_sources(None, [(key, text)])) for text in ("s3cret", "s4cret"))
    (change,) = plan_reload(old, new).changes
    assert str(change) == f"{key}: changed"
    assert "s3cret" not in repr(old.broker)
