"""Versions as brokers print them: what is not known to be a tested release of Kafka is untested."""

import pytest

from cleanerd.broker_agent.releases import TESTED_RELEASES, kafka_release


@pytest.mark.parametrize(
    ("printed", "release"),
    [
        *((f"{release}.1", release) for release in TESTED_RELEASES),
        ("4.10.0", "4.10"),
        ("7.9.0-ccs", "3.9"),
        ("7.4.13-ccs", "3.4"),
        ("8.2.0-ccs", "4.2"),
        ("6.2.1-2-ccs", "2.8"),
        ("3.7.0.redhat-00007", "3.7"),
        ("2.8.0.redhat-00005", "2.8"),
        ("3.9.1.4-build7", "3.9"),
        ("3.4.1.7.3.1.0-197", "3.4"),
        ("3.6.1-42", "3.6"),
        ("9.0.0-ccs", None),  # of a platform that is not known
        ("3.9.0-ccs", None),
        ("7.9.0-ce", None),  # storage of its own
        ("4.1.0-SNAPSHOT", None),
        ("7.9.0-SNAPSHOT-ccs", None),
        ("4.1.0.1-SNAPSHOT", None),
        ("4.2.0-rc1", None),
        ("4.2.0.rc1", None),
        ("3.9.0-fork", None),
        ("trunk", None),
        ("of an unknown release", None),
        ("", None),
        ("4.1", None),
        ("4.1.0\n", None),
    ],
)
def test_a_version_is_read_as_what_it_is(printed: str, release: str | None) -> None:
    assert kafka_release(printed) == release
