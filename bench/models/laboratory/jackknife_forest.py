"""AdaTune's forest with the uncertainty of the package that the paper names (forestci).

That package estimates the variance of the forest's mean by the infinitesimal jackknife (Wager, Hastie and Efron,
"Confidence Intervals for Random Forests", 2014, equations 5 and 7). With ``N_bi`` the times that record ``i`` is in the
sample of tree ``b`` of ``B``, and ``t_b`` the tree's prediction of a candidate:

    V = sum_i C_i^2 - n / B^2 sum_b (t_b - mean)^2,    C_i = 1 / B sum_b (N_bi - 1) (t_b - mean)

The second term is what so few trees add by chance; a variance that it makes negative counts as 0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from policies.arrays import Floats, Groups
from policies.cost_models import model_bytes
from policies.cost_models.forest import RandomForestModel
from policies.features.table import FeatureTable

_COUNTS = "in_bag"


class JackknifeForestModel(RandomForestModel):
    """The random forest on knobs, with the deviation of its mean instead of its trees' spread."""

    KIND: ClassVar[str] = "forest-jackknife"

    def __init__(self, seed: int = 0, trees: int = 10, max_features: int = 10) -> None:
        super().__init__(seed, trees, max_features)
        self._counts: NDArray[np.float64] = np.zeros((trees, 0))

    def fit(self, features: FeatureTable, log_secs: Floats, groups: Groups, weights: Floats | None = None) -> None:
        """See :meth:`RandomForestModel.fit`."""
        super().fit(features, log_secs, groups, weights)
        self._counts = in_bag_counts(len(log_secs), self.trees, self.seed, log_secs)

    def predict(self, features: FeatureTable) -> tuple[Floats, Floats]:
        """See :meth:`RandomForestModel.predict`."""
        if self._forest is None:
            raise ValueError("the model has not been trained")
        each = self._forest.evaluate(self._matrix(features))
        return each.mean(axis=0), np.sqrt(jackknife_variance(each, self._counts))

    def save(self) -> bytes:
        """See :meth:`CostModel.save`: the trees' arrays, and the counts."""
        saved = model_bytes.unpack(super().save(), self.KIND)
        return model_bytes.pack(replace(saved, arrays={**saved.arrays, _COUNTS: self._counts}))

    @classmethod
    def load(cls, data: bytes) -> Self:
        """The model that ``save`` wrote; ValueError for other bytes."""
        saved = model_bytes.unpack(data, cls.KIND)
        arrays = dict(saved.arrays)
        counts = arrays.pop(_COUNTS)
        model = super().load(model_bytes.pack(replace(saved, arrays=arrays)))
        model._counts = counts
        return model


def in_bag_counts(records: int, trees: int, seed: int, log_secs: Floats) -> NDArray[np.float64]:
    """Return how often each record is in each tree's sample, ``(B, n)``: the samples follow from the seed and the
    number of records alone, so that a forest of stumps has the same."""
    from sklearn.ensemble import RandomForestRegressor

    stumps = RandomForestRegressor(n_estimators=trees, max_depth=1, random_state=seed % 2**32, n_jobs=1)
    stumps.fit(np.zeros((records, 1)), log_secs)
    return np.array([np.bincount(sample, minlength=records) for sample in stumps.estimators_samples_], dtype=np.float64)


def jackknife_variance(each: Floats, counts: NDArray[np.float64]) -> Floats:
    """Return the variance of the mean of the trees' predictions ``each`` ``(B, m)``, ``(m,)``.

    ``counts`` ``(B, n)``: see :func:`in_bag_counts`.
    """
    trees, records = counts.shape
    away = each - each.mean(axis=0)
    covariances = (counts - 1.0).T @ away / trees
    by_chance = records / trees**2 * np.square(away).sum(axis=0)
    variance: Floats = np.square(covariances).sum(axis=0) - by_chance
    return np.maximum(variance, 0.0)
