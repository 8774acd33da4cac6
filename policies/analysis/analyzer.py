"""Cost of a candidate on a device, in closed form: the draft's analytic model.

:func:`score` evaluates a whole decision matrix and returns the predicted latency and which candidates are worth
building at all; :func:`analyse` also returns Pruner's symbols and the intermediate terms, which are the features of the
learned models. The models are in :mod:`policies.analysis.cpu.model`, :mod:`policies.analysis.cpu.moves`,
:mod:`policies.analysis.cpu.row_wise` and :mod:`policies.analysis.cuda`.

Candidates are evaluated in float32, in chunks whose arrays stay in the cache: 0.5 to 1 microsecond for each candidate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Sketch
from policies.analysis import cuda as cuda_analysis
from policies.analysis.cpu import model as cpu_analysis
from policies.analysis.cpu.constants import CpuConstants
from policies.analysis.cpu.fitted import FITTED
from policies.analysis.cpu.model import CpuModel
from policies.analysis.cpu.moves import MovesModel, moves_across
from policies.analysis.cpu.row_wise import RowWiseModel
from policies.analysis.cuda import CudaModel
from policies.analysis.model import AnalyticModel
from policies.analysis.symbols import Symbols
from policies.arrays import Floats, Matrix
from policies.space.sampling import sample
from policies.space.variants import Rows, by_variant, variant

CHUNK = 8192
"""Candidates evaluated together: enough that numpy's calls cost little, few enough that they stay in a cache."""


@dataclass(frozen=True)
class Analysis:
    """The analytic model's result for ``n`` candidates."""

    latency_secs: Floats
    """Seconds of a run, ``(n,)``, positive and finite."""
    feasible: NDArray[np.bool_]
    """True for candidates that are worth building, ``(n,)``."""
    terms: dict[str, Floats]
    """Intermediate terms by name, each ``(n,)``."""
    symbols: tuple[Symbols, ...]
    """Symbols of each statement of a CUDA program, or of the main statement of a CPU program and of a sketch with
    variants; empty for a row-wise kernel."""


def model(
    sketch: Sketch,
    matrix: Matrix,
    device: DeviceAbstraction,
    dtype: DTypeLike = np.float32,
    constants: CpuConstants = FITTED,
) -> AnalyticModel:
    """Return the model for the kind of the device and of the sketch, evaluated for all rows at once.

    Raise ValueError if the sketch is not described. A sketch with variants is evaluated as its first variant. Only CPU
    models use ``constants``.
    """
    if sketch.row_wise is not None and device.kind == "cpu":
        return RowWiseModel(sketch, matrix, device, dtype, constants)
    if not sketch.statements:
        raise ValueError(f"sketch {sketch.index} is not described symbolically: {sketch.undescribed}")
    if device.kind == "cuda":
        return CudaModel(sketch, matrix, device, dtype)
    kind = MovesModel if moves_across(sketch.statements[0]) else CpuModel
    return kind(sketch, matrix, device, dtype, constants)


def core_names(kind: str) -> tuple[str, ...]:
    """Names of the terms that every described candidate for a device of this kind has (``core`` of the models)."""
    return cuda_analysis.CORE if kind == "cuda" else cpu_analysis.CORE


def models(
    sketch: Sketch, matrix: Matrix, device: DeviceAbstraction, constants: CpuConstants = FITTED
) -> Iterator[tuple[slice | Rows, AnalyticModel]]:
    """Yield the models of all rows in chunks, each with its rows. Without rows, a sketch without variants yields one
    empty chunk, and one with variants yields nothing."""
    if not sketch.variants:
        for start in range(0, max(len(matrix), 1), CHUNK):
            rows = slice(start, start + CHUNK)
            yield rows, model(sketch, matrix[rows], device, constants=constants)
        return
    for chosen, plain in by_variant(sketch, matrix):
        variant_rows = np.arange(len(matrix))[chosen]
        for at in range(0, len(variant_rows), CHUNK):
            rows_of = variant_rows[at : at + CHUNK]
            yield rows_of, model(plain, matrix[rows_of], device, constants=constants)


@lru_cache(maxsize=256)
def _variant_terms(sketch: Sketch, device: DeviceAbstraction) -> tuple[str, ...]:
    """Names of the terms of all variants, in the order of their first appearance."""
    row = sample(sketch, 1, np.random.default_rng(0))
    named = (model(variant(sketch, number), row, device).terms() for number in range(len(sketch.variants)))
    return tuple(dict.fromkeys(name for terms in named for name in terms))


def score(
    sketch: Sketch, matrix: Matrix, device: DeviceAbstraction, constants: CpuConstants = FITTED
) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the predicted seconds per run of every candidate, and whether it is worth building, each ``(n,)``.

    Raise ValueError if the sketch is not described.
    """
    latency = np.empty(len(matrix), dtype=np.float32)
    good = np.empty(len(matrix), dtype=bool)
    for rows, evaluation in models(sketch, matrix, device, constants):
        latency[rows], good[rows] = evaluation.latency_secs, evaluation.feasible
    return latency, good


def latency_secs(sketch: Sketch, matrix: Matrix, device: DeviceAbstraction) -> Floats:
    """Return the predicted seconds per run of every candidate, ``(n,)``. Raise ValueError if the sketch is not
    described."""
    return score(sketch, matrix, device)[0]


def feasible(sketch: Sketch, matrix: Matrix, device: DeviceAbstraction) -> NDArray[np.bool_]:
    """True for candidates that are worth building, shape ``(n,)``; for all of them if the sketch is not described."""
    if not sketch.described:
        return np.ones(len(matrix), dtype=bool)
    return score(sketch, matrix, device)[1]


def analyse(sketch: Sketch, matrix: Matrix, device: DeviceAbstraction) -> Analysis:
    """Evaluate the analytic model with all its terms. Raise ValueError if the sketch is not described.

    A term that a candidate's variant lacks is 0.
    """
    if sketch.variants:
        return _analyse_variants(sketch, matrix, device)
    parts = [
        Analysis(evaluation.latency_secs, evaluation.feasible, evaluation.terms(), evaluation.symbols())
        for _, evaluation in models(sketch, matrix, device)
    ]
    return parts[0] if len(parts) == 1 else _join(parts)


def _join(parts: list[Analysis]) -> Analysis:
    symbols = [
        Symbols(*(np.concatenate([getattr(each, field.name) for each in statement]) for field in fields(Symbols)))
        for statement in zip(*(part.symbols for part in parts), strict=True)
    ]
    return Analysis(
        np.concatenate([part.latency_secs for part in parts]),
        np.concatenate([part.feasible for part in parts]),
        {name: np.concatenate([part.terms[name] for part in parts]) for name in parts[0].terms},
        tuple(symbols),
    )


def _analyse_variants(sketch: Sketch, matrix: Matrix, device: DeviceAbstraction) -> Analysis:
    """The symbols are those of the main statement alone: the others differ between variants."""
    latency = np.empty(len(matrix), dtype=np.float32)
    good = np.empty(len(matrix), dtype=bool)
    terms = {name: np.zeros(len(matrix), dtype=np.float32) for name in _variant_terms(sketch, device)}
    symbols = {field.name: np.empty(len(matrix), dtype=np.float32) for field in fields(Symbols)}
    for rows, evaluation in models(sketch, matrix, device):
        latency[rows], good[rows] = evaluation.latency_secs, evaluation.feasible
        for name, values in evaluation.terms().items():
            terms[name][rows] = values
        for name, column in symbols.items():
            column[rows] = getattr(evaluation.symbols()[0], name)
    return Analysis(latency, good, terms, (Symbols(**symbols),))
