"""The sample for Compose, brought up by podman-compose."""

import importlib
from pathlib import Path
from typing import Any

from tests.harness.programs import need, run
from tests.operate.side_by_side import QUICK, SideBySide
from tests.operate.store import Store

WRAPPER = """#!/bin/bash
# Podman 4.3 cannot start what requires a container that has ended; podman-compose waits for the conditions by itself.
for word; do [[ $word == --requires=* ]] || words+=("$word"); done
exec {podman} "${{words[@]}}"
"""


class Stack(SideBySide):
    """Its containers; what is said here (no network, quick settings) is laid over the sample."""

    def __init__(self, store: Store, directory: Path, sample: Path) -> None:
        self._files, self._directory = [sample, directory / "over.yaml"], directory
        self._podman = directory / "podman"
        podman = " ".join([need("podman", "podman"), *store.options(), *store.settings()])
        self._podman.write_text(WRAPPER.format(podman=podman))
        self._podman.chmod(0o755)
        super().__init__(
            store,
            "kafka_cleanerd_1",
            "kafka_commit_1",
            "kafka_kafka_1",
            logs=store.directory / "root/volumes/kafka_data/_data",
        )
        self.configure()

    def configure(self, **environment: str) -> None:
        quick = {self._variable(key): value for key, value in QUICK.items()}
        services = {"cleanerd": quick | environment, "commit": {}, "kafka": quick}
        over: dict[str, dict[str, Any]] = {
            name: {"network_mode": "none", "environment": more} for name, more in services.items()
        }
        over["cleanerd"]["volumes"] = [f"{self.store.cache}:/var/cache/cleanerd"]
        self._files[1].write_text(importlib.import_module("yaml").safe_dump({"services": over}))

    @staticmethod
    def _variable(key: str) -> str:
        name = key.replace(".", "_").upper()
        return name if name.startswith("CLEANERD_") else f"KAFKA_{name}"

    def compose(self, *words: str) -> None:
        program = need("podman-compose", "podman-compose (PyPI)")
        files = [word for file in self._files for word in ("-f", str(file))]
        environment = self.store.environment()
        run(program, "--podman-path", self._podman, *files, *words, env=environment, timeout_s=150)

    def up(self) -> None:
        self.compose("up", "-d")
        self.wait_for_the_broker()
