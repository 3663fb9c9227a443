"""How many cores there are: by affinity, and by what a cgroup is given."""

import os
from pathlib import Path

import pytest

from cleanerd.env.cores import usable_cores

ALL = 64


@pytest.mark.parametrize(
    ("own", "limits", "cores"),
    [
        ("0::/", {}, ALL),  # the root of a machine has no limit
        ("0::/", {".": "max 100000"}, ALL),
        ("0::/", {".": "200000 100000"}, 2),  # a container
        ("0::/", {".": "150000 100000"}, 2),
        ("0::/", {".": "10000 100000"}, 1),
        ("0::/", {".": "9900000 100000"}, ALL),
        ("0::/a.slice/b.service", {"a.slice": "300000 100000", "a.slice/b.service": "max 100000"}, 3),
        ("0::/a.slice/b.service", {"a.slice": "300000 100000", "a.slice/b.service": "50000 50000"}, 1),
        ("0::/a.slice/b.service", {"other": "100000 100000"}, ALL),
        ("4:cpu:/a\n0::/b", {"a": "100000 100000", "b": "200000 100000"}, 2),
        ("4:cpu:/", {"cpu": "100000 100000"}, ALL),  # cgroup v1 alone
        ("0::/", {".": ""}, ALL),
    ],
)
def test_no_more_than_a_cgroup_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, limits: dict[str, str], cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(ALL)))
    mount = tmp_path / "a" / "b" / "cgroup"
    (tmp_path / "own").write_text(f"{own}\n")
    for cgroup, limit in limits.items():
        (mount / cgroup).mkdir(parents=True, exist_ok=True)
        (mount / cgroup / "cpu.max").write_text(f"{limit}\n")
    assert usable_cores(str(tmp_path / "own"), str(mount)) == cores


def test_without_cgroups_the_affinity_counts(tmp_path: Path) -> None:
    assert usable_cores(str(tmp_path / "none"), str(tmp_path)) == len(os.sched_getaffinity(0))


def test_where_nobody_may_ask_all_cores_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also for libraries that ask: numba does when it is imported."""

    def refused(_: int) -> set[int]:
        raise PermissionError

    monkeypatch.setattr(os, "sched_getaffinity", refused)
    assert usable_cores(str(tmp_path / "none"), str(tmp_path)) == os.cpu_count()
    assert len(os.sched_getaffinity(0)) == os.cpu_count()
