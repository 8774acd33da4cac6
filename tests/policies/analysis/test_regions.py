"""Candidates whose placed statements have loops of no constant extent: by hand, and against what TVM refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.records.datasets.dataset import load
from fleet_tune.base.sketch import Access, Axis, Location, Loop, Sketch, Statement, Tile
from policies.analysis.analyzer import analyse
from policies.analysis.cpu.fitted import FITTED
from policies.analysis.cpu.producers_consumers import count_partial_sums, place
from policies.analysis.cpu.program import Program
from policies.analysis.cpu.regions import refused

DATA = Path(__file__).parents[3] / "bench" / "data"
REFUSAL = "DisallowDynamicLoop"


def _padded(width: int, taps: int, vector: int) -> Sketch:
    """A row of ``width`` sums over ``taps`` neighbours of a padded row that is made in vectors of ``vector``, either
    before all others or inside of the outer of two loops."""
    padded = width + taps - 1
    axes = (Axis("x", width, False), Axis("k", taps, True))
    loops = (Loop(0, 0), Loop(0, 1), Loop(1, None, taps))
    accesses = (
        Access("padded", (padded,), 4, ((1, 1),)),
        Access("w", (taps,), 4, ((0, 1),)),
        Access("out", (width,), 4, ((1, 0),), write=True),
    )
    pad = Statement(
        "pad",
        (Axis("i", padded, False),),
        (Loop(0, None, padded // vector), Loop(0, None, vector, "vectorize")),
        (Access("in", (width,), 4, ((1,),)), Access("padded", (padded,), 4, ((1,),), write=True)),
        0.0,
        location_column=2,
    )
    decisions = (Tile(width, 2, 64), Location("pad", (-1, 0)))
    return Sketch(0, "padded", "padded", decisions, (Statement("sums", axes, loops, accesses, 2.0), pad))


def test_tiles_whose_regions_have_as_many_vectors_everywhere(cpu: DeviceAbstraction) -> None:
    sketch = _padded(20, 3, 11)
    matrix = np.array([[2, 10, 1], [1, 20, 1], [4, 5, 1], [10, 2, 1], [20, 1, 1], [4, 5, 0]])
    # Of 2 x 10: elements 0 to 11 and 10 to 21, each of two vectors of 11. Of 4 x 5: 0 to 6 is one, 5 to 11 is two.
    # Outside of all loops the padding is made at once, whatever the tile.
    assert analyse(sketch, matrix, cpu).feasible.tolist() == [True, True, False, False, False, True]


def test_tiles_that_begin_where_a_vector_does(cpu: DeviceAbstraction) -> None:
    sketch = _padded(31, 2, 16)  # 31 is prime: one element, which begins within a vector, or all
    assert analyse(sketch, np.array([[31, 1, 1], [1, 31, 1]]), cpu).feasible.tolist() == [False, True]
    sketch = _padded(64, 1, 16)
    # 16 and 32 elements are whole vectors, 8 are within one, 64 all; TVM sees that of 8 by what 8 and 16 share.
    tiles = np.array([[4, 16, 1], [2, 32, 1], [8, 8, 1], [1, 64, 1]])
    assert analyse(sketch, tiles, cpu).feasible.all()


def _grouped(vector: int) -> Sketch:
    """A 1x1 convolution of 8 pixels and 96 channels in 4 groups of 24, of 8 inputs each; the 32 inputs are copied
    inside of the outer of two loops over channels, in vectors of ``vector`` or one by one."""
    axes = (Axis("p", 8, False), Axis("c", 96, False, (4, 24)), Axis("k", 8, True))
    loops = (Loop(1, 0), Loop(1, 1), Loop(0, None, 8), Loop(2, None, 8))
    accesses = (
        Access("padded", (8, 32), 4, ((1, 0, 0, 0), (0, 8, 0, 1))),
        Access("w", (8, 96), 4, ((0, 0, 0, 1), (0, 24, 1, 0))),
        Access("out", (8, 96), 4, ((1, 0, 0, 0), (0, 24, 1, 0)), write=True),
    )
    inner = (Loop(1, None, 32 // vector), Loop(1, None, vector, "vectorize")) if vector > 1 else (Loop(1, None, 32),)
    copy = (Access("in", (8, 32), 4, ((1, 0), (0, 1))), Access("padded", (8, 32), 4, ((1, 0), (0, 1)), write=True))
    copied = (Axis("p", 8, False), Axis("c", 32, False))
    pad = Statement("pad", copied, (Loop(0, None, 8), *inner), copy, 0.0, location_column=2)
    decisions = (Tile(96, 2, 64), Location("pad", (-1, 0)))
    return Sketch(0, "grouped", "grouped", decisions, (Statement("sums", axes, loops, accesses, 2.0), pad))


def test_tiles_of_channels_that_begin_within_a_group(cpu: DeviceAbstraction) -> None:
    tiles = np.array([[4, 24, 1], [2, 48, 1], [8, 12, 1], [3, 32, 1], [6, 16, 1], [6, 16, 0]])
    # Whole groups, or within one; 32 channels are of two groups wherever they begin, 16 of one or of two.
    assert analyse(_grouped(1), tiles, cpu).feasible.tolist() == [True, True, True, True, False, True]
    # The same where the pixels are counted in rows and columns.
    plain = _grouped(16)
    main, pad = plain.statements
    rows = (Axis("p", 8, False, (2, 4)), pad.axes[1])
    accesses = tuple(replace(its, index=((4, 1, 0), (0, 0, 1))) for its in pad.accesses)
    in_rows = replace(plain, statements=(main, replace(pad, axes=rows, accesses=accesses)))
    assert (analyse(in_rows, tiles, cpu).feasible == analyse(plain, tiles, cpu).feasible).all()
    # In vectors of two groups (48 channels) 16 channels are of one vector, 32 of one or two.
    assert analyse(_grouped(16), tiles, cpu).feasible.tolist() == [True, True, True, False, True, True]


def test_a_digit_that_begins_again_does_not_go_on(cpu: DeviceAbstraction) -> None:
    """Of 96 channels in 4 groups of 24 the place within the group is read, in vectors of 7."""
    sketch = _grouped(1)
    main, pad = sketch.statements
    accesses = tuple(replace(its, shape=(8, 28)) for its in pad.accesses)
    columns = (Axis("p", 8, False), Axis("c", 28, False))
    loops = (Loop(0, None, 8), Loop(1, None, 4), Loop(1, None, 7, "vectorize"))
    pad = replace(pad, axes=columns, loops=loops, accesses=accesses)
    read = (Access("padded", (8, 28), 4, ((1, 0, 0, 0), (0, 0, 1, 0))), *main.accesses[1:])
    within = replace(sketch, statements=(replace(main, accesses=read), pad))
    # Each tile of whole groups begins with a group; of 12 channels every other one begins within a vector.
    tiles = np.array([[4, 24, 1], [2, 48, 1], [8, 12, 1]])
    assert analyse(within, tiles, cpu).feasible.tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("file", "by_tvm", "mistaken"),
    [
        ("strided/znver4-2", 81, 0),
        ("grouped/znver5-1", 111, 0),
        ("fresh/znver4-2", 142, 2),
        ("models/znver4-2", 170, 1),
    ],
)
def test_what_tvm_refused_is_ruled_out_and_what_ran_is_not(file: str, by_tvm: int, mistaken: int) -> None:
    """Of recorded candidates; ``mistaken``: on how many it may be wrong, either way."""
    told = wrong = 0
    for data in load((DATA / file).with_suffix(".ftd")).tasks:
        for number, sketch in enumerate(data.sketches):
            rows = data.rows(number)
            if not len(rows) or not sketch.statements:
                continue
            said = np.array([REFUSAL in str(data.details[row]) for row in rows])
            if sketch.variants:
                assert not said.any()
                continue
            matrix = np.array([data.candidate(int(row)).decisions for row in rows])
            program = Program(sketch, matrix, data.abstraction, np.float64, FITTED)
            partial_sums = count_partial_sums(program)
            found = refused(program, [place(program, other, partial_sums) for other in sketch.statements[1:]])
            told += int(said.sum())
            wrong += int((said & ~found).sum()) + int((data.ok[rows] & found).sum())
    assert told == by_tvm
    assert wrong <= mistaken
