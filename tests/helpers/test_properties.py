"""The same examples everywhere, in ``make test``."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.properties import FUZZ_EXAMPLES, examples


def drawn() -> list[int]:
    seen: list[int] = []

    @examples(300)
    @given(st.integers())
    def keep(number: int) -> None:
        seen.append(number)

    keep()
    return seen


@pytest.mark.skipif(FUZZ_EXAMPLES > 0, reason="make fuzz draws new examples")
def test_examples_do_not_depend_on_the_modules_that_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = drawn()
    source = tmp_path / "constants_of_ours.py"
    source.write_text("\n".join(f"C{at} = {7_654_321 + 1000 * at}" for at in range(50)))
    spec = importlib.util.spec_from_file_location("constants_of_ours", source)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "constants_of_ours", module)
    spec.loader.exec_module(module)
    assert drawn() == before
