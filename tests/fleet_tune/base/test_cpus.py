"""CPUs that a process may use: trees of control groups of both versions, and a real group where one can be made."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleet_tune.base.cpus import QuotaGroups, Throttling, cpu_quota, cpus_within, usable_cpus

ROOT = Path(__file__).resolve().parents[3]
V2 = "30 24 0:26 {shown} {point} rw,nosuid - cgroup2 cgroup2 rw"
V1 = "31 24 0:27 {shown} {point} rw,nosuid - cgroup cgroup rw,cpu,cpuacct"
OTHER = "25 24 0:22 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"


def machine(
    root: Path, groups: str, mounts: list[str], files: dict[str, str], shown: str = "/", point: str = "/sys/fs/cgroup"
) -> Path:
    """A root folder with these lines of /proc/self/cgroup and mountinfo, and these files below the mount."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    (root / "proc/self/mountinfo").write_text("".join(f"{m.format(shown=shown, point=point)}\n" for m in mounts))
    for name, text in files.items():
        path = root / point.lstrip("/") / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("path", "shown", "files", "quota"),
    [
        ("/", "/", {"cpu.max": "50000 100000\n"}, 0.5),
        ("/", "/", {"cpu.max": "max 100000\n"}, math.inf),
        ("/", "/", {}, math.inf),
        # The root group of a machine has no such file; a group below it has.
        ("/a.slice/b.scope", "/", {"a.slice/b.scope/cpu.max": "150000 100000\n"}, 1.5),
        # The smallest on the way up.
        (
            "/a/b/c",
            "/",
            {"a/b/c/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000", "a/cpu.max": "25000 50000"},
            0.5,
        ),
        ("/a/b", "/", {"a/b/cpu.max": "20000 100000", "a/cpu.max": "200000 100000"}, 0.2),
        # Groups beside it do not count.
        ("/a", "/", {"a/cpu.max": "max 100000", "b/cpu.max": "10000 100000"}, math.inf),
        # A container that sees its own group at the top of the mount, and one whose path leads out of what it sees.
        ("/docker/1f", "/docker/1f", {"cpu.max": "70000 100000"}, 0.7),
        ("/docker/1f/x", "/docker/1f", {"x/cpu.max": "max 100000", "cpu.max": "70000 100000"}, 0.7),
        ("/../../other", "/", {"cpu.max": "70000 100000"}, 0.7),
        ("/other", "/docker/1f", {"cpu.max": "70000 100000"}, 0.7),
        # Files that nobody can read as such.
        ("/", "/", {"cpu.max": "\n"}, math.inf),
        ("/", "/", {"cpu.max": "much more"}, math.inf),
        ("/", "/", {"cpu.max": "50000 0"}, math.inf),
    ],
)
def test_quotas_of_version_2(tmp_path: Path, path: str, shown: str, files: dict[str, str], quota: float) -> None:
    assert cpu_quota(machine(tmp_path, f"0::{path}\n", [OTHER, V2], files, shown)) == quota


@pytest.mark.parametrize(
    ("path", "shown", "quotas", "quota"),
    [
        ("/", "/", {"": (50000, 100000)}, 0.5),
        ("/", "/", {"": (-1, 100000)}, math.inf),
        ("/docker/1f", "/docker/1f", {"": (250000, 100000)}, 2.5),
        ("/a/b", "/", {"a/b": (-1, 100000), "a": (30000, 50000), "": (-1, 100000)}, 0.6),
    ],
)
def test_quotas_of_version_1(
    tmp_path: Path, path: str, shown: str, quotas: dict[str, tuple[int, int]], quota: float
) -> None:
    groups = f"9:memory:/elsewhere\n4:cpu,cpuacct:{path}\n3:cpuset:/\n0::/\n"
    files = {}
    for folder, (quota_us, period_us) in quotas.items():
        files[f"{folder}/cpu.cfs_quota_us"], files[f"{folder}/cpu.cfs_period_us"] = f"{quota_us}\n", f"{period_us}\n"
    point = "/sys/fs/cgroup/cpu,cpuacct"
    assert cpu_quota(machine(tmp_path, groups, [OTHER, V1], files, shown, point)) == quota


def test_a_machine_that_does_not_tell(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) == math.inf
    assert usable_cpus(tmp_path) == len(os.sched_getaffinity(0))
    # Without /proc: where the groups usually are.
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("50000 100000")
    assert usable_cpus(tmp_path) == 1


@pytest.mark.parametrize(
    ("count", "quota", "cpus"), [(8, math.inf, 8), (8, 2.0, 2), (8, 1.5, 2), (8, 0.1, 1), (2, 6.0, 2), (1, 0.5, 1)]
)
def test_a_quota_is_rounded_up_and_bounded_by_the_affinity(count: int, quota: float, cpus: int) -> None:
    assert cpus_within(count, quota) == cpus


def test_throttling_is_that_of_the_group_that_stands_still_most(tmp_path: Path) -> None:
    stat = "usage_usec 1\nnr_periods {}\nnr_throttled {}\nthrottled_usec 5\n"
    files = {
        "a/b/cpu.max": "100000 100000",
        "a/b/cpu.stat": stat.format(50, 3),
        "a/cpu.max": "50000 100000",
        "a/cpu.stat": stat.format(100, 90),
        "cpu.stat": stat.format(1000, 999),  # no quota: what it counts is others' work
    }
    root = machine(tmp_path, "0::/a/b\n", [V2], files)
    groups = QuotaGroups(root)
    before = groups.throttling()
    assert before == Throttling(100, 90)
    (root / "sys/fs/cgroup/a/cpu.stat").write_text(stat.format(110, 95))
    since = groups.throttling().since(before)
    assert (since, since.share) == (Throttling(10, 5), 0.5)
    assert Throttling().share == 0


def test_a_real_group_with_a_quota(little_of_a_cpu: Path) -> None:
    code = """
import os, sys, time
from fleet_tune.base.cpus import QuotaGroups, cpu_quota, usable_cpus
open(sys.argv[1], "w").write(str(os.getpid()))
groups = QuotaGroups()
before = groups.throttling()
deadline = time.monotonic() + 60
while not groups.throttling().since(before).throttled_periods and time.monotonic() < deadline:
    pass
print(cpu_quota(), usable_cpus(), groups.throttling().since(before).share > 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(little_of_a_cpu)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0.05", "1", "True"]
