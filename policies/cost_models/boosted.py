"""Gradient-boosted trees: a bootstrap ensemble of XGBoost models, with a regression or a rank objective.

Notation: ``n`` records with log seconds ``y``; ``M`` members, each trained on a resample of the records with
repetition; ``f_m(x)``: prediction of member ``m`` in log seconds.

- Mean: ``mu(x) = 1/M sum_m f_m(x)``. Spread: ``s(x)^2``, the variance of the members (divided by ``M - 1``).
- Deviation: ``sqrt(s(x)^2 + noise^2)``. The noise follows from the members that have not seen a record
  (:mod:`policies.cost_models.out_of_bag`).

The rank objective learns the order within each task. A monotone fit (:mod:`policies.cost_models.monotone`) on the
out-of-bag scores of the records, pooled over the tasks, turns its scores into log seconds. With records of several
tasks the order is right, and the level is that of all tasks together."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from policies.arrays import Floats, Groups
from policies.cost_models import model_bytes
from policies.cost_models.lambda_rank import fastest_of_group
from policies.cost_models.monotone import MonotoneMap
from policies.cost_models.out_of_bag import learn_deviation, resamples, spread
from policies.cost_models.protocol import CostModelDefaults, check_records
from policies.cost_models.xgboost_module import load_xgboost
from policies.features.table import SYMBOLIC, FeatureTable
from policies.features.views import CONTEXT, FEATURE_VERSION, INVARIANT, RELATION, check_version

if TYPE_CHECKING:
    import xgboost

Objective = Literal["regression", "pairwise"]

MAX_BIN = 64

_XGBOOST_OBJECTIVES: dict[Objective, dict[str, Any]] = {
    "regression": {"objective": "reg:squarederror"},
    "pairwise": {
        "objective": "rank:pairwise",
        "lambdarank_pair_method": "topk",  # the top k of k records: every pair
        "lambdarank_normalization": False,
        "lambdarank_score_normalization": False,
    },
}


@dataclass(frozen=True)
class BoostedSettings:
    """Hyperparameters."""

    objective: Objective = "regression"
    """``pairwise`` is AutoTVM's rank loss (its equation 2: all pairs of a task have the same weight)."""
    members: int = 4
    """Size of the bootstrap. A single member is trained on all records, and its deviation is its training error."""
    rounds: int = 120
    """Trees of a member."""
    depth: int = 6
    """Depth of a tree."""
    eta: float = 0.12
    """Learning rate."""
    min_child_weight: float = 0.3
    subsample: float = 0.9
    column_share: float = 0.5
    gamma: float = 0.0
    emphasis: float = 0.5
    """A record of a regression weighs ``exp(-emphasis * slowdown)``, because the search visits the top only. The
    slowdown is relative to the fastest record of its task, in log seconds, at most 3."""
    levelled: bool = False
    """For trees that start from the analyzer: true if the analyzer's median error on a task is taken out of the task's
    records, and the errors that remain are limited to :data:`LARGEST_ERROR`."""

    def __post_init__(self) -> None:
        if self.members < 1 or self.rounds < 1:
            raise ValueError(f"members and rounds must be at least 1, got {self.members} and {self.rounds}")
        if self.objective not in _XGBOOST_OBJECTIVES:
            raise ValueError(f"unknown objective '{self.objective}'")


AUTOTVM_TREES = BoostedSettings(
    objective="pairwise",
    members=5,
    depth=3,
    eta=0.3,
    min_child_weight=1.0,
    subsample=1.0,
    column_share=1.0,
    gamma=1e-4,
    emphasis=0.0,
)
"""AutoTVM: the rank objective, trees of depth 3 and five models for the deviation (section 3.3). AutoTVM stops boosting
early, by the recall on its training records; here the rounds are fixed."""

TRANSFERRED = BoostedSettings(
    members=2,
    rounds=150,
    depth=6,
    eta=0.06,
    min_child_weight=10.0,
    subsample=0.6,
    column_share=0.3,
    levelled=True,
)
"""Settings of trees that are trained on many tasks and used for others. They learn slowly and from parts of the data,
so that they learn what tasks have in common. The level of a new task is known from its first records (the shift of
equation 4)."""
LARGEST_ERROR = 2.0
"""Limit of the analyzer's error on a record, in log seconds relative to its median error on the task."""


