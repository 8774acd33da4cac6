"""TVM's per-store features of candidates: the view ``per_store`` of :mod:`policies.features.views`.

Unlike the other views they need the program: every candidate is scheduled, post-processed and lowered, 20 to 100 ms
each. Only cost models that ask for the view pay for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from tvm.s_tir import Schedule, Trace
from tvm.s_tir import meta_schedule as ms

from devices.sketches.spaces import DesignSpace, ScheduleError, parse_module
from devices.targets import parse_target
from fleet_tune.base.domain import Candidate, Task

STORES = 8
STORE_NUMBERS = 164


class StoreFeatures:
    """Extracts the features of one task's candidates. Keeps the parsed program in memory."""

    def __init__(self, task: Task, space: DesignSpace) -> None:
        self._space = space
        self._module = parse_module(task.workload.module)
        self._context = ms.TuneContext(self._module, target=parse_target(task.device_class.target), num_threads=1)
        self._extractor = ms.feature_extractor.PerStoreFeature()

    def view(self, candidates: Iterable[Candidate]) -> NDArray[np.float32]:
        """Return features ``(n, STORES, STORE_NUMBERS)`` of the stores with the most operations and traffic, in the
        order of the program; 0 beyond the program's, and for a candidate that cannot be scheduled."""
        rows = [self._stores(candidate) for candidate in candidates]
        features = np.zeros((len(rows), STORES, STORE_NUMBERS), dtype=np.float32)
        for at, stores in enumerate(rows):
            # The features are logarithms: the largest sums belong to the stores with the most work.
            largest = np.sort(np.argsort(-stores.sum(axis=1), kind="stable")[:STORES])
            features[at, : len(largest)] = stores[largest]
        return features

    def _stores(self, candidate: Candidate) -> NDArray[np.float32]:
        """Return features of every store of the program, ``(stores, STORE_NUMBERS)``; (0, STORE_NUMBERS) without a
        program."""
        try:
            scheduled = self._space.schedule(candidate)
        except ScheduleError:
            return np.empty((0, STORE_NUMBERS), dtype=np.float32)
        schedule = Schedule(self._module, debug_mask="none", error_render_level="none")
        Trace.apply_json_to_schedule(json.loads(scheduled.trace), schedule)
        args = ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
        (features,) = self._extractor.extract_from(self._context, [ms.search_strategy.MeasureCandidate(schedule, args)])
        return np.asarray(features.numpy(), dtype=np.float32)
