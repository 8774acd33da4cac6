"""The options ``--shapes`` and ``--shapes-weights``: from text and files to one value of the request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet_tune.base.config.request import run_request
from fleet_tune.base.errors import RequestError
from fleet_tune.base.shapes.shapes import Shapes, parse_shapes


def shapes(**options: Any) -> Shapes | None:
    return run_request("net.onnx", out="o", **options).shapes


def test_bounds_and_weights_are_one_value() -> None:
    assert shapes() is None
    assert shapes(shapes="n=1..32, t=8") == parse_shapes("n=1..32, t=8")
    assert shapes(shapes="n=1..32", shapes_weights="n=1:3,8:1") == parse_shapes("n=1..32; n=1:3,8:1")


@pytest.mark.parametrize("text", ["8 1\n1 3\n", "extent,weight\n1,3\n8,1\n", "\ufeff# of a day\n\n1\t3 # most\n8, 1.0"])
def test_weights_are_read_from_a_file(text: str, tmp_path: Path) -> None:
    file = tmp_path / "n=1.csv"
    file.write_text(text, encoding="utf-8")
    assert shapes(shapes="n=1..32", shapes_weights=file) == parse_shapes("n=1..32; n=1:3,8:1")
    assert shapes(shapes="n=1..32", shapes_weights=str(file)) == parse_shapes("n=1..32; n=1:3,8:1")


def test_a_file_of_several_dimensions_names_them(tmp_path: Path) -> None:
    (tmp_path / "w").write_text("name,extent,weight\nt,8,2\nn,1,3\nt,16,1\n")
    assert shapes(shapes="n=1..32, t=1..16", shapes_weights=tmp_path / "w") == parse_shapes(
        "n=1..32, t=1..16; n=1:3; t=8:2,16:1"
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no weights; write lines"),
        ("1 2\nthree 4\n", "line 2: 'three 4' is no extent with its weight"),
        ("n m 2 3\n", "line 1: 'n m 2 3' is no extent"),
        ("n 2 3\n2 3\n", "line 2: '2 3' is no extent with its weight"),
        ("m 2 3\n", "those of 'm'"),
        ("1:2\n", "line 1: '1:2'"),
        ("1 -2\n", "the weight of the extent 1 of n is -2"),
        ("64 1\n", "the extent 64 of n has a weight, and the bounds are n=1..32"),
        ("1 1\n1 2\n", "the extent 1 of n has two weights"),
        ("1 1\n" * (2**20 + 1), "is larger than"),
    ],
)
def test_a_wrong_file_is_told_in_a_line(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "w").write_text(text)
    with pytest.raises(RequestError, match=told):
        shapes(shapes="n=1..32", shapes_weights=tmp_path / "w")


def test_a_file_of_bytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RequestError, match="cannot be read as text"):
        shapes(shapes="n=1..32", shapes_weights=tmp_path / "w")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"shapes": 4}, "bounds are text, not 4; give them with --shapes"),
        ({"shapes": "n"}, "is no name with its bounds"),
        ({"shapes_weights": "n=1:1"}, "there are no bounds; give --shapes too"),
        ({"shapes": "n=1..2", "shapes_weights": "no-file"}, "there is no file no-file; give --shapes-weights a file"),
        ({"shapes": "n=1..2", "shapes_weights": "m=1:1"}, "those of 'm'"),
        ({"shapes": "n=2", "shapes_weights": "n=2:1"}, "there is none"),
    ],
)
def test_wrong_values_are_told_in_a_line(options: dict[str, Any], told: str) -> None:
    with pytest.raises(RequestError, match=told):
        shapes(**options)
