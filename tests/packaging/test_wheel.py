"""The wheel and the source distribution: what is in them, and that they run outside of the repository."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("actors", "devices", "fleet_tune", "policies")

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both, built of the files that git tracks or does not ignore: nothing else comes along."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    # setuptools changes sys.argv.
    program = f"from setuptools import build_meta as b; b.build_wheel({str(out)!r}); b.build_sdist({str(out)!r})"
    subprocess.run([sys.executable, "-c", program], cwd=source, check=True, capture_output=True)
    return out


@pytest.fixture(scope="module")
def installed(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the wheel is installed in."""
    [wheel] = distributions.glob("*.whl")
    folder = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(folder)]
    subprocess.run([*command, str(wheel)], check=True)
    return folder


def run(installed: Path, folder: Path, *arguments: str, block: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command of the installed wheel in ``folder``, without the module ``block``."""
    program = (
        f"import sys; sys.path.insert(0, {str(installed)!r}); sys.modules.update(dict.fromkeys({block.split()!r}))\n"
        "import fleet_tune.__main__ as main\n"
        f"assert main.__file__.startswith({str(installed)!r}), main.__file__\n"
        f"sys.argv = ['fleet-tune', *{list(arguments)!r}]\nmain.run()"
    )
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(installed), "FLEET_TUNE_STORE": ""}
    return subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, timeout=900
    )


def test_what_is_in_them(distributions: Path) -> None:
    [wheel], [sdist] = distributions.glob("*.whl"), distributions.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        metadata = file.read(next(name for name in names if name.endswith("METADATA"))).decode()
        points = file.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    for package in PACKAGES:
        assert f"{package}/py.typed" in names
    for name in ("report/html/templates/report.html.j2", "report/dashboard/static/live.js", "data/records.jsonl.gz"):
        assert f"fleet_tune/{name}" in names
    assert not any(name.startswith(("tests/", "bench/", "docs/")) for name in names)
    for line in ("License-Expression: Apache-2.0", "License-File: LICENSE", "Classifier: Typing :: Typed", "Author: "):
        assert line in metadata
    assert "[torch_dynamo_backends]" in points
    with tarfile.open(sdist) as packed:
        inside = {name.partition("/")[2] for name in packed.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "fleet_tune/py.typed"} <= inside


def test_the_base_installation_answers(installed: Path, tmp_path: Path) -> None:
    answered = run(installed, tmp_path, "--help", block="click")
    assert answered.returncode == 0
    assert "fleet-tune device serve" in answered.stdout
    refused = run(installed, tmp_path, "tune", "net.onnx", block="click")
    assert refused.returncode == 2
    assert "pip install 'fleet-tune[tune]'" in refused.stderr
    served = run(installed, tmp_path, "device", "serve", "--help", block="click torch ray")
    assert served.returncode == 0, served.stderr


def test_the_demo_runs_outside_of_the_repository(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "demo", "--time-budget", "5s")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "fleet-tune-out" / "demo" / "network.so").is_file()
    assert "load it" in done.stdout
