"""A small made-up dataset: two sketches of a matrix product, one of them described."""

from __future__ import annotations

import numpy as np

from fleet_tune.base.domain import DeviceAbstraction, DeviceClass, Outcome, Task, Workload
from fleet_tune.base.sketch import Access, Axis, Choice, Loop, Sketch, Statement, Tile
from fleet_tune.base.task_data import OUTCOMES, TaskData
from policies.space.sampling import enumerate_all

CPU = DeviceAbstraction("cpu", 2, 16, 32, 48 * 1024, 1024 * 1024, 32 * 1024 * 1024, 512e9, 40e9)


def matmul_sketch(index: int, size: int = 64) -> Sketch:
    """A matrix product in two tilings and an unroll choice."""
    accesses = (
        Access("A", (size, size), 4, ((1, 0, 0), (0, 0, 1))),
        Access("B", (size, size), 4, ((0, 0, 1), (0, 1, 0))),
        Access("C", (size, size), 4, ((1, 0, 0), (0, 1, 0)), write=True),
    )
    axes = (Axis("i", size, False), Axis("j", size, False), Axis("k", size, True))
    loops = (Loop(0, 0), Loop(1, 2), Loop(2, 4), Loop(0, 1), Loop(2, 5), Loop(1, 3))
    main = Statement("matmul", axes, loops, accesses, 2.0, parallel_limit=32, vectorize_limit=64, unroll_column=6)
    tiles = (Tile(size, 2, 64), Tile(size, 2, 64), Tile(size, 2, 64))
    return Sketch(index, "tiling", f"sketch {index}", (*tiles, Choice("unroll", (0, 16, 64))), (main,))


def made_up(name: str, count: int = 160, seed: int = 0) -> TaskData:
    """A described and an undescribed sketch; costs depend smoothly on the decisions, a tenth are failures."""
    rng = np.random.default_rng(seed)
    plain = Sketch(1, "loops", "plain", (Tile(64, 3, 16), Choice("unroll", (0, 1, 2))), (), "made up")
    sketches = (matmul_sketch(0), plain)
    share = count // 2
    decisions = tuple(rng.permutation(enumerate_all(sketch))[:share] for sketch in sketches)
    owner = rng.permutation(np.repeat([0, 1], [len(matrix) for matrix in decisions]))
    costs = np.empty(len(owner))
    for at, matrix in enumerate(decisions):
        bowl = np.square(np.log2(1.0 + matrix) - 2.0).mean(axis=1)
        costs[owner == at] = 1e-4 * np.exp(0.5 * bowl + 0.02 * rng.standard_normal(len(matrix)))
    failed = rng.random(len(owner)) < 0.1
    run_secs = np.where(failed, np.nan, costs)[:, None].astype(np.float32)
    return TaskData(
        task=Task(Workload(name, name, 2.0 * 64**3, ""), DeviceClass("cpu", "{}")),
        abstraction=CPU,
        sketches=sketches,
        sketch_of=owner,
        decisions=decisions,
        run_secs=run_secs,
        build_secs=np.full(len(owner), 0.25),
        measure_secs=np.full(len(owner), 0.5),
        outcome=np.where(failed, OUTCOMES.index(Outcome.RUN_ERROR), OUTCOMES.index(Outcome.OK)),
        details=tuple("made up" if each else "" for each in failed),
    )
