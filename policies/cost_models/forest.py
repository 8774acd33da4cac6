"""AdaTune's surrogate: a random forest whose trees' spread is the uncertainty (section 4.2.1).

Settings of AdaTune's appendix A: scikit-learn's ``RandomForestRegressor`` with 10 trees, ``max_features`` 10, and its
defaults for the rest. Mean and deviation are those of the trees' predictions: ``mu = 1/T sum_t f_t(x)``,
``sigma^2 = 1/T sum_t (f_t(x) - mu)^2``. The paper names the package forestci, which estimates the variance of the
forest's mean by the infinitesimal jackknife instead. The target is log seconds, as for every model here.

scikit-learn only grows the trees. They are kept, saved and evaluated as plain arrays, so that a loaded forest predicts
exactly what the trained one does, without a pickle and without importing scikit-learn.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from policies.arrays import Floats, Groups
from policies.cost_models import model_bytes
from policies.cost_models.protocol import CostModelDefaults, check_records
from policies.features.table import KNOBS, FeatureTable
from policies.features.views import FEATURE_VERSION, check_version

TREES = 10
MAX_FEATURES = 10


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees side by side; a node is an index into all arrays but ``roots``. A row goes left if its feature is at most
    the threshold.
    """

    roots: NDArray[np.int32]
    """Root of each tree, ``(T,)``."""
    left: NDArray[np.int32]
    """Left child of each of ``N`` nodes, int32; leaves point to themselves."""
    right: NDArray[np.int32]
    """Right child, ``(N,)``."""
    feature: NDArray[np.int32]
    """Column that a node reads, ``(N,)``, int32."""
    missing_left: NDArray[np.int32]
    """1 where a missing feature goes left, ``(N,)``, int32."""
    threshold: Floats
    """Threshold of a node, ``(N,)``, float64."""
    value: Floats
    """Prediction of a leaf, ``(N,)``, float64."""
    depth: int
    """Depth of the deepest tree."""

    def evaluate(self, matrix: NDArray[np.float32]) -> Floats:
        """Prediction of each tree for rows ``(n, f)``, NaN for a missing feature: shape ``(T, n)``."""
        node = np.repeat(self.roots[:, None], len(matrix), axis=1)
        rows = np.arange(len(matrix))
        for _ in range(self.depth):
            seen = matrix[rows, self.feature[node]]
            # A comparison with NaN is false.
            goes_left = (seen <= self.threshold[node]) | (np.isnan(seen) & (self.missing_left[node] == 1))
            node = np.where(goes_left, self.left[node], self.right[node])
        return self.value[node]


class RandomForestModel(CostModelDefaults):
    """AdaTune's forest on the features of the paper: the knobs of a candidate, as numbers. Features may be NaN, never
    infinite."""

    KIND: ClassVar[str] = "forest-knobs"
    views: ClassVar[tuple[str, ...]] = (KNOBS,)

    def __init__(self, seed: int = 0, trees: int = TREES, max_features: int = MAX_FEATURES) -> None:
        if trees < 1 or max_features < 1:
            raise ValueError(f"trees and max_features must be at least 1, got {trees} and {max_features}")
        self.seed = seed
        self.trees = trees
        self.max_features = max_features
        self._columns = 0
        self._forest: Forest | None = None

    def fit(self, features: FeatureTable, log_secs: Floats, groups: Groups, weights: Floats | None = None) -> None:
        """See :meth:`CostModel.fit`."""
        check_records(features, log_secs, groups, weights)
        matrix = features.view(self.views[0])
        counts = np.ones(len(log_secs)) if weights is None else weights
        self._forest = _grow(matrix, log_secs, counts, self.trees, self.max_features, self.seed)
        self._columns = matrix.shape[1]

    def predict(self, features: FeatureTable) -> tuple[Floats, Floats]:
        """See :meth:`CostModel.predict`; the deviation is 0 where all trees agree."""
        if self._forest is None:
            raise ValueError("the model has not been trained")
        each = self._forest.evaluate(self._matrix(features))
        return each.mean(axis=0), each.std(axis=0)

    def _matrix(self, features: FeatureTable) -> NDArray[np.float32]:
        matrix = features.view(self.views[0])
        if matrix.shape[1] != self._columns:
            raise ValueError(f"the model reads {self._columns} columns of features, got {matrix.shape[1]}")
        return matrix

    def save(self) -> bytes:
        """See :meth:`CostModel.save`: the trees' arrays."""
        if self._forest is None:
            raise ValueError("the model has not been trained")
        arrays = {name: values for name, values in asdict(self._forest).items() if name != "depth"}
        header = {
            "version": FEATURE_VERSION,
            "seed": self.seed,
            "trees": self.trees,
            "max_features": self.max_features,
            "columns": self._columns,
            "depth": self._forest.depth,
        }
        return model_bytes.pack(model_bytes.SavedState(self.KIND, header, arrays))

    @classmethod
    def load(cls, data: bytes) -> Self:
        """The model that ``save`` wrote; ValueError for other bytes."""
        saved = model_bytes.unpack(data, cls.KIND)
        header = saved.header
        check_version(header)
        model = cls(header["seed"], header["trees"], header["max_features"])
        model._forest = Forest(**saved.arrays, depth=header["depth"])
        model._columns = header["columns"]
        return model


def _grow(
    matrix: NDArray[np.float32], log_secs: Floats, weights: Floats, trees: int, max_features: int, seed: int
) -> Forest:
    # This import takes two seconds, which only a process that trains should pay.
    from sklearn.ensemble import RandomForestRegressor

    grown = RandomForestRegressor(
        n_estimators=trees, max_features=min(max_features, matrix.shape[1]), random_state=seed % 2**32, n_jobs=1
    ).fit(matrix, log_secs, sample_weight=weights)
    parts = [estimator.tree_ for estimator in grown.estimators_]
    sizes = np.array([tree.node_count for tree in parts])
    roots = (np.cumsum(sizes) - sizes).astype(np.int32)

    def children(name: str) -> NDArray[np.int32]:
        # Leaves (children -1) point to themselves, so that every row can walk the full depth.
        nodes = [np.arange(size) for size in sizes]
        linked = [getattr(tree, name) for tree in parts]
        return np.concatenate(
            [np.where(link < 0, at, link) + root for link, at, root in zip(linked, nodes, roots, strict=True)]
        ).astype(np.int32)

    def joined(name: str) -> NDArray[np.float64]:
        return np.concatenate([getattr(tree, name).reshape(-1) for tree in parts]).astype(np.float64)

    return Forest(
        roots=roots,
        left=children("children_left"),
        right=children("children_right"),
        feature=np.maximum(joined("feature"), 0).astype(np.int32),
        missing_left=joined("missing_go_to_left").astype(np.int32),
        threshold=joined("threshold"),
        value=joined("value"),
        depth=max(int(tree.max_depth) for tree in parts),
    )
