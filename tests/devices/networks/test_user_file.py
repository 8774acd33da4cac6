"""What is said where a user's file raises an error: by which interpreter it was run, and what to do about it."""

from __future__ import annotations

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
