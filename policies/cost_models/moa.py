"""Momentum online adaptation (Pruner section 4.3) of a pre-trained model to a device class.

Notation: ``s`` the weights of the siamese model, at first the pre-trained ones; ``t`` those of the target model, which
predicts; ``m`` the momentum. At every update the target model starts from the siamese weights and is trained on all
records of its device class, and the siamese model follows it without a training of its own:

    t <- train(s, records)            s <- m s + (1 - m) t

As ``t = s + (the change by training)``, this is the paper's update of the siamese model by the target's gradients. The
siamese model is only the next starting point: few and one-sided early records cannot spoil it, as they can spoil a
model that is fine-tuned again and again. Here every training updates it; the paper's code trains in every fourth round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from policies.arrays import Floats, Groups
from policies.cost_models import model_bytes
from policies.cost_models.protocol import CostModel, CostModelDefaults, NetworkModel, Weights
from policies.features.table import FeatureTable

MOMENTUM = 0.99
"""Momentum in the paper and in its code."""

_SIAMESE = "siamese/"


def follow(siamese: Weights, target: Weights, momentum: float = MOMENTUM) -> dict[str, NDArray[np.float32]]:
    """The siamese weights after one step: ``momentum * siamese + (1 - momentum) * target``, array by array.

    Raise ValueError if the two do not have the same names and shapes.
    """
    if {name: values.shape for name, values in siamese.items()} != {name: w.shape for name, w in target.items()}:
        raise ValueError("the siamese and the target model have different weights")
    # In double precision: rounding to float32 would lose a hundredth of a small change.
    return {
        name: (momentum * values.astype(np.float64) + (1.0 - momentum) * target[name]).astype(np.float32)
        for name, values in siamese.items()
    }


class MomentumModel(CostModelDefaults):
    """A network that is adapted by momentum; see the module's docstring.

    ``save`` writes the siamese weights and the network.

    Args:
        model: the network.
        pretrained: true if the network's weights are the first siamese weights; else these are the result of the first
            training.
        momentum: share of the siamese weights that an update keeps.
    """

    KIND: ClassVar[str] = "moa"

    def __init__(self, model: NetworkModel, pretrained: bool, momentum: float = MOMENTUM) -> None:
        if not 0.0 <= momentum <= 1.0:
            raise ValueError(f"a momentum is between 0 and 1, got {momentum}")
        self.momentum = momentum
        self.updates = 0
        self._model = model
        self._siamese: Weights | None = model.weights() if pretrained else None

    @property
    def views(self) -> tuple[str, ...]:
        """The views of the network."""
        return self._model.views

    @property
    def siamese(self) -> Weights | None:
        """The weights that the next training starts from; None before the first one of a fresh network."""
        return self._siamese

    @property
    def network(self) -> NetworkModel:
        """The target model, which predicts."""
        return self._model

    def fit(self, features: FeatureTable, log_secs: Floats, groups: Groups, weights: Floats | None = None) -> None:
        """Update once on these records: the siamese weights stay."""
        if self._siamese is None:
            self._model.fit(features, log_secs, groups, weights)
            self._siamese = self._model.weights()
        else:
            target = copied(self._model)
            target.set_weights(self._siamese)
            target.update(features, log_secs, groups, weights)
            self._siamese = follow(self._siamese, target.weights(), self.momentum)
            self._model = target
        self.updates += 1

    def predict(self, features: FeatureTable) -> tuple[Floats, Floats]:
        """See :meth:`CostModel.predict`: the target model's prediction."""
        return self._model.predict(features)

    def save(self) -> bytes:
        """See :meth:`CostModel.save`. Raise ValueError before the first training of a fresh network."""
        if self._siamese is None:
            raise ValueError("a model that was not trained cannot be saved")
        header: dict[str, Any] = {"momentum": self.momentum, "updates": self.updates}
        arrays = {f"{_SIAMESE}{name}": values for name, values in self._siamese.items()}
        saved = model_bytes.SavedState(self.KIND, header, arrays)
        return model_bytes.pack(model_bytes.with_inner(saved, {"target": self._model.save()}))

    @classmethod
    def load(cls, data: bytes, read: Callable[[bytes], CostModel]) -> Self:
        """The model that ``save`` wrote. ``read``: reads the network in it. ValueError for other bytes."""
        saved = model_bytes.unpack(data, cls.KIND)
        network = read(model_bytes.inner(saved)["target"]).network
        if network is None:
            raise ValueError("the model in these bytes has no weights to adapt")
        siamese = model_bytes.prefixed(saved.arrays, _SIAMESE)
        follow(siamese, network.weights())  # refuses weights of another network
        model = cls(network, pretrained=False, momentum=float(saved.header["momentum"]))
        model._siamese = siamese
        model.updates = int(saved.header["updates"])
        return model


def copied(model: NetworkModel) -> NetworkModel:
    """The same model as an object of its own."""
    return type(model).load(model.save())
