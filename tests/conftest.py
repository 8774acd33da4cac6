"""Fixtures that several packages' tests share."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from fleet_tune.base.records.sharing.shared import SHIPPED_VARIABLE, STORE_VARIABLE
from tests.helpers import properties
from tests.helpers.memory import rise_below
from tests.helpers.waiting import wait_until

properties.load_profile()

# A test that wants a store that runs share names one: none finds what another has measured.
os.environ[STORE_VARIABLE] = os.environ[SHIPPED_VARIABLE] = ""
# A test that uses Ray says so: else Ray starts a cluster with its own settings, which later tests of the process use.
os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"


# Imports on first use are among it, TVM's above all.
_MOST_READER_BYTES = 512 * 2**20


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files whose tests are allowed the longest come first: one that begins last is waited for by all other workers."""
    allowed: dict[Path, float] = {}
    for item in items:
        timeout = item.get_closest_marker("timeout")
        secs = float(timeout.args[0]) if timeout and timeout.args else 0.0
        allowed[item.path] = max(allowed.get(item.path, 0.0), secs)
    items.sort(key=lambda item: -allowed[item.path])


def pytest_collection_finish() -> None:
    """What the tests' modules have loaded stays: a collection of garbage that looks through torch and TVM each time
    takes as long as the import of a small network."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _readers_take_little_memory(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a fuzzed reader is given: it takes no more memory than a few times the largest message allowed."""
    if not request.path.name.startswith("test_fuzzed"):
        yield
        return
    with rise_below(_MOST_READER_BYTES):
        yield


@pytest.fixture(scope="session")
def prometheus_dir() -> Path:
    """The folder with a real ``prometheus`` and ``promtool``.

    In this order: FLEET_TUNE_PROMETHEUS_DIR, the PATH, a cache folder, and Debian's package unpacked into that folder.
    Fails where there is none: a check of the exporter that nobody runs is worth nothing.
    """
    named = os.environ.get("FLEET_TUNE_PROMETHEUS_DIR")
    if named:
        if not _complete(Path(named)):
            pytest.fail(f"FLEET_TUNE_PROMETHEUS_DIR={named} has no prometheus and promtool")
        return Path(named)
    found = shutil.which("prometheus")
    if found and _complete(Path(found).parent):
        return Path(found).parent
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fleet-tune" / "prometheus"
    if _complete(cache):
        return cache
    if os.environ.get("CI") == "true":
        pytest.fail("prometheus and promtool are missing: install Debian's package, or set FLEET_TUNE_PROMETHEUS_DIR")
    if not shutil.which("apt-get"):
        pytest.fail("prometheus and promtool are missing: install them, or set FLEET_TUNE_PROMETHEUS_DIR")
    _unpack_debian_package(cache)
    return cache


def _complete(folder: Path) -> bool:
    return all(os.access(folder / name, os.X_OK) for name in ("prometheus", "promtool"))


def _unpack_debian_package(cache: Path) -> None:
    """Needs no rights: the package is not installed, and where apt has no package lists they go to a private folder."""
    with tempfile.TemporaryDirectory() as text:
        work = Path(text)
        apt = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root"]
        private = ["-o", f"Dir::State={work}/state", "-o", f"Dir::Cache={work}/cache"]
        download = ["download", "prometheus"]
        if subprocess.run([*apt, *download], cwd=work, capture_output=True, check=False).returncode:
            (work / "state" / "lists" / "partial").mkdir(parents=True)
            (work / "cache" / "archives" / "partial").mkdir(parents=True)
            for command in (["update"], download):
                done = subprocess.run([*apt, *private, *command], cwd=work, capture_output=True, text=True, check=False)
                if done.returncode:
                    pytest.fail(f"cannot download prometheus: apt-get {command[0]}: {done.stderr.strip()}")
        (package,) = work.glob("prometheus_*.deb")
        subprocess.run(["dpkg-deb", "-x", package, work / "root"], check=True)
        cache.mkdir(parents=True, exist_ok=True)
        for name in ("prometheus", "promtool"):  # promtool last: its presence says that both are there
            part = cache / f"{name}.{os.getpid()}"
            shutil.copy2(work / "root" / "usr" / "bin" / name, part)
            part.replace(cache / name)


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One Ray cluster for all tests that this process runs: what they start uses it and leaves it as it was. Their
    quiet windows are their own: those of other workers' runs would stop them."""
    from actors import host_actors
    from actors.clusters.cluster import connected

    windows = tmp_path_factory.mktemp("windows")
    with pytest.MonkeyPatch.context() as patch, connected(None):
        patch.setattr(host_actors, "own_window_folder", lambda: windows)
        yield


@pytest.fixture
def free_port() -> int:
    """A port of loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _removed(group: Path) -> bool:
    """The kernel keeps a group until the last process that ended in it is gone."""
    try:
        group.rmdir()
    except OSError as error:
        if error.errno == errno.EBUSY:
            return False
        raise
    return True


@pytest.fixture
def little_of_a_cpu() -> Iterator[Path]:
    """The file that takes processes into a real group. Its quota is less than what a process of a busy machine gets."""
    name = f"fleet-tune-test-{uuid.uuid4().hex}"
    for parent, quota in (("/sys/fs/cgroup", "cpu.max"), ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us")):
        group = Path(parent) / name
        if not Path(parent, "cgroup.procs").exists():  # no tree of this version is mounted there
            continue
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / quota).write_text("5000 100000" if quota == "cpu.max" else "5000")
            yield group / "cgroup.procs"
            return
        except OSError:
            continue
        finally:
            wait_until(partial(_removed, group), "its processes end", 30)
    pytest.skip("this user cannot make a control group with a quota here")
