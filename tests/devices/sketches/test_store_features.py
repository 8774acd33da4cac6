"""TVM's per-store features: the view's shape, what is padded, and that schedules tell apart."""

from __future__ import annotations

import dataclasses

import numpy as np
from tvm import te

from devices.sketches.spaces import DesignSpace
from devices.sketches.store_features import STORE_NUMBERS, STORES, StoreFeatures
from fleet_tune.base.domain import Candidate, Task
from policies.features.views import PER_STORE, VIEW_SHAPES
from policies.space.sampling import sample
from tests.helpers.kernels import native_target
from tests.helpers.programs import program_task


def matmul() -> Task:
    a, b = te.placeholder((32, 32), name="a"), te.placeholder((32, 32), name="b")
    k = te.reduce_axis((0, 32), name="k")
    c = te.compute((32, 32), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    return program_task((a, b, c), native_target())


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
