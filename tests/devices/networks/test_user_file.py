"""What is said where a user's file raises an error: by which interpreter it was run, and what to do about it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from devices.networks.user_file import call_function
from fleet_tune.base.errors import NetworkError


@pytest.mark.parametrize("text", ["import nowhere.at_all\n", "def make():\n    import nowhere.at_all\n"])
def test_a_module_that_is_missing_is_to_be_installed_for_the_interpreter_that_runs_the_file(
    tmp_path: Path, text: str
) -> None:
    file = tmp_path / "nets.py"
    file.write_text(text)
    with pytest.raises(NetworkError, match=r"No module named 'nowhere'") as raised:
        call_function(file, "make")
    assert (
        raised.value.next_step == f"install the package of the module nowhere for {sys.executable}, which runs the file"
    )


@pytest.mark.parametrize(("text", "do"), [("1 / 0\n", "run"), ("def make():\n    1 / 0\n", "call")])
def test_any_other_error_is_to_be_mended(tmp_path: Path, text: str, do: str) -> None:
    file = tmp_path / "nets.py"
    file.write_text(text)
    with pytest.raises(NetworkError, match="division by zero") as raised:
        call_function(file, "make")
    assert raised.value.next_step == f"{do} it with {sys.executable} and fix it"


def test_helpers_beside_one_file_are_not_those_beside_another(tmp_path: Path) -> None:
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "helper_of_two_folders.py").write_text(f"WHERE = {name!r}\n")
        (folder / "net.py").write_text(
            "import helper_of_two_folders\n\n\ndef make():\n    return helper_of_two_folders.WHERE\n"
        )
    found = [call_function(tmp_path / name / "net.py", "make") for name in ("a", "b", "b", "a")]
    assert found == ["a", "b", "b", "a"]


def test_a_helper_that_the_program_has_imported_itself_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "helper_of_a_program.py").write_text("COUNT = []\n")
    (tmp_path / "net.py").write_text("import helper_of_a_program as h\n\n\ndef make():\n    return h.COUNT\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "net.py").write_text("def make():\n    return None\n")
    helper = importlib.import_module("helper_of_a_program")
    for file in (tmp_path / "net.py", tmp_path / "other" / "net.py", tmp_path / "net.py"):
        found = call_function(file, "make")
    assert found is helper.COUNT
