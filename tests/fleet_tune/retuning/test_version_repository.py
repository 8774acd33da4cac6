"""Versions on disk: whole or not there, the last one kept, and back by one step."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fleet_tune.base.errors import DiskFullError, RetuneError
from fleet_tune.retuning.version_repository import VersionRepository


def _made(folder: Path, of: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "network.so").write_text(of)
    (folder / "inputs.safetensors").write_text("inputs")
    (folder / "manifest.json").write_text(json.dumps({"made_of": of, "files": {"network.so": "digest"}}))
    return folder


@pytest.fixture
def repository(tmp_path: Path) -> VersionRepository:
    return VersionRepository(tmp_path / "networks", keep=3)


def test_a_version_is_a_folder_of_its_own_and_current_points_to_it(
    tmp_path: Path, repository: VersionRepository
) -> None:
    source = _made(tmp_path / "work", "one")
    version = repository.publish("net", "orin", source, {"why": "the first version", "secs": 0.5})
    place = repository.place("net", "orin")
    assert os.readlink(place / "current") == "v0001"
    assert (place / "current" / "network.so").read_text() == "one"
    assert (place / "current" / "inputs.safetensors").exists()
    assert version.provenance["why"] == "the first version"
    assert version.provenance["version"] == 1
    assert version.secs == 0.5
    # The run goes on in its folder, and replaces its files: what was published stays.
    (source / "part").write_text("two")
    (source / "part").replace(source / "network.so")
    assert (place / "current" / "network.so").read_text() == "one"
    assert repository.places() == [("net", "orin")]


@pytest.mark.parametrize("fails", ["os.link", "os.rename", "os.replace", "os.fsync"])
def test_what_fails_on_the_way_leaves_the_last_version(
    tmp_path: Path, repository: VersionRepository, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    repository.publish("net", "orin", _made(tmp_path / "first", "one"), {})
    source = _made(tmp_path / "second", "two")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(fails, full)
        if fails == "os.link":  # then it is copied
            patch.setattr("shutil.copyfile", full)
        with pytest.raises(DiskFullError, match="no space left"):
            repository.publish("net", "orin", source, {})
    current = repository.current("net", "orin")
    assert current is not None
    assert current.made_of == "one"
    assert repository.publish("net", "orin", source, {}).made_of == "two"
    assert not list(repository.place("net", "orin").glob("*.part"))


def test_old_versions_go_by_the_rule(tmp_path: Path, repository: VersionRepository) -> None:
    for number in range(1, 8):
        repository.publish("net", "orin", _made(tmp_path / str(number), f"of {number}"), {})
    assert [each.number for each in repository.versions("net", "orin")] == [5, 6, 7]


def test_a_rollback_is_one_step_and_what_was_withdrawn_is_known(tmp_path: Path, repository: VersionRepository) -> None:
    for number in (1, 2, 3):
        repository.publish("net", "orin", _made(tmp_path / str(number), f"of {number}"), {})
    before, after = repository.roll_back("net", "orin")
    assert (before.number, after.number) == (3, 2)
    assert repository.current_number("net", "orin") == 2
    assert repository.is_withdrawn("net", "orin", "of 3")
    assert [each.withdrawn for each in repository.versions("net", "orin")] == [False, False, True]
    # The next one is newer than all that were there, and those to which one may go back are kept.
    assert repository.publish("net", "orin", _made(tmp_path / "4", "of 4"), {}).number == 4
    assert repository.roll_back("net", "orin")[1].number == 2
    # Forward again, by its number.
    assert repository.roll_back("net", "orin", to=3)[1].number == 3
    assert not repository.is_withdrawn("net", "orin", "of 3")


def test_a_rollback_that_leads_nowhere_says_so(tmp_path: Path, repository: VersionRepository) -> None:
    with pytest.raises(RetuneError, match="net has no version for orin"):
        repository.roll_back("net", "orin")
    repository.publish("net", "orin", _made(tmp_path / "1", "one"), {})
    with pytest.raises(RetuneError, match="no version before 1"):
        repository.roll_back("net", "orin")
    with pytest.raises(RetuneError, match="version 7 of net for orin is not kept"):
        repository.roll_back("net", "orin", to=7)
    with pytest.raises(RetuneError, match="is the current one"):
        repository.roll_back("net", "orin", to=1)


def test_a_folder_without_a_network_is_not_published(tmp_path: Path, repository: VersionRepository) -> None:
    folder = _made(tmp_path / "torn", "one")
    (folder / "manifest.json").write_text("{")
    with pytest.raises(RetuneError, match="no whole network"):
        repository.publish("net", "orin", folder, {})
    assert repository.versions("net", "orin") == []
