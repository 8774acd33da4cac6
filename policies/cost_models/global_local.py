"""A global model of earlier records and a local model of the task, added (AutoTVM section 4).

    f(x) = f_global(x) + f_local(x)                                            (AutoTVM equation 4)

The global model was trained before, on records of other tasks, other device classes, or an earlier run. It makes useful
predictions before the task has any record. The local model is trained on the residuals that the global one leaves on
the task's records. A shift between the two, the median of the residuals, gives the level of a new task from its first
few records, long before there are enough to train on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np

from policies.arrays import Floats, Groups
from policies.cost_models import model_bytes
from policies.cost_models.protocol import CostModel, CostModelDefaults, check_records
from policies.features.table import OF_A_TASK, FeatureTable

PRIOR_DEVIATION = 0.5
"""Least deviation, in log seconds, of a global model alone: it has not seen the task."""


class GlobalLocalModel(CostModelDefaults):
    """Equation 4 as a cost model.

    Args:
        general: a trained model, which never changes here.
        local: an untrained model, which learns ``log_secs - general - shift``; None for the global model and the shift
            alone.
    """

    KIND: ClassVar[str] = "global-local"

    def __init__(self, general: CostModel, local: CostModel | None = None) -> None:
        self._general = general
        self._local = local
        self._shift = 0.0
        self._trained = False

    @property
    def views(self) -> tuple[str, ...]:
        """The views of the global and of the local model."""
        return tuple(dict.fromkeys((*self._general.views, *(self._local.views if self._local is not None else ()))))

    @property
    def general(self) -> CostModel:
        """The global model."""
        return self._general

    @property
    def shift(self) -> float:
        """Log seconds by which this task is slower than the global model predicts."""
        return self._shift

    def level(self, features: FeatureTable, log_secs: Floats) -> None:
        """Set the shift alone, from records that are too few to train on; without a record it is 0."""
        self._shift = float(np.median(log_secs - self._general.predict(features)[0])) if len(log_secs) else 0.0

    def fit(self, features: FeatureTable, log_secs: Floats, groups: Groups, weights: Floats | None = None) -> None:
        """See :meth:`CostModel.fit`. The global model does not change."""
        check_records(features, log_secs, groups, weights)
        self.level(features, log_secs)
        if self._local is not None:
            # Rows are chosen by their measured time, not by the residual, which is all that the local model sees.
            rows = self._local.chosen_rows(log_secs)
            left = log_secs - self._general.predict(features)[0] - self._shift
            counts = None if weights is None else weights[rows]
            self._local.fit(features.take(rows), left[rows], groups[rows], counts)
            self._trained = True

    def predict(self, features: FeatureTable) -> tuple[Floats, Floats]:
        """See :meth:`CostModel.predict`. Without a trained local model it is the global model's prediction plus the
        shift, with a deviation of at least :data:`PRIOR_DEVIATION`."""
        mean, deviation = self._general.predict(features)
        mean = mean + self._shift
        if self._local is None or not self._trained:
            return mean, np.maximum(deviation, PRIOR_DEVIATION)
        # The local model's deviation is that of the sum: it describes the error that remains after both models.
        rest, left = self._local.predict(features)
        return mean + rest, left

    def save(self) -> bytes:
        """See :meth:`CostModel.save`."""
        header: dict[str, Any] = {"shift": self._shift}
        parts = {"general": self._general.save()}
        if self._local is not None and self._trained:
            parts["local"] = self._local.save()
        return model_bytes.pack(model_bytes.with_inner(model_bytes.SavedState(self.KIND, header, {}), parts))

    @classmethod
    def load(cls, data: bytes, read: Callable[[bytes], CostModel]) -> Self:
        """The model that ``save`` wrote. ``read``: reads the two models in it. ValueError for other bytes."""
        saved = model_bytes.unpack(data, cls.KIND)
        parts = {name: read(part) for name, part in model_bytes.inner(saved).items()}
        model = cls(parts["general"], parts.get("local"))
        model._trained = "local" in parts
        model._shift = float(saved.header["shift"])
        return model


def only_views(table: FeatureTable, names: tuple[str, ...]) -> FeatureTable:
    """The table with these views alone: the symbolic view has another width in every task."""
    return FeatureTable({name: table.view(name) for name in names})


def transferable(model: CostModel) -> bool:
    """Return true if the model reads no view whose layout belongs to one task."""
    return OF_A_TASK.isdisjoint(model.views)