class GradientBoostedModel(CostModelDefaults):
    """See the module's docstring. Features may be NaN, never infinite.

    ``offset_column``: a symbolic feature with a prior prediction in log seconds (the analyzer's). The trees start from
    it and learn its error. If it is NaN (the sketch is not described), they start from the median of the records
    without a prediction, or, if the first training had no such record, from the median of the predictions.
    """

    KIND: ClassVar[str] = "boosted"
    views: ClassVar[tuple[str, ...]] = (SYMBOLIC,)

    def __init__(
        self, seed: int = 0, settings: BoostedSettings | None = None, offset_column: int | None = None
    ) -> None:
        self.seed = seed
        self.settings = settings or BoostedSettings()
        self.offset_column = offset_column
        self._columns = 0
        self._shift = 0.0
        self._unknown = 0.0
        self._noise = 0.0
        self._map: MonotoneMap | None = None
        self._boosters: list[xgboost.Booster] = []
        # Boosters that were loaded: later updates add trees to them.
        self._origin: list[xgboost.Booster] = []

    @property
    def ranks(self) -> bool:
        return self.settings.objective != "regression"

    def fit(self, features: FeatureTable, log_secs: Floats, groups: Groups, weights: Floats | None = None) -> None:
        """See :meth:`CostModel.fit`."""
        check_records(features, log_secs, groups, weights)
        matrix = self._joined(features)
        self._columns, self._origin = matrix.shape[1], []
        self._learn(matrix, log_secs, groups, weights)

    def update(self, features: FeatureTable, log_secs: Floats, groups: Groups, weights: Floats | None = None) -> None:
        """See :meth:`CostModel.update`: a loaded model keeps its trees, and adds trees that are trained on these
        records."""
        if not self._origin:
            self.fit(features, log_secs, groups, weights)
            return
        check_records(features, log_secs, groups, weights)
        self._learn(self._matrix(features), log_secs, groups, weights)

    def _learn(self, matrix: NDArray[np.float32], log_secs: Floats, groups: Groups, weights: Floats | None) -> None:
        counts = np.ones(len(log_secs)) if weights is None else weights
        order = np.argsort(groups, kind="stable")  # XGBoost wants the rows of a group side by side
        self._train(matrix[order], log_secs[order], groups[order], counts[order])

    def predict(self, features: FeatureTable) -> tuple[Floats, Floats]:
        """See :meth:`CostModel.predict`. Raise ValueError also if the number of columns differs from the training's."""
        if not self._boosters:
            raise ValueError("the model has not been trained")
        matrix = self._matrix(features)
        if len(matrix) == 0:
            return np.empty(0), np.empty(0)
        each = self._log_secs(self._scores(matrix))
        return each.mean(axis=0), np.sqrt(spread(each) ** 2 + self._noise**2)

    @classmethod
    def _joined(cls, features: FeatureTable) -> NDArray[np.float32]:
        """The views of the model side by side, each flat."""
        views = [features.view(name) for name in cls.views]
        return np.concatenate([view.reshape(len(view), int(np.prod(view.shape[1:]))) for view in views], axis=1)

    def _matrix(self, features: FeatureTable) -> NDArray[np.float32]:
        matrix = self._joined(features)
        if matrix.shape[1] != self._columns:
            raise ValueError(f"the model reads {self._columns} columns of features, got {matrix.shape[1]}")
        return matrix

    def _margin(self, matrix: NDArray[np.float32]) -> Floats:
        """Scores that the trees start from: log seconds for a regression, larger for faster in a ranking."""
        prior = self._prior(matrix)
        return -prior if self.ranks else prior + self._shift

    def _prior(self, matrix: NDArray[np.float32]) -> Floats:
        """The prior prediction in log seconds, ``(n,)``; 0 without one."""
        if self.offset_column is None:
            return np.zeros(len(matrix))
        prior = matrix[:, self.offset_column].astype(np.float64)
        return np.where(np.isnan(prior), self._unknown, prior)

    def _scores(self, matrix: NDArray[np.float32]) -> Floats:
        """Each member's prediction, larger for slower, shape ``(M, n)``."""
        # The margin is added here: passing it to XGBoost costs more than the prediction.
        raw = np.array([booster.inplace_predict(matrix, validate_features=False) for booster in self._boosters])
        scores = raw.astype(np.float64) + self._margin(matrix)
        return -scores if self.ranks else scores

    def _log_secs(self, scores: Floats) -> Floats:
        return scores if self._map is None else self._map(scores)

    def _start_from(self, matrix: NDArray[np.float32], log_secs: Floats) -> None:
        """Set the median error of the prior prediction, and the value that replaces a missing prediction."""
        known = np.ones(len(matrix), dtype=bool)
        if self.offset_column is not None:
            prior = matrix[:, self.offset_column].astype(np.float64)
            known = np.isfinite(prior)
        self._shift = float(np.median(log_secs[known] - self._prior(matrix[known]))) if known.any() else 0.0
        if not known.all():
            self._unknown = float(np.median(log_secs[~known])) - self._shift
        elif self.offset_column is not None:
            self._unknown = float(np.median(prior))

    def _train(self, matrix: NDArray[np.float32], log_secs: Floats, groups: Groups, counts: Floats) -> None:
        xgboost = load_xgboost()

        if not self._origin:
            self._start_from(matrix, log_secs)
        margin = self._margin(matrix)
        slowdown = log_secs - fastest_of_group(log_secs, groups)
        rng = np.random.default_rng(self.seed)
        count = len(log_secs)
        drawn = resamples(self.settings.members, counts, rng)
        boosters = []
        for member, times in enumerate(drawn):
            if self.ranks:
                # A ranking has weights for groups only: repeat the rows. Relevance is throughput over the best.
                rows = np.repeat(np.arange(count), times)
                data = xgboost.QuantileDMatrix(
                    matrix[rows],
                    label=np.exp(-slowdown[rows]),
                    base_margin=margin[rows],
                    qid=groups[rows],
                    nthread=1,
                    max_bin=MAX_BIN,
                )
            else:
                weight = times * np.exp(-self.settings.emphasis * np.minimum(slowdown, 3.0))
                data = xgboost.QuantileDMatrix(
                    matrix, label=log_secs, base_margin=margin, weight=weight, nthread=1, max_bin=MAX_BIN
                )
            boosters.append(
                xgboost.train(
                    self._parameters(member, count),
                    data,
                    num_boost_round=self.settings.rounds,
                    xgb_model=self._origin[member] if self._origin else None,
                )
            )
        self._boosters = boosters
        self._map, self._noise = learn_deviation(
            self._scores(matrix), log_secs, drawn, counts * np.exp(-slowdown), ranks=self.ranks
        )

    def _parameters(self, member: int, records: int) -> dict[str, Any]:
        settings = self.settings
        # By default XGBoost only forms pairs with one of the 32 records that it predicts to be the best.
        pairs = {"lambdarank_num_pair_per_sample": records} if settings.objective == "pairwise" else {}
        return {
            **pairs,
            **_XGBOOST_OBJECTIVES[settings.objective],
            "tree_method": "hist",
            "max_bin": MAX_BIN,
            "max_depth": settings.depth,
            "eta": settings.eta,
            "gamma": settings.gamma,
            "min_child_weight": settings.min_child_weight,
            "subsample": settings.subsample,
            "colsample_bytree": settings.column_share,
            "nthread": 1,
            "seed": (self.seed * 1009 + member) % 2**31,
            "base_score": 0.0,
            "verbosity": 0,
        }

    def save(self) -> bytes:
        """See :meth:`CostModel.save`: each booster in XGBoost's binary JSON, and the knots of a rank model's map."""
        if not self._boosters:
            raise ValueError("the model has not been trained")
        arrays: dict[str, NDArray[Any]] = {
            f"trees.{member}": model_bytes.opaque(bytes(booster.save_raw("ubj")))
            for member, booster in enumerate(self._boosters)
        }
        header = {
            "version": FEATURE_VERSION,
            "seed": self.seed,
            "settings": asdict(self.settings),
            "offset_column": self.offset_column,
            "columns": self._columns,
            "shift": self._shift,
            "unknown": self._unknown,
            "noise": self._noise,
            "map_slope": self._map.slope if self._map else None,
        }
        if self._map:
            arrays |= {"map.at": self._map.at, "map.values": self._map.values}
        return model_bytes.pack(model_bytes.SavedState(self.KIND, header, arrays))

    @classmethod
    def load(cls, data: bytes) -> Self:
        """The model that ``save`` wrote; ValueError for other bytes."""
        xgboost = load_xgboost()
        saved = model_bytes.unpack(data, cls.KIND)
        header, arrays = saved.header, saved.arrays
        check_version(header)
        model = cls(header["seed"], BoostedSettings(**header["settings"]), header["offset_column"])
        model._columns, model._shift, model._noise = header["columns"], header["shift"], header["noise"]
        model._unknown = header.get("unknown", 0.0)
        if header["map_slope"] is not None:
            model._map = MonotoneMap(arrays["map.at"], arrays["map.values"], header["map_slope"])
        for member in range(model.settings.members):
            booster = xgboost.Booster({"nthread": 1})
            booster.load_model(bytearray(arrays[f"trees.{member}"].tobytes()))
            model._boosters.append(booster)
        model._origin = list(model._boosters)
        return model


