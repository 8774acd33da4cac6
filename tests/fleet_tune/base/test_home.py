"""A home for users who have none: what takes its place, what does not, and what the user is told."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

from fleet_tune.base.errors import HomeError
from fleet_tune.base.home import provide_home

ROOT = Path(__file__).resolve().parents[3]
# Nobody can make a folder below a file, root neither.
CANNOT_BE_MADE = "/etc/passwd/home"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of temporary files. What a test changes in the environment is undone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("HOME", "USER", "LOGNAME"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    return tmp_path


def substitute(temporary: Path) -> Path:
    return temporary / f"fleet-tune-home-{os.geteuid()}"


def no_such_user(_uid: int) -> NoReturn:
    raise KeyError("uid not found")


@pytest.mark.parametrize("make", [True, False])
def test_a_home_that_can_be_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: bool) -> None:
    home = tmp_path / "home"
    if make:
        home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    assert provide_home() == ""
    assert (os.environ["HOME"], list(home.iterdir())) == (str(home), [])


@pytest.mark.parametrize("home", [CANNOT_BE_MADE, "/etc/passwd", "/proc"])
def test_a_home_that_cannot_be_written(temporary: Path, monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    monkeypatch.setenv("HOME", home)
    told = provide_home()
    folder = substitute(temporary)
    assert re.search(f"HOME={home} cannot be written .*{folder}; set HOME to", told)
    assert (os.environ["HOME"], folder.stat().st_mode & 0o777) == (str(folder), 0o700)
    assert provide_home() == ""


def test_a_home_that_is_only_asked_for_need_not_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", CANNOT_BE_MADE)
    assert provide_home(is_written=False) == ""
    assert os.environ["HOME"] == CANNOT_BE_MADE


@pytest.mark.parametrize("is_written", [True, False])
def test_a_user_who_is_not_known(temporary: Path, monkeypatch: pytest.MonkeyPatch, is_written: bool) -> None:
    for name in ("HOME", "USER", "LOGNAME"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(pwd, "getpwuid", no_such_user)
    assert "this user has no home folder" in provide_home(is_written)
    assert os.environ["HOME"] == str(substitute(temporary))
    assert os.environ["USER"] == f"uid{os.geteuid()}"


@pytest.mark.parametrize("mode", [0o755, 0o770, None])
def test_a_folder_that_others_may_enter_takes_no_place(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, mode: int | None
) -> None:
    monkeypatch.setenv("HOME", CANNOT_BE_MADE)
    if mode is None:
        (temporary / "elsewhere").mkdir(0o700)
        substitute(temporary).symlink_to(temporary / "elsewhere")
    else:
        substitute(temporary).mkdir()
        substitute(temporary).chmod(mode)
    with pytest.raises(HomeError, match="is not this user's alone; set HOME"):
        provide_home()
    assert os.environ["HOME"] == CANNOT_BE_MADE


def test_no_place_for_temporary_files(monkeypatch: pytest.MonkeyPatch, temporary: Path) -> None:
    monkeypatch.setenv("HOME", CANNOT_BE_MADE)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "missing"))
    with pytest.raises(HomeError, match="no temporary folder can take its place: No such file"):
        provide_home()


def test_the_command_tells_which_folder_it_uses(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": CANNOT_BE_MADE, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "fleet_tune", "records", "stats", "none.db"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    told, *rest = done.stderr.splitlines()
    assert (done.returncode, rest[0].split(":")[0]) == (2, "error")
    assert f"go to {substitute(tmp_path)}; set HOME" in told
