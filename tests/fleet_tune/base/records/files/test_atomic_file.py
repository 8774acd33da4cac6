"""A file is there whole, old or new, whatever happens while it is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleet_tune.base.records.files.atomic_file import write_atomically


@pytest.mark.parametrize("durable", [True, False])
def test_the_new_file_takes_the_place_of_the_old_one(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old", durable=durable)
    write_atomically(path, b"new", durable=durable)
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_it_may_be_read_by_whom_the_process_lets(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    write_atomically(tmp_path / "file", b"")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_what_fails_keeps_the_old_file_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, durable: bool
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left")

    path = tmp_path / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, failing, fail)
    if failing == "fsync" and not durable:
        write_atomically(path, b"new", durable=False)  # asks for no fsync
        return
    with pytest.raises(OSError, match="no space left"):
        write_atomically(path, b"new", durable=durable)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "none" / "file", b"new")
