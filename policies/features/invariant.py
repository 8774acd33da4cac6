"""The analyzer's prediction and terms, and the device, in columns that all tasks and devices share.

Column 0 is the natural logarithm of the analyzer's seconds, from which a model may start. Column 1 says whether the
sketch is described (0: the other columns mean nothing). Column 2 is the natural logarithm of the predicted share of the
device's peak, so that tasks of different sizes can be compared. Then come the core terms of the analyzer
(:data:`policies.analysis.cpu.model.CORE`, :data:`policies.analysis.cuda.CORE`; the terms of the other kind of device
are 0) and the device's numbers, all in log2. Terms in seconds are divided by the seconds that the operations take at
the device's peak."""

from __future__ import annotations

import numpy as np

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Sketch
from policies.analysis import cuda as cuda_analysis
from policies.analysis.analyzer import core_names, model
from policies.analysis.cpu import model as cpu_analysis
from policies.analysis.cpu import row_wise
from policies.analysis.cpu.fitted import FITTED
from policies.analysis.quantities import nest
from policies.arrays import Features, Floats, Matrix
from policies.features.table import PREDICTED

LEAST_TERM = 2.0**-40
DESCRIBED = "described"
_DEVICE = ("cores", "lanes", "registers", "l1_bytes", "l2_bytes", "l3_bytes", "peak_flops", "bandwidth_bytes")

NAMES: tuple[str, ...] = (
    PREDICTED,
    DESCRIBED,
    "log_peak_share",
    *(f"cpu.{name}" for name in cpu_analysis.CORE),
    *(f"cuda.{name}" for name in cuda_analysis.CORE),
    *(f"device.{name}" for name in _DEVICE),
    "device.cuda",
)
"""Names of the columns."""


def invariant_features(sketch: Sketch, matrix: Matrix, device: DeviceAbstraction) -> Features:
    """The columns of :data:`NAMES`, ``(n, len(NAMES))``, finite. Needs a described sketch without variants."""
    evaluation = model(sketch, matrix, device)
    features = np.zeros((len(matrix), len(NAMES)), dtype=np.float32)
    predicted = np.log(evaluation.latency_secs)
    features[:, 0] = predicted
    features[:, 1] = 1.0
    peak = device.peak(sketch.statements[0].arithmetic if sketch.statements else "float32")
    floor_secs = np.maximum(_flop(sketch, matrix), 1.0) / peak
    features[:, 2] = np.log(floor_secs) - predicted
    core = evaluation.core()
    start = 3 if device.kind == "cpu" else 3 + len(cpu_analysis.CORE)
    for column, name in enumerate(core_names(device.kind), start):
        term = core[name] / floor_secs if name.endswith("_secs") else core[name]
        features[:, column] = np.log2(np.maximum(term, LEAST_TERM))
    first = len(NAMES) - len(_DEVICE) - 1
    for column, name in enumerate(_DEVICE, first):
        features[:, column] = np.log2(1.0 + (peak if name == "peak_flops" else getattr(device, name)))
    features[:, -1] = float(device.kind == "cuda")
    return features


def _flop(sketch: Sketch, matrix: Matrix) -> Floats:
    """Float operations of every candidate, ``(n,)``."""
    if sketch.row_wise is not None:
        return np.full(len(matrix), row_wise.flop(sketch.row_wise, FITTED), dtype=np.float32)
    points = (nest(each, matrix, np.float32).points() * each.flop_per_point for each in sketch.statements)
    return sum(points, np.zeros(len(matrix), dtype=np.float32))
