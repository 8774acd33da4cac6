"""The interface of cost models: from features of candidates to the logarithm of their run time, with a deviation.

Unit of every target and prediction: natural logarithm of seconds, lower is better. ``groups`` tells the task of every
record: ranking happens within a task. The models themselves are listed in :mod:`policies.cost_models.registry`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from policies.arrays import Floats, Groups
from policies.features.table import FeatureTable

FAILURE_FACTOR = 2.0
"""A failed candidate counts as this many times slower than the slowest measured one."""


Weights = Mapping[str, NDArray[np.float32]]
"""Parameters of a network by name."""


class CostModel(Protocol):
    """A model as the search and the learner use it. Training is deterministic by the model's seed."""

    KIND: ClassVar[str]
    """The name of the class in saved bytes. It never changes."""

    @property
    def views(self) -> tuple[str, ...]:
        """The views of a feature table that the model reads."""
        ...

    @property
    def network(self) -> NetworkModel | None:
        """The network that predicts, if the model has one whose weights can be adapted."""
        ...

    def fit(self, features: FeatureTable, log_secs: Floats, groups: Groups, weights: Floats | None = None) -> None:
        """Train anew on these records alone: ``n`` rows, ``log_secs`` and ``groups`` ``(n,)``. ``weights`` ``(n,)``:
        the weight of each record, above 0; None for 1 each.

        Raise ValueError if there is no record, or if a target is not finite (:func:`check_records`).
        """
        ...

    def update(self, features: FeatureTable, log_secs: Floats, groups: Groups, weights: Floats | None = None) -> None:
        """Train further on these records, which are all that the model is to fit, old and new ones. Raise ValueError as
        ``fit`` does.

        A network continues from its weights, and boosted trees that were loaded keep their trees. Other models are
        trained anew.
        """
        ...

    def predict(self, features: FeatureTable) -> tuple[Floats, Floats]:
        """Return mean and deviation of the log seconds, each ``(n,)``; the deviation is not negative.

        Raise ValueError before the first training.
        """
        ...

    def level(self, features: FeatureTable, log_secs: Floats) -> None:
        """Set the level of a task from records that are too few to train on. A model without a level does nothing."""
        ...

    def chosen_rows(self, log_secs: Floats) -> slice | NDArray[np.intp]:
        """Rows of the records ``(n,)`` that a training uses."""
        ...

    def save(self) -> bytes:
        """The trained model as bytes, which ``load_model`` of the registry reads in every process; never a pickle."""
        ...


class SavedModel(CostModel, Protocol):
    """A cost model whose class can read its saved bytes without the readers of other models."""

    views: ClassVar[tuple[str, ...]]

    @classmethod
    def load(cls, data: bytes) -> Self:
        """Return the model that ``save`` wrote, which predicts the same. Raise ValueError for other bytes."""
        ...


class NetworkModel(SavedModel, Protocol):
    """A cost model whose parameters are arrays by name; weights fit models of the same ``KIND``."""

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Return copies of all parameters. Raise ValueError before there are any."""
        ...

    def set_weights(self, weights: Weights) -> None:
        """Predict with these parameters, and continue from them in the next update. Raise ValueError for other names or
        shapes."""
        ...


class CostModelDefaults(ABC):
    """Defaults for a model that has no network and no level, and is always trained anew on all records."""

    @abstractmethod
    def fit(self, features: FeatureTable, log_secs: Floats, groups: Groups, weights: Floats | None = None) -> None:
        """See :meth:`CostModel.fit`."""

    def update(self, features: FeatureTable, log_secs: Floats, groups: Groups, weights: Floats | None = None) -> None:
        """See :meth:`CostModel.update`."""
        self.fit(features, log_secs, groups, weights)

    @property
    def network(self) -> NetworkModel | None:
        """See :class:`CostModel`: none."""
        return None

    def level(self, features: FeatureTable, log_secs: Floats) -> None:
        """See :class:`CostModel`: nothing changes."""
        del features, log_secs

    def chosen_rows(self, log_secs: Floats) -> slice | NDArray[np.intp]:  # noqa: ARG002
        """See :class:`CostModel`: all rows."""
        return slice(None)


def check_records(features: FeatureTable, log_secs: Floats, groups: Groups, weights: Floats | None = None) -> None:
    """Raise ValueError for records that no model can be trained on: no records, different lengths, targets that are not
    finite, or weights that are not positive."""
    if weights is not None and not (len(weights) == len(log_secs) and (weights > 0).all()):
        raise ValueError("every record has a weight above 0")
    if len(log_secs) == 0 or len(features) != len(log_secs) or len(groups) != len(log_secs):
        raise ValueError(
            f"cannot train on {len(features)} rows, {len(log_secs)} targets and {len(groups)} groups: equal and not 0"
        )
    if not np.isfinite(log_secs).all():
        raise ValueError("every target must be finite; see policies.cost_models.protocol.targets")


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