class InvariantTreesModel(GradientBoostedModel):
    """Gradient-boosted trees on features that all tasks and devices share, trained on some tasks and used for others.

    ``from_analyzer``: the trees start from the analyzer's log seconds. With several tasks each record counts the same.
    The level of a new task is the analyzer's, shifted by its median error on the records of the training.
    """

    KIND: ClassVar[str] = "boosted-invariant"
    views: ClassVar[tuple[str, ...]] = (INVARIANT, RELATION)

    def __init__(
        self,
        seed: int = 0,
        settings: BoostedSettings | None = None,
        offset_column: int | None = None,
        *,
        from_analyzer: bool = False,
    ) -> None:
        # Column 0 of the first view, the invariant one, is the analyzer's prediction.
        super().__init__(seed, settings, 0 if from_analyzer else offset_column)

    @classmethod
    def _joined(cls, features: FeatureTable) -> NDArray[np.float32]:
        """Both views side by side. The prediction is NaN, not 0, where the second column says that the sketch is not
        described."""
        matrix = super()._joined(features)  # a copy
        matrix[matrix[:, 1] == 0.0, 0] = np.nan
        return matrix

    def _train(self, matrix: NDArray[np.float32], log_secs: Floats, groups: Groups, counts: Floats) -> None:
        if self.settings.levelled and self.offset_column is not None:
            log_secs = _levelled(log_secs, matrix[:, self.offset_column].astype(np.float64), groups)
        super()._train(matrix, log_secs, groups, counts)


def _levelled(log_secs: Floats, prior: Floats, groups: Groups) -> Floats:
    """Log seconds ``(n,)`` with the level of each task shifted, so that its median distance from the prior is the
    median over all records. A record's distance from its task's level is limited to :data:`LARGEST_ERROR`. Records
    without a prior (NaN) are shifted with their task."""
    known = np.isfinite(prior)
    if not known.any():
        return log_secs
    error = log_secs - prior
    usual = float(np.median(error[known]))
    levelled = log_secs.copy()
    for group in np.unique(groups):
        rows = groups == group
        if not (rows & known).any():
            continue
        level = float(np.median(error[rows & known]))
        within = np.clip(error[rows] - level, -LARGEST_ERROR, LARGEST_ERROR)
        levelled[rows] = np.where(known[rows], prior[rows] + usual + within, log_secs[rows] - level + usual)
    return levelled


class LoopTreesModel(GradientBoostedModel):
    """AutoTVM's trees on the features of the paper (section 4, appendix A.2): the context of each loop of the main
    statement's nest, flat, and the relations between contexts."""

    KIND: ClassVar[str] = "boosted-loops"
    views: ClassVar[tuple[str, ...]] = (CONTEXT, RELATION)
