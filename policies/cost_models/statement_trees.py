"""Ansor's cost model: gradient-boosted trees whose score of a program is the sum over its statements.

Notation: ``x_is`` the features of statement ``s`` of record ``i``, ``y_i`` its throughput over the best of its task, in
(0, 1]. A member ``f`` is trained on

    loss = sum_i y_i (sum_s f(x_is) - y_i)^2

(the weighted square error of Ansor's code: fast programs count more). A statement's features are those of the view
``statements``: its operations, how its loops run, what it holds and moves at each level of memory, how it accesses its
buffers. Settings are those of Ansor's code, except the number of rounds, which Ansor's code finds by stopping early.

The score only orders candidates. As for every rank model here, :mod:`policies.cost_models.out_of_bag` turns it into
seconds with a deviation. For this the model is an ensemble; Ansor has a single model.
"""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from policies.arrays import Floats, Groups
from policies.cost_models.boosted import MAX_BIN, BoostedSettings, GradientBoostedModel
from policies.cost_models.lambda_rank import fastest_of_group
from policies.cost_models.out_of_bag import learn_deviation, resamples
from policies.cost_models.xgboost_module import load_xgboost
from policies.features.statements import SHAPE
from policies.features.table import FeatureTable
from policies.features.views import STATEMENTS as STATEMENTS_VIEW
from policies.features.views import VIEW_SHAPES

ANSOR_TREES = BoostedSettings(
    members=4, rounds=100, depth=10, eta=0.2, min_child_weight=0.0, subsample=1.0, column_share=1.0, gamma=1e-3
)


class StatementTreesModel(GradientBoostedModel):
    """See the module's docstring."""

    KIND: ClassVar[str] = "boosted-statements"
    views: ClassVar[tuple[str, ...]] = (STATEMENTS_VIEW,)

    def __init__(
        self, seed: int = 0, settings: BoostedSettings | None = None, offset_column: int | None = None
    ) -> None:
        super().__init__(seed, settings or ANSOR_TREES, None)
        del offset_column  # the trees do not start from a prediction

    @property
    def ranks(self) -> bool:
        return True

    @classmethod
    def _joined(cls, features: FeatureTable) -> NDArray[np.float32]:
        view = features.view(STATEMENTS_VIEW)
        if view.shape[1:] != VIEW_SHAPES[STATEMENTS_VIEW]:
            raise ValueError(
                f"the view '{STATEMENTS_VIEW}' has the shape {view.shape[1:]}, "
                f"the model reads {VIEW_SHAPES[STATEMENTS_VIEW]}"
            )
        return view.reshape(len(view), prod(SHAPE))

    def _scores(self, matrix: NDArray[np.float32]) -> Floats:
        """Each member's score, larger for slower, ``(M, n)``."""
        rows, owner = _statements(matrix)
        each = [booster.inplace_predict(rows, validate_features=False) for booster in self._boosters]
        return -np.array([_summed(values.astype(np.float64), owner, len(matrix)) for values in each])

    def _train(self, matrix: NDArray[np.float32], log_secs: Floats, groups: Groups, counts: Floats) -> None:
        xgboost = load_xgboost()

        throughput = np.exp(fastest_of_group(log_secs, groups) - log_secs)
        drawn = resamples(self.settings.members, counts, np.random.default_rng(self.seed))
        rows, owner = _statements(matrix)
        boosters = []
        for member, times in enumerate(drawn):
            weight = times * throughput
            taken = weight[owner] > 0
            data = xgboost.QuantileDMatrix(rows[taken], label=throughput[owner][taken], nthread=1, max_bin=MAX_BIN)
            boosters.append(
                xgboost.train(
                    self._parameters(member, len(matrix)),
                    data,
                    num_boost_round=self.settings.rounds,
                    obj=_SumOfStatements(owner[taken], throughput, weight),
                    xgb_model=self._origin[member] if self._origin else None,
                )
            )
        self._boosters = boosters
        self._map, self._noise = learn_deviation(self._scores(matrix), log_secs, drawn, counts * throughput, ranks=True)


class _SumOfStatements:
    """First and second derivative of the loss by the prediction of each statement."""

    def __init__(self, owner: NDArray[np.intp], throughput: Floats, weight: Floats) -> None:
        self._owner, self._throughput, self._weight = owner, throughput, weight

    def __call__(self, predicted: Floats, data: Any) -> tuple[Floats, Floats]:
        del data
        error = _summed(predicted.astype(np.float64), self._owner, len(self._throughput)) - self._throughput
        return (self._weight * error)[self._owner], self._weight[self._owner]


def _statements(matrix: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """The statements that are present, ``(r, c)``, and the record of each. A program that is not described has one
    statement of zeros, so that it has a prediction."""
    rows = matrix.reshape(len(matrix), *SHAPE)
    there = (rows != 0).any(axis=2)
    there[~there.any(axis=1), 0] = True
    return rows[there], np.nonzero(there)[0]


def _summed(values: Floats, owner: NDArray[np.intp], count: int) -> Floats:
    return np.asarray(np.bincount(owner, weights=values, minlength=count), dtype=np.float64)
