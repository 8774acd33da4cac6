"""Features of candidates for the learned models: fixed names per sketch, and one joint layout per task.

The features of a sketch are the analyzer's terms in log2, then the raw decisions. Sketches of a task have different
features, so a task's model uses a joint layout: the union of the names. Equal names share a column, so that a model can
use what it learned about, say, accumulators in one sketch for the others. A column that a sketch lacks is NaN, which
gradient-boosted trees treat as missing.

A :class:`FeatureTable` carries one or more such descriptions of the same candidates, its *views*, to the cost models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Choice, Sketch, Tile
from policies.analysis.analyzer import Analysis, analyse
from policies.arrays import Features, Matrix
from policies.space.sampling import log_coordinates, sample

PREDICTED = "log_predicted"
"""Name of the column that holds the natural logarithm of the analyzer's seconds."""

SYMBOLIC = "symbolic"
"""The view of the joint symbolic features, ``(n, f)``, NaN where a sketch lacks the column."""

KNOBS = "knobs"
"""The view of the raw decisions alone: the columns :attr:`JointLayout.knobs` of the symbolic one."""

STANDARD = "standard"
"""The view of the standardised symbolic features: :mod:`policies.features.standard`."""

OF_A_TASK = frozenset({SYMBOLIC, KNOBS, STANDARD})
"""Views whose columns belong to one task: a model that is trained on them cannot serve another task."""


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """Candidates as cost models see them: ``n`` rows, and named views of them, each ``(n, ...)`` float32.

    A model reads the views it names (:attr:`policies.cost_models.protocol.CostModel.views`) and ignores the others.
    Raise ValueError if the views have different lengths, or if there is no view."""

    views: Mapping[str, Features]

    def __post_init__(self) -> None:
        lengths = {name: len(values) for name, values in self.views.items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"the views of a feature table have one length, got {lengths}")

    def __len__(self) -> int:
        return len(next(iter(self.views.values())))

    def view(self, name: str) -> Features:
        """Return one view. Raise ValueError if the table lacks it."""
        if name not in self.views:
            raise ValueError(f"the features lack the view '{name}', they have {sorted(self.views)}")
        return self.views[name]

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_] | slice) -> FeatureTable:
        """The table of these rows, in their order."""
        return FeatureTable({name: values[rows] for name, values in self.views.items()})

    @staticmethod
    def concatenate(tables: Sequence[FeatureTable]) -> FeatureTable:
        """Return the rows of all tables, one after the other. Raise ValueError if there is no table, or if their views
        differ."""
        if not tables:
            raise ValueError("there is no feature table to concatenate")
        names = tables[0].views.keys()
        if any(table.views.keys() != names for table in tables):
            raise ValueError(f"feature tables with different views: {[sorted(table.views) for table in tables]}")
        return FeatureTable({name: np.concatenate([table.views[name] for table in tables]) for name in names})


@lru_cache(maxsize=512)
def _decision_names(sketch: Sketch) -> tuple[str, ...]:
    names: list[str] = []
    roles = {
        loop.column: sketch.statements[0].axes[loop.axis].name
        for loop in (sketch.statements[0].loops if sketch.statements else ())
        if loop.column is not None
    }
    for index, (decision, start) in enumerate(zip(sketch.decisions, sketch.offsets, strict=True)):
        if isinstance(decision, Tile):
            for part in range(decision.width):
                axis = roles.get(start + part, f"decision{index}")
                names.append(f"tile.{axis}.{part}of{decision.parts}")
        elif isinstance(decision, Choice):
            names.append(f"choice.{decision.name}")
        else:
            names.append(f"location.{decision.block}")
    # Two decisions of the same role (two choices of one name) get separate columns.
    seen: dict[str, int] = {}
    unique = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        unique.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return tuple(unique)


@lru_cache(maxsize=512)
def _term_names(sketch: Sketch, device: DeviceAbstraction) -> tuple[str, ...]:
    if not sketch.described:
        return ()
    return tuple(analyse(sketch, sample(sketch, 1, np.random.default_rng(0)), device).terms)


def feature_names(sketch: Sketch, device: DeviceAbstraction) -> tuple[str, ...]:
    """Names of the columns of :func:`symbolic_features`: the same for every matrix of this sketch and device kind."""
    described = (PREDICTED, *_term_names(sketch, device)) if sketch.described else ()
    return described + _decision_names(sketch)


def symbolic_features(
    sketch: Sketch, matrix: Matrix, device: DeviceAbstraction, analysis: Analysis | None = None
) -> Features:
    """Features of every candidate, shape ``(n, f)``, float32, finite; ``f = len(feature_names(sketch, device))``.

    ``analysis``: the analyzer's result, if it is known. A sketch that is not described has only its decisions.
    """
    columns: list[NDArray[np.float64]] = []
    if sketch.described:
        analysed = analysis or analyse(sketch, matrix, device)
        columns.append(np.log(analysed.latency_secs))
        columns.extend(np.log2(np.maximum(term, 2.0**-40)) for term in analysed.terms.values())
    decisions = log_coordinates(sketch, matrix)
    stacked = np.concatenate([np.array(columns).reshape(len(columns), len(matrix)).T, decisions], axis=1)
    return stacked.astype(np.float32)


@dataclass(frozen=True)
class JointLayout:
    """Columns of a task's joint features. The last columns are one per sketch, 1 for the sketch itself and 0 for the
    others.
    """

    names: tuple[str, ...]
    """Name of each column."""
    positions: tuple[tuple[int, ...], ...]
    """The column of every feature, by sketch."""

    @property
    def knobs(self) -> tuple[int, ...]:
        """Columns that describe a candidate without the analyzer: its decisions and its sketch."""
        own = ("tile.", "choice.", "location.", "sketch.")
        return tuple(at for at, name in enumerate(self.names) if name.startswith(own))

    @property
    def offset_column(self) -> int | None:
        """Column of the analyzer's log seconds, NaN for a sketch that is not described; None if no sketch is
        described."""
        return self.names.index(PREDICTED) if PREDICTED in self.names else None

    def place(self, sketch: int, features: Features) -> Features:
        """Features of one sketch in the joint columns, shape ``(n, len(names))``."""
        joint = np.full((len(features), len(self.names)), np.nan, dtype=np.float32)
        joint[:, self.positions[sketch]] = features
        joint[:, -len(self.positions) :] = 0.0
        joint[:, len(self.names) - len(self.positions) + sketch] = 1.0
        return joint

    def table(self, sketch: int, features: Features) -> FeatureTable:
        """:meth:`place` as a table with the symbolic view."""
        return FeatureTable({SYMBOLIC: self.place(sketch, features)})


def joint_layout(sketches: Sequence[Sketch], device: DeviceAbstraction) -> JointLayout:
    """The joint layout of a task's sketches; deterministic in their order."""
    column: dict[str, int] = {}
    positions = []
    for sketch in sketches:
        positions.append(tuple(column.setdefault(name, len(column)) for name in feature_names(sketch, device)))
    return JointLayout((*column, *(f"sketch.{at}" for at in range(len(sketches)))), tuple(positions))
