"""Whatever bounds, weights and files of weights say, they are read, or refused by an error of ours."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from fleet_tune.base.config.shape_options import weights
from fleet_tune.base.errors import RequestError
from fleet_tune.base.shapes.shapes import parse_shapes


@given(st.text(alphabet="n=1234567890.,:;e- m", max_size=40))
@example("n=1..2; n=1:1e400")
@example("n=1..2; n=1:.")
@example("n=1..2, m=1..3; m=1:2; n=2:1")
def test_shapes(text: str) -> None:
    with contextlib.suppress(RequestError):
        shapes = parse_shapes(text)
        assert parse_shapes(str(shapes)) == shapes


@given(st.binary(max_size=60) | st.text(alphabet="1 2.,e-#\n", max_size=30).map(str.encode))
def test_files_of_weights(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "weights"
        file.write_bytes(content)
        with contextlib.suppress(RequestError):
            ((name, found),) = weights(file, "--shapes-weights").items()
            assert name is None
            assert all(isinstance(extent, int) and isinstance(weight, float) for extent, weight in found)
