"""Gradient-boosted trees: a bootstrap ensemble of XGBoost models."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from policies import model_bytes
from policies.cost_model import Groups, Seen, check_records
from policies.features import SYMBOLIC, FeatureTable
from policies.quantities import Floats

if TYPE_CHECKING:
    import xgboost


class GradientBoostedModel:
    """A bootstrap ensemble of XGBoost regressors; the deviation is their spread plus the training error.

    ``offset_column``: a feature column with a prior prediction in log seconds (the analyzer's), from which the trees
    start: they learn its error instead of the whole. ``members`` are trained on weighted resamples of the records.
    """

    KIND: ClassVar[str] = "boosted"
    views: ClassVar[tuple[str, ...]] = (SYMBOLIC,)

    def __init__(
        self, seed: int = 0, members: int = 4, rounds: int = 120, depth: int = 6, offset_column: int | None = None
    ) -> None:
        if members < 1 or rounds < 1:
            raise ValueError(f"members and rounds must be at least 1, got {members} and {rounds}")
        self.seed = seed
        self.members = members
        self.rounds = rounds
        self.depth = depth
        self.offset_column = offset_column
        self.shift = 0.0
        self.noise = 0.0
        self.boosters: list[xgboost.Booster] = []
        self._seen = Seen()

    def _margin(self, features: NDArray[np.float32]) -> Floats:
        if self.offset_column is None:
            return np.full(len(features), self.shift)
        return features[:, self.offset_column].astype(np.float64) + self.shift

    def fit(self, features: FeatureTable, log_secs: Floats, groups: Groups) -> None:
        """See :meth:`CostModel.fit`."""
        check_records(features, log_secs, groups)
        self._seen = Seen()
        self.update(features, log_secs, groups)

    def update(self, features: FeatureTable, log_secs: Floats, groups: Groups) -> None:
        """See :meth:`CostModel.update`: trains anew on everything seen."""
        self._seen.add(features, log_secs, groups)
        table, known, _ = self._seen.all()
        self._train(table.view(SYMBOLIC), known)

    def _train(self, features: NDArray[np.float32], log_secs: Floats) -> None:
        # XGBoost loads SciPy and scikit-learn, two seconds that only a process that trains or predicts should pay.
        import xgboost

        self.shift = 0.0
        self.shift = float(np.median(log_secs - self._margin(features)))
        margin = self._margin(features)
        rng = np.random.default_rng(self.seed)
        # Faster candidates matter more: the search only visits the top of the space.
        emphasis = np.exp(-np.clip(log_secs - log_secs.min(), 0.0, 3.0) * 0.5)
        self.boosters = []
        for member in range(self.members):
            weight = emphasis * rng.multinomial(len(log_secs), np.full(len(log_secs), 1.0 / len(log_secs)))
            if self.members == 1:
                weight = emphasis
            data = xgboost.QuantileDMatrix(
                features, label=log_secs, base_margin=margin, weight=weight, nthread=1, max_bin=64
            )
            self.boosters.append(
                xgboost.train(
                    {
                        "objective": "reg:squarederror",
                        "tree_method": "hist",
                        "max_bin": 64,
                        "max_depth": self.depth,
                        "eta": 0.12,
                        "min_child_weight": 0.3,
                        "subsample": 0.9,
                        "colsample_bytree": 0.5,
                        "lambda": 1.0,
                        "nthread": 1,
                        "seed": (self.seed * 1009 + member) % 2**31,
                        "base_score": 0.0,
                        "verbosity": 0,
                    },
                    data,
                    num_boost_round=self.rounds,
                )
            )
        mean, _ = self._predict(features)
        self.noise = float(np.sqrt(np.mean(np.square(mean - log_secs))))

    def predict(self, features: FeatureTable) -> tuple[Floats, Floats]:
        """See :meth:`CostModel.predict`."""
        return self._predict(features.view(SYMBOLIC))

    def _predict(self, features: NDArray[np.float32]) -> tuple[Floats, Floats]:
        if not self.boosters:
            raise ValueError("the model has not been trained")
        if len(features) == 0:
            return np.empty(0), np.empty(0)
        # The margin is added here: handing it over costs more than the prediction.
        each = np.array([booster.inplace_predict(features, validate_features=False) for booster in self.boosters])
        each = each.astype(np.float64) + self._margin(features)
        return each.mean(axis=0), np.sqrt(each.var(axis=0) + self.noise**2)

    def save(self) -> bytes:
        """See :meth:`CostModel.save`: each booster in XGBoost's binary JSON."""
        header = {
            "seed": self.seed,
            "members": self.members,
            "rounds": self.rounds,
            "depth": self.depth,
            "offset_column": self.offset_column,
            "shift": self.shift,
            "noise": self.noise,
        }
        boosters = tuple(bytes(booster.save_raw("ubj")) for booster in self.boosters)
        return model_bytes.pack(model_bytes.Saved(self.KIND, header, boosters))

    @classmethod
    def load(cls, data: bytes) -> Self:
        """See :meth:`CostModel.load`."""
        import xgboost

        saved = model_bytes.unpack(data, cls.KIND)
        header = saved.header
        model = cls(header["seed"], header["members"], header["rounds"], header["depth"], header["offset_column"])
        model.shift, model.noise = header["shift"], header["noise"]
        for part in saved.parts:
            booster = xgboost.Booster({"nthread": 1})
            booster.load_model(bytearray(part))
            model.boosters.append(booster)
        return model
