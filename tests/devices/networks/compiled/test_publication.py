"""A folder in which another network is published: while it is loaded, and after an interruption."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from devices.networks.compiled import network, network_folder
from devices.networks.compiled.manifest import MANIFEST, checked_file
from devices.networks.compiled.network_folder import compile_network, load, publish, staging
from fleet_tune.base.errors import OutputFolderError
from tests.helpers.lowered_networks import imported


class Scaled(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((8,), factor))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def compiled(folder: Path, factor: float) -> Path:
    lowered, _ = imported(Scaled(factor), torch.zeros(2, 8))
    compile_network(lowered, {}, folder)
    return folder


def once_checked(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], None]) -> None:
    """Call ``act`` once, after the file of that name was compared with the manifest."""
    left = [act]

    def check(folder: Path, checked: str, *more: object) -> Path:
        path = checked_file(folder, checked, *more)  # type: ignore[arg-type]
        if checked == name and left:
            left.pop()()
        return path

    monkeypatch.setattr(network, "checked_file", check)


@pytest.mark.parametrize("after", ["network.so", "params.safetensors"])
def test_another_network_is_loaded_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str) -> None:
    """The weights of both have the same shapes: a mixture would only have wrong numbers."""
    out, new = compiled(tmp_path / "out", 2.0), compiled(tmp_path / "new", 3.0)
    once_checked(monkeypatch, after, lambda: publish(new, out))
    assert load(out)(np.ones((2, 8), np.float32)).tolist() == [[3.0] * 8] * 2


def test_a_link_that_moves_leads_to_one_of_the_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(tmp_path / "v1", 2.0)
    compiled(tmp_path / "v2", 3.0)
    current = tmp_path / "current"
    current.symlink_to("v1")

    def move() -> None:
        (tmp_path / "next").symlink_to("v2")
        os.replace(tmp_path / "next", current)

    once_checked(monkeypatch, "network.so", move)
    assert load(current)(np.ones((2, 8), np.float32)).tolist() == [[2.0] * 8] * 2
    assert load(current)(np.ones((2, 8), np.float32)).tolist() == [[3.0] * 8] * 2


@pytest.mark.parametrize("moved", [1, 2])
def test_a_publication_that_was_interrupted_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    """``moved``: files that are in place when the process ends."""
    out, left = compiled(tmp_path / "out", 2.0), [moved]

    def replace(source: Path, target: Path) -> None:
        if not left[0]:
            raise OSError(errno.EIO, "the process ends")
        left[0] -= 1
        source.rename(target)

    with staging(out) as stage, monkeypatch.context() as patched:
        compiled(stage, 3.0)
        patched.setattr(network_folder.os, "replace", replace)
        with pytest.raises(OutputFolderError):
            publish(stage, out)
    with staging(out):
        assert load(out)(np.ones((2, 8), np.float32)).tolist() == [[3.0] * 8] * 2
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", "network.so", "params.safetensors"]


def test_a_network_of_another_tvm_is_refused(tmp_path: Path) -> None:
    out = compiled(tmp_path / "out", 2.0)
    manifest = json.loads((out / MANIFEST).read_text())
    manifest["versions"]["tvm"] = "0.1.0"
    (out / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(OutputFolderError, match=r"compiled with TVM 0\.1\.0, and this is TVM"):
        load(out)
