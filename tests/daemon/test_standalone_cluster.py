"""`cleanerd.spark.master` names a cluster: a standalone master and two workers on loopback clean for the daemon."""

import re
from pathlib import Path

import pytest

from cleanerd.spark_runtime.lazy_spark import LazySpark, SparkFailed
from tests.harness.daemon.processes import running
from tests.harness.logs.troubled import newest, write_logs
from tests.harness.spark.standalone import standalone

pytestmark = pytest.mark.soak

WORKERS = 2
CLEANED_S = 300
"""Five JVMs start, and the executors may have to compile the kernels first, on two cores that others use as well."""


@pytest.mark.parametrize("secret", [None, "s3cret"], ids=["open", "secret"])
def test_daemon_cleans_on_a_standalone_cluster(tmp_path: Path, secret: str | None) -> None:
    """A cluster that shares a secret asks cleanerd for it, too, and gives it to the executors."""
    logs = write_logs(tmp_path / "logs", "one", "two")
    properties = {} if secret is None else {"spark_authenticate": "true", "spark_authenticate_secret": secret}
    settings = {f"cleanerd_spark_conf_{name}": value for name, value in properties.items()}
    with (
        standalone(tmp_path, WORKERS, **properties) as (master, told),
        running(
            tmp_path / "d",
            logs,
            cleanerd_spark_master=master,
            **settings,
        ) as daemon,
    ):
        daemon.wait_committed("one-0", "two-0", timeout_s=CLEANED_S)
        assert secret is None or secret not in daemon.output()
        is_warned = "Spark runs unauthenticated" in daemon.output()
        assert is_warned is (secret is None), "an open cluster is told of, a closed one is not"
        assert daemon.output().count("Spark runs unauthenticated") == int(is_warned)
    assert len(newest(logs / "one-0")) == len(newest(logs / "two-0")) == 7
    executors = [re.findall(r"executor app-\S+", log.read_text()) for log in told]
    assert any(executors), "workers of the cluster did the work"


def test_the_root_cause_is_told_when_no_executor_can_start(tmp_path: Path, spark: LazySpark) -> None:
    """Not that a stopped context cannot be asked to cancel; and the next job has a session again."""
    spark.stop()
    settings = {"spark.executor.extraJavaOptions": "-agentlib:none"}
    with standalone(tmp_path, 1, spark_deploy_maxExecutorRetries="1") as (master, _):
        session = LazySpark(master, settings)
        for _ in range(2):
            with pytest.raises(SparkFailed, match="Command exited with code 1") as caught:
                session.run(lambda context: context.parallelize([1], 1).count())
            assert "cancelJobGroup" not in str(caught.value)
            assert "stopped SparkContext" not in str(caught.value).partition(";")[0]
        session.stop()
