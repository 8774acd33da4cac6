"""The network that a folder holds before a run: another one does not overwrite it, and a class keeps its folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from devices.networks.compiled.manifest import SCHEMA
from fleet_tune.base.errors import OutputFolderError
from fleet_tune.runs.preparing.present_network import published_class, refuse_other_network
from fleet_tune.runs.publishing.networks import folder_of


def _published(folder: Path, name: str, device_class: str) -> None:
    said = {"target": {"kind": "llvm"}, "device_class": device_class, "files": {}, "parameters": [], "inputs": []}
    (folder / "manifest.json").write_text(json.dumps({"schema": SCHEMA, "model": name, **said}))


def test_another_network_is_refused_and_named(tmp_path: Path) -> None:
    refuse_other_network(tmp_path, "ResNet")
    refuse_other_network(tmp_path / "missing", "ResNet")
    _published(tmp_path, "ResNet", "cpu")
    refuse_other_network(tmp_path, "ResNet")
    with pytest.raises(OutputFolderError, match="holds the compiled network ResNet, not Bert"):
        refuse_other_network(tmp_path, "Bert")


def test_a_class_keeps_its_folder_when_another_one_comes(tmp_path: Path) -> None:
    assert published_class(tmp_path) is None
    assert folder_of(tmp_path, "cpu", 1) == tmp_path
    assert folder_of(tmp_path, "cpu", 2) == tmp_path / "cpu"
    _published(tmp_path, "ResNet", "cpu")
    for classes in (1, 2):
        assert [folder_of(tmp_path, each, classes) for each in ("cpu", "board")] == [tmp_path, tmp_path / "board"]


def test_a_manifest_that_cannot_be_read_refuses_nothing(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{")
    refuse_other_network(tmp_path, "ResNet")
    assert published_class(tmp_path) is None
