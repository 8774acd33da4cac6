"""Wheels for a machine without a network: in loads, split and joined."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu import wheels
from bench.gpu.wheels import WheelError, join, locked, needed, pack, pinned
from bench.processes import ROOT

LIMIT = 100


@pytest.fixture
def fetched(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name, size in (("large", 250), ("small", 40), ("tiny", 30), ("other", 90)):
        (folder / f"{name}-1-py3-none-any.whl").write_bytes(bytes((at * 7 + size) % 251 for at in range(size)))
    return folder


def test_loads_are_small_and_join_to_the_same_files(fetched: Path, tmp_path: Path) -> None:
    loads = pack(fetched, tmp_path / "out", LIMIT)
    sizes = [sum(path.stat().st_size for path in load.iterdir() if path.name != "manifest.json") for load in loads]
    assert max(sizes) <= LIMIT
    assert sum(sizes) == 410
    assert len(loads) == 5
    joined = join(tmp_path / "out", tmp_path / "joined")
    assert {path.name: path.read_bytes() for path in joined} == {p.name: p.read_bytes() for p in fetched.iterdir()}


def test_the_largest_load_is_an_option(fetched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(pack(fetched, tmp_path / "one")) == 1  # without a limit
    asked: list[int] = []
    monkeypatch.setattr(wheels, "_fetch", lambda _folder, _have, _add, load_bytes: asked.append(load_bytes))
    command = ["wheels", "fetch", str(tmp_path), "--have", "list"]
    for last in ([], ["--load-mb", "20"]):
        monkeypatch.setattr(sys, "argv", [*command, *last])
        wheels.main()
    assert asked == [sys.maxsize, 20_000_000]
    monkeypatch.setattr(sys, "argv", [*command, "--load-mb", "0"])
    with pytest.raises(SystemExit):
        wheels.main()


def test_packing_again_leaves_nothing_of_before(fetched: Path, tmp_path: Path) -> None:
    pack(fetched, tmp_path / "out", 30)
    loads = pack(fetched, tmp_path / "out", 1000)
    assert sorted((tmp_path / "out").iterdir()) == loads


def test_a_load_that_is_missing_or_damaged_is_named(fetched: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    loads = pack(fetched, out, LIMIT)
    with pytest.raises(WheelError, match=r"has no load with manifest.json: take load-1"):
        join(tmp_path / "nothing", tmp_path / "joined")
    part = next(path for load in loads for path in load.iterdir() if path.name.endswith(".part-1"))
    body = part.read_bytes()
    part.unlink()
    with pytest.raises(WheelError, match=r"large-1-py3-none-any.whl.part-1: not there yet"):
        join(out, tmp_path / "joined")
    part.write_bytes(body[:-1] + b"!")
    with pytest.raises(WheelError, match=r"large-1-py3-none-any.whl is damaged"):
        join(out, tmp_path / "joined")


def test_what_is_there_is_not_fetched_nor_what_it_needs() -> None:
    everything = needed([])
    assert {"apache-tvm", "ray", "torch", "pydantic-core", "nvidia-cuda-crt", "nvidia-ml-py"} <= set(everything)
    less = needed(["Torch", "ray"])
    assert {"torch", "ray", "jsonschema"}.isdisjoint(less)  # ray alone needs jsonschema
    assert {"apache-tvm", "pydantic-core"} <= set(less)


def test_versions_are_the_locked_ones() -> None:
    versions = locked()
    assert pinned(["ray"], versions) == [f"ray=={versions['ray']}"]
    assert set(needed([])) - set(versions) <= {"nvidia-ml-py", "triton"}  # no machine without a GPU has them
    with pytest.raises(WheelError, match=r"no-such-package: no version in requirements.lock"):
        pinned(["no-such-package"], versions)


def test_the_other_machine_needs_nothing_but_python(fetched: Path, tmp_path: Path) -> None:
    """It is run as a file there, before anything is installed."""
    pack(fetched, tmp_path / "out", LIMIT)
    part = next((tmp_path / "out").glob("load-*/*.part-0"))
    part.unlink()
    command = [sys.executable, "-S", "-I", str(ROOT / "bench/gpu/wheels.py"), "install", str(tmp_path / "out"), "x"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "part-0: not there yet" in done.stderr


def test_pip_is_asked_for_that_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(
        wheels.subprocess, "run", lambda command: asked.append(command) or subprocess.CompletedProcess(command, 1)
    )
    with pytest.raises(WheelError, match="pip cannot fetch"):
        wheels.download(["ray==1"], tmp_path)
    (command,) = asked
    assert command[command.index("--python-version") + 1] == "3.12"
    assert "--only-binary=:all:" in command
    assert json.dumps(command[-1]) == '"ray==1"'
