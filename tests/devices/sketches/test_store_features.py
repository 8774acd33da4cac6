"""TVM's per-store features: the view's shape, what is padded, and that schedules tell apart."""

from __future__ import annotations

import dataclasses

import numpy as np
import tvm
from tvm import te

from devices.sketches.spaces import DesignSpace
from devices.sketches.store_features import STORE_NUMBERS, STORES, StoreFeatures
from devices.targets import resolve_target
from fleet_tune.domain import Candidate, DeviceClass, Task, Workload
from policies.features.views import PER_STORE, VIEW_SHAPES
from policies.space.sampling import sample


def matmul() -> Task:
    a, b = te.placeholder((32, 32), name="a"), te.placeholder((32, 32), name="b")
    k = te.reduce_axis((0, 32), name="k")
    c = te.compute((32, 32), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    func = te.create_prim_func([a, b, c]).with_attr({"global_symbol": "main", "tirx.noalias": True})
    text = tvm.ir.save_json(tvm.IRModule({"main": func}))
    return Task(Workload("hash", "test", 1.0, text), DeviceClass("here", resolve_target("native", threads=2)))


def test_features_of_lowered_programs() -> None:
    task = matmul()
    space = DesignSpace(task)
    sketch = next(each for each in space.sketches if each.statements)
    matrix = sample(sketch, 3, np.random.default_rng(0))
    candidates = [Candidate(task.id, sketch.index, sketch.id, tuple(row)) for row in matrix.tolist()]
    impossible = dataclasses.replace(candidates[0], decisions=tuple(7 for _ in candidates[0].decisions))
    extractor = StoreFeatures(task, space)
    view = extractor.view([*candidates, impossible])
    assert view.shape == (4, STORES, STORE_NUMBERS) == (4, *VIEW_SHAPES[PER_STORE])
    assert np.isfinite(view).all()
    assert view[:3].any(axis=(1, 2)).all()
    assert not np.array_equal(view[0], view[1])
    assert not view[3].any()  # it cannot be scheduled
    assert np.array_equal(extractor.view(candidates[1:2])[0], view[1])
    assert extractor.view([]).shape == (0, STORES, STORE_NUMBERS)
