"""The jar of the agent, as `hatch_build.py` makes it."""

import hashlib
import os
from dataclasses import dataclass
from importlib.resources import files

from cleanerd.errors import NoWayIn


@dataclass(frozen=True, slots=True)
class AgentJar:
    """The agent's jar: its bytes, and their SHA-256 in hexadecimal digits, which the broker compares before loading it.

    `path`: where it is installed, empty for one that lies in no file.
    """

    content: bytes
    sha256: str
    path: str = ""


def agent_jar() -> AgentJar:
    """The one of this installation. Raises NoWayIn where there is none, or not the one that was built."""
    package = files("cleanerd.broker_agent")
    try:
        content = (package / "cleanerd-agent.jar").read_bytes()
        expected = (package / "cleanerd-agent.jar.sha256").read_text(encoding="ascii").strip()
    except FileNotFoundError:
        raise NoWayIn(
            "this installation has no agent: there was no Java compiler when it was built. Install cleanerd where there is "
            "a JDK, or a Java runtime and PySpark"
        ) from None
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise NoWayIn(
            f"cleanerd-agent.jar: expected SHA-256 {expected}, found {found}. Install cleanerd again"
        )
    return AgentJar(
        content, found, os.path.join(os.path.dirname(os.path.realpath(__file__)), "cleanerd-agent.jar")
    )
