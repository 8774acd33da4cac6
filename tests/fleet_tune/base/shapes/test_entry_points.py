"""Entry points: names for parts of the range of dynamic dimensions."""

from __future__ import annotations

import pytest

from fleet_tune.base.config.shape_options import asked_shapes, bounds
from fleet_tune.base.errors import RequestError
from fleet_tune.base.shapes.dimensions import Bounds, Dimension, parse_weights
from fleet_tune.base.shapes.entry_points import EntryPoint, parse_entry_point
from fleet_tune.base.shapes.shapes import Shapes, parse_shapes

TEXT = "tokens=1..512, past=0..1023; tokens=1:0.9,64:0.1; prompt: past=0; step: tokens=1, past=1..1023"


def test_the_text_of_shapes_has_their_entry_points() -> None:
    shapes = parse_shapes(TEXT)
    assert [each.name for each in shapes.entry_points] == ["prompt", "step"]
    assert shapes.entry_points[1].bounds == (Bounds("tokens", 1, 1), Bounds("past", 1, 1023))
    assert str(shapes) == TEXT
    assert parse_shapes(str(shapes)) == shapes
    assert [each.weights_text for each in shapes.dimensions] == ["tokens=1:0.9,64:0.1", ""]


def test_bounds_of_the_command_line_have_entry_points_and_no_weights() -> None:
    shapes = bounds("tokens=1..512; step: tokens=1", "--shapes")
    assert shapes.entry_points == (EntryPoint("step", (Bounds("tokens", 1, 1),)),)
    weighted = asked_shapes(shapes, parse_weights("tokens=1:0.9,64:0.1"))
    assert weighted is not None
    assert weighted.entry_points == shapes.entry_points
    assert bounds("step: tokens=1", "--shapes") == Shapes((), shapes.entry_points)  # bounds of the network's own
    with pytest.raises(RequestError, match="is no entry point") as refused:
        bounds("tokens=1..512; tokens=1:0.9", "--shapes")
    assert "weights have an option of their own" in refused.value.next_step


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("step tokens=1", "no entry point"),
        ("1st: tokens=1", "no entry point"),
        ("step: tokens", "no name with its bounds"),
        ("step: tokens=2..1", "the wrong way round"),
        ("step: tokens=1, tokens=2", "two bounds of 'tokens'"),
        ("step: tokens=70000", "cannot have the extent 70000"),
    ],
)
def test_what_is_no_entry_point_is_refused(text: str, problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        parse_entry_point(text)


def test_two_entry_points_of_one_name_are_refused() -> None:
    with pytest.raises(RequestError, match="two entry points are called 'a'"):
        parse_shapes("n=1..4; a: n=1; a: n=2")


def test_extents_are_within_an_entry_point() -> None:
    step = parse_entry_point("step: tokens=1, past=1..9")
    assert {"tokens": 1, "past": 9} in step
    assert {"tokens": 2, "past": 9} not in step
    assert step.wrong({"tokens": 1, "past": 0}) == Bounds("past", 1, 9)
    assert {"tokens": 7, "past": 0} in parse_entry_point("all:")


def test_entry_points_are_within_the_dimensions_of_the_network() -> None:
    dimensions = {"tokens": Dimension("tokens", 1, 1), "past": Dimension("past", 0, 63)}
    step = parse_entry_point("step: tokens=1, past=1..63")
    assert step.among(dimensions) == EntryPoint("step", (Bounds("past", 1, 63),))
    whole = parse_entry_point("step: tokens=1").among(dimensions)
    assert whole.bounds == ()
    assert parse_entry_point(str(whole)) == whole
    with pytest.raises(RequestError, match="'n', which is no dynamic dimension"):
        parse_entry_point("step: n=1").among(dimensions)
    with pytest.raises(RequestError, match=r"has past=1\.\.64, and the network has past=0\.\.63"):
        parse_entry_point("step: past=1..64").among(dimensions)


def test_typical_extents_are_those_of_most_time_within_an_entry_point() -> None:
    shapes = parse_shapes(TEXT)
    assert shapes.typical == {"tokens": 64, "past": 1023}
    prompt, step = shapes.entry_points
    assert prompt.typical(shapes.dynamic) == {"tokens": 64, "past": 0}
    assert step.typical(shapes.dynamic) == {"tokens": 1, "past": 1023}
    # Of extents without weights: the nearest to the typical one.
    assert parse_entry_point("few: tokens=2..32").typical(shapes.dynamic)["tokens"] == 32
    for each in (prompt, step):
        assert each.typical(shapes.dynamic) in shapes.samples
        assert each.typical(shapes.dynamic) in (*shapes.others, shapes.typical)
