"""Any text as a fleet file: a fleet, or one error of ours that names the file."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleet_tune.base.config.fleet_file import _KIND, FleetConfig, load_fleet
from fleet_tune.base.config.values import duration
from fleet_tune.base.errors import FleetFileError, RequestError
from tests.helpers.fuzz import damaged
from tests.helpers.properties import examples

WHOLE = (Path(__file__).parents[4] / "examples/fleet.toml").read_bytes()
KEYS = st.sampled_from([*_KIND.tables, *(key for table in _KIND.tables.values() for key in table.model_fields)])
VALUES = st.one_of(
    st.integers().map(str),
    st.sampled_from(
        ["nan", "-inf", "9" * 400, "9" * 5000, "1e999", "1979-05-27", "[" * 3000, "{a=" * 3000, "[]", "{}"]
    ),
    st.floats().map(lambda number: repr(number)),
    st.booleans().map(lambda value: str(value).lower()),
    st.text(max_size=30).map(json.dumps),
    st.sampled_from(["local", "h:1", "tracker://h:1/k", "recorded:f", "native"]).map(json.dumps),
)
TABLES = st.sampled_from(["[[device]]", "[build]", "[measure]", "[device]", ""])


@st.composite
def tables(draw: st.DrawFn) -> bytes:
    lines = []
    for _ in range(draw(st.integers(1, 3))):
        lines.append(draw(TABLES))
        lines += [f"{draw(KEYS)} = {draw(VALUES)}" for _ in range(draw(st.integers(0, 4)))]
    return "\n".join(lines).encode(errors="replace")


@given(st.one_of(damaged(WHOLE), damaged(b'[[device]]\nname = "a"\nconnect = "h:1"\n'), tables()))
@examples(150)
def test_any_file(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "fleet.toml"
        file.write_bytes(content)
        told = ""
        try:
            assert isinstance(load_fleet(file), FleetConfig)
        except FleetFileError as error:
            told = str(error)
        assert not told or str(file) in told
        assert len(told) < 2000


@given(st.one_of(st.text(max_size=30), st.from_regex(r"[0-9]{1,20}(\.[0-9]+)?[dhms]?", fullmatch=True)))
@examples(100)
def test_any_duration(text: Any) -> None:
    with contextlib.suppress(RequestError):
        assert 0 < duration(text) <= 1e9
