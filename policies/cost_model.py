"""Cost models: from features of candidates to the logarithm of their run time, with a deviation.

Unit of every target and prediction: natural logarithm of seconds, lower is better. Features are ``(n, f)`` float32 and
may hold NaN for a column that a sketch lacks.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from policies.quantities import Floats

if TYPE_CHECKING:
    import xgboost

FAILURE_FACTOR = 2.0
"""A failed candidate counts as this many times slower than the slowest measured one."""


class CostModel(Protocol):
    """What the search needs of a model, and the learner of a trainer."""

    def fit(self, features: NDArray[np.float32], log_secs: Floats) -> None:
        """Train anew on all records; ValueError on no record or on a target that is not finite."""
        ...

    def predict(self, features: NDArray[np.float32]) -> tuple[Floats, Floats]:
        """Mean and deviation of the log seconds, each ``(n,)``; the deviation is not negative."""
        ...

    def save(self) -> bytes:
        """The trained model as bytes, readable by ``load`` of the same class in every process; never a pickle."""
        ...

    @classmethod
    def load(cls, data: bytes) -> Self:
        """The model that ``save`` wrote; ValueError where the bytes are something else."""
        ...


def targets(cost_secs: Floats) -> Floats:
    """Log seconds to learn from: failures (infinite or NaN) become ``FAILURE_FACTOR`` times the worst success.

    Shape ``(n,)``, all finite. With failures alone every target is 0.
    """
    good = np.isfinite(cost_secs) & (cost_secs > 0)
    if not good.any():
        return np.zeros(len(cost_secs))
    logs = np.log(np.where(good, cost_secs, 1.0))
    worst = float(logs[good].max()) + float(np.log(FAILURE_FACTOR))
    return np.where(good, logs, worst)


class GradientBoostedModel:
    """A bootstrap ensemble of XGBoost regressors; the deviation is their spread plus the training error.

    ``offset_column``: a feature column with a prior prediction in log seconds (the analyzer's), from which the trees
    start: they learn its error instead of the whole. ``members`` are trained on weighted resamples of the records.
    """

    MAGIC = b"FTGB1"

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

    def _margin(self, features: NDArray[np.float32]) -> Floats:
        if self.offset_column is None:
            return np.full(len(features), self.shift)
        return features[:, self.offset_column].astype(np.float64) + self.shift

    def fit(self, features: NDArray[np.float32], log_secs: Floats) -> None:
        """See :meth:`CostModel.fit`."""
        # XGBoost loads SciPy and scikit-learn, two seconds that only a process that trains or predicts should pay.
        import xgboost

        if len(log_secs) == 0 or len(features) != len(log_secs):
            raise ValueError(f"cannot train on {len(features)} rows and {len(log_secs)} targets")
        if not np.isfinite(log_secs).all():
            raise ValueError("every target must be finite; see policies.cost_model.targets")
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
        mean, _ = self.predict(features)
        self.noise = float(np.sqrt(np.mean(np.square(mean - log_secs))))

    def predict(self, features: NDArray[np.float32]) -> tuple[Floats, Floats]:
        """See :meth:`CostModel.predict`; ValueError before the first ``fit``."""
        if not self.boosters:
            raise ValueError("the model has not been trained")
        if len(features) == 0:
            return np.empty(0), np.empty(0)
        # The margin is added here: handing it over costs more than the prediction.
        each = np.array([booster.inplace_predict(features, validate_features=False) for booster in self.boosters])
        each = each.astype(np.float64) + self._margin(features)
        return each.mean(axis=0), np.sqrt(each.var(axis=0) + self.noise**2)

    def save(self) -> bytes:
        """Header as JSON, then each booster in XGBoost's binary JSON, each with its length in front."""
        header = json.dumps(
            {
                "seed": self.seed,
                "members": self.members,
                "rounds": self.rounds,
                "depth": self.depth,
                "offset_column": self.offset_column,
                "shift": self.shift,
                "noise": self.noise,
            }
        ).encode()
        parts = [header, *(bytes(booster.save_raw("ubj")) for booster in self.boosters)]
        return self.MAGIC + b"".join(struct.pack("<I", len(part)) + part for part in parts)

    @classmethod
    def load(cls, data: bytes) -> Self:
        """See :meth:`CostModel.load`."""
        import xgboost

        if not data.startswith(cls.MAGIC):
            raise ValueError("these bytes are not a gradient-boosted cost model")
        parts, at = [], len(cls.MAGIC)
        while at < len(data):
            if at + 4 > len(data):
                raise ValueError("the cost model is cut off")
            (length,) = struct.unpack_from("<I", data, at)
            part = data[at + 4 : at + 4 + length]
            if len(part) != length:
                raise ValueError("the cost model is cut off")
            parts.append(part)
            at += 4 + length
        if not parts:
            raise ValueError("the cost model is cut off")
        header = json.loads(parts[0])
        model = cls(header["seed"], header["members"], header["rounds"], header["depth"], header["offset_column"])
        model.shift, model.noise = header["shift"], header["noise"]
        for part in parts[1:]:
            booster = xgboost.Booster({"nthread": 1})
            booster.load_model(bytearray(part))
            model.boosters.append(booster)
        return model


def load_model(data: bytes) -> CostModel:
    """The model that some class of this module saved, told by its first bytes; ValueError for other bytes."""
    for kind in (GradientBoostedModel,):
        if data.startswith(kind.MAGIC):
            return kind.load(data)
    raise ValueError("these bytes are not a cost model")
