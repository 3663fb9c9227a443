"""The StatefulSet as a pod of podman: podman makes containers and volumes of it, the tests play the kubelet.

Podman knows neither StatefulSets nor sidecars. So the controller's part (a volume for each claim) is done here, and so is
the kubelet's: init containers one after the other, of which a sidecar counts as soon as it runs, then the rest; at the end
the rest first, sidecars last.
"""

import importlib
from pathlib import Path
from typing import Any

from tests.harness.daemon.processes import wait_until
from tests.operate.side_by_side import QUICK, SOON_S, SideBySide
from tests.operate.store import Store

POD = "kafka-0"
COMMIT_S = 90.0
GRACE_S = 90
"""terminationGracePeriodSeconds of the sample"""


def manifest(documents: list[dict[str, Any]], cache: Path) -> list[dict[str, Any]]:
    """What `podman play kube` is given; every container is in `containers`, and what it cannot do is left out."""
    config, _, stateful_set = documents
    properties = config["data"]["server.properties"].replace(
        f"{POD}.kafka", "127.0.0.1"
    )  # there is no DNS of a cluster
    config["data"]["server.properties"] = properties + "".join(
        f"{key}={value}\n" for key, value in QUICK.items()
    )
    spec = stateful_set["spec"]["template"]["spec"]
    spec |= {"containers": spec.pop("initContainers") + spec["containers"], "restartPolicy": "Never"}
    for container in spec["containers"]:
        for key in ("ports", "restartPolicy", "livenessProbe", "readinessProbe"):
            container.pop(key, None)
    (kept,) = (volume for volume in spec["volumes"] if volume["name"] == "cache")
    del kept["emptyDir"]
    kept["hostPath"] = {"path": str(cache)}
    claims = []
    for template in stateful_set["spec"]["volumeClaimTemplates"]:
        name = template["metadata"]["name"]
        spec["volumes"].append({"name": name, "persistentVolumeClaim": {"claimName": name}})
        claims.append({"apiVersion": "v1", "kind": "PersistentVolumeClaim", **template})
    return [config, *claims, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD}, "spec": spec}]


class Pod(SideBySide):
    def __init__(self, store: Store, directory: Path, documents: list[dict[str, Any]]) -> None:
        yaml = importlib.import_module("yaml")
        path = directory / "pod.yaml"
        path.write_text(yaml.safe_dump_all(manifest(documents, store.cache)))
        store.podman("play", "kube", "--start=false", "--network=none", path)
        data = Path(store.podman("volume", "inspect", "data", "--format={{.Mountpoint}}")[1].strip())
        names = (f"{POD}-{container}" for container in ("cleanerd", "commit", "kafka"))
        super().__init__(store, *names, logs=data / "logs")

    def start(self, *, with_cleanerd: bool = True) -> None:
        """As the kubelet does. `with_cleanerd`: whether its image could be had, say."""
        if with_cleanerd:
            self.start_cleanerd()
        self.run(self.kafka)
        self.wait_for_the_broker()

    def start_cleanerd(self) -> None:
        """And wait for the end of what commits."""
        self.run(self.cleanerd)
        self.run(self.commit)
        wait_until(lambda: not self.is_running(self.commit), COMMIT_S, self.say)

    def run(self, container: str) -> None:
        """Start one; podman, which ends a pod with its last container, refuses while it does that."""
        wait_until(lambda: self.store.podman("start", container, check=False)[0] == 0, SOON_S, self.say)

    def stop(self) -> None:
        """The broker first."""
        for container in (self.kafka, self.cleanerd):
            self.store.podman("stop", f"--time={GRACE_S}", container)

    def kill(self, container: str) -> None:
        """Until podman has cleaned up behind it: one that is started before that loses its host name by it."""
        super().kill(container)
        wait_until(lambda: self.store.inspect(container, ".State.Status") == "exited", SOON_S)

    def kill_all(self) -> None:
        """The whole node; cleanerd first, so that it has no gap to use."""
        for container in (self.cleanerd, self.kafka):
            self.kill(container)
        # Podman ends a pod with its last container, and the names of its network with it: who starts before that loses both.
        wait_until(
            lambda: self.store.podman("pod", "inspect", POD, "--format={{.State}}")[1].strip() == "Exited",
            SOON_S,
        )

    def assert_ended_in_order(self) -> None:
        """The broker, then cleanerd, each because it was asked to, and in the time that it had."""
        assert self.ended(self.kafka) < self.ended(self.cleanerd)
        codes = [self.store.inspect(name, ".State.ExitCode") for name in (self.kafka, self.cleanerd)]
        assert codes == ["143", "0"], self.say()

    def remove(self) -> None:
        """With all that was written."""
        self.store.podman("pod", "rm", "--force", "--time=0", POD)
        self.store.podman("volume", "rm", "--all", "--force")
