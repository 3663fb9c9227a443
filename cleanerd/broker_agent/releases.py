"""Which release of Kafka a broker is, by the version that it prints.

==========================  ==========  ===============================================================================
printed                     release     by
==========================  ==========  ===============================================================================
3.9.2                       3.9         Apache
7.9.0-ccs                   3.9         Confluent Platform, community: it counts its own releases
3.7.0.redhat-00007          3.7         Red Hat: a build of Kafka's release, as are all that go on with a dot
3.4.1.7.3.1.0-197           3.4         Cloudera
8.0.0-ce                    not known   Confluent Server, which has storage of its own
4.1.0-SNAPSHOT              not known   any state of the code before that release; likewise -rc1
==========================  ==========  ===============================================================================
"""

import re

TESTED_RELEASES = (
    "2.8", "3.3", "3.4", "3.5", "3.6", "3.7", "3.8", "3.9", "4.0", "4.1", "4.2", "4.3", "4.4",
)  # fmt: skip
"""Kafka's, in which a test swaps segments (tests/broker/test_releases.py)."""

_CONFLUENT = {
    **{f"6.{n}": f"2.{n + 6}" for n in range(3)},
    **{f"7.{n}": f"3.{n}" for n in range(10)},
    **{f"8.{n}": f"4.{n}" for n in range(3)},
}
_NO_RELEASE = re.compile(r"snapshot|alpha|beta|[.-]rc\d*\b", re.IGNORECASE)
_BUILD = re.compile(r"(\d+\.\d+)\.\d+(-ccs|-\d+-ccs|(?:\.[\w-]+)*|-\d+)")


def kafka_release(version: str) -> str | None:
    """Major and minor number of the release of Kafka that `AppInfoParser.getVersion` names; None where that is not known."""
    found = _BUILD.fullmatch(version)
    if found is None or _NO_RELEASE.search(version):
        return None
    release, build = found.groups()
    return _CONFLUENT.get(release) if build.endswith("-ccs") else release
