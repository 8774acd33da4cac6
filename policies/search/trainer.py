"""Training of a model as records arrive: the successive models of one task, or of all tasks of a device class.

The *prior* is a model that was trained on other records before the first one of this run. It is used in one of these
ways:

- a network of the kind that the method trains is *fine-tuned*: each training continues from the current weights;
- or, with a momentum, it is the first siamese model of :mod:`policies.cost_models.moa`;
- any other model is the global model of AutoTVM's equation 4, and the method's own model is the local one
  (:mod:`policies.cost_models.global_local`);
- an offline method uses it unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from policies.arrays import Floats, Groups
from policies.cost_models.global_local import GlobalLocalModel, only_views
from policies.cost_models.moa import MomentumModel, copied
from policies.cost_models.protocol import CostModel, NetworkModel
from policies.cost_models.registry import CostModelEntry
from policies.features.table import FeatureTable
from policies.search.training_table import TrainingSet


@dataclass(frozen=True)
class Training:
    """The cost model of a method, and how it is trained."""

    model: CostModelEntry
    """The kind of model: an entry of :data:`policies.cost_models.registry.COST_MODELS`, or one of the user's own."""
    from_analyzer: bool = False
    """True if the model starts from the analyzer's prediction."""
    momentum: float | None = None
    """Momentum of the model's adaptation (:mod:`policies.cost_models.moa`); None: the model is fine-tuned."""
    offline: bool = False
    """True if the model is never trained on what this run measures, so that it has to be pre-trained."""
    of_each_task: bool = False
    """True if each task has a model of its own in a run, even if the features would let the tasks share one."""
    alone: bool = False
    """True if only the model's prediction counts as soon as there is a model. Otherwise it is averaged with the
    calibrated analyzer, if the generator uses that. A model that starts from the analyzer contains its prediction."""

    @property
    def views(self) -> tuple[str, ...]:
        """The views of candidates that the model reads."""
        return self.model.views

    @property
    def teaches(self) -> CostModelEntry | None:
        """The kind of model that is trained on other tasks' records, from which this one starts: the method's own if it
        reads only views that all tasks share; None: fleet-tune's
        (:func:`policies.cost_models.knowledge.general_prior`)."""
        return self.model if self.model.transfers else None

    @property
    def saved_kind(self) -> str:
        """The kind of the bytes that a trained model saves."""
        return self.model.kind if self.momentum is None else MomentumModel.KIND

    @property
    def learns_on(self) -> bool:
        """True if an update continues from the current weights; other models are made anew from all records."""
        return self.model.learns_on

    @property
    def quick(self) -> bool:
        """True if a training takes hundredths of a second."""
        return self.model.quick

    def make_model(self, seed: int, offset_column: int | None) -> CostModel:
        """An untrained cost model; ``offset_column`` from the training set."""
        model = self.model.make(seed, offset_column if self.from_analyzer else None)
        if self.momentum is None:
            return model
        if model.network is None:
            raise ValueError(f"the cost model '{self.model.name}' has no weights to adapt with a momentum")
        return MomentumModel(model.network, False, self.momentum)


class Trainer:
    """Trains the models of one task or device class."""

    def __init__(self, training: Training, prior: CostModel | None = None) -> None:
        self._training = training
        self._prior = prior
        self._model: CostModel | None = None
        self._trained_on = 0  # records

    @property
    def offline(self) -> bool:
        """True if nothing is ever trained."""
        return self._training.offline

    @property
    def first(self) -> CostModel | None:
        """The prior as the search uses it before the first training; None without one."""
        if self._prior is None:
            return None
        used_as_it_is = self._training.offline or self._network_of(self._prior) is not None
        return self._prior if used_as_it_is else GlobalLocalModel(self._prior)

    def takes(self, model: CostModel) -> bool:
        """Return true if this trainer can continue from a saved model."""
        training, network = self._training, model.network
        fits = network is not None and training.model.kind == network.KIND
        return training.learns_on and fits and training.saved_kind == model.KIND

    def resume(self, model: CostModel) -> None:
        """Continue from a model that an earlier process trained and saved."""
        self._model, self._trained_on = model, 0

    def train(self, training_sets: Mapping[str, TrainingSet], seed: int) -> CostModel | None:
        """Train the model on all records, by task, and return it. A model that continues from its weights
        (``learns_on``) stays the same object. ``training_sets``: at least one record. For an offline method, return
        the prior, or None without one."""
        if self._training.offline:
            return self._prior
        if not self._training.learns_on:
            model = self._first_model(training_sets, seed)
            model.fit(*joined(training_sets, model.views))
            return model
        if self._model is None:
            self._model = self._first_model(training_sets, seed)
        count = sum(len(each.log_secs) for each in training_sets.values())
        if count > self._trained_on:
            # All records: the targets of failures follow the slowest success.
            self._model.update(*joined(training_sets, self._model.views))
            self._trained_on = count
        return self._model

    def _first_model(self, training_sets: Mapping[str, TrainingSet], seed: int) -> CostModel:
        """Make the model that the first training begins with."""
        columns = (each.offset_column for each in training_sets.values())
        offset_column = next((each for each in columns if each is not None), None)
        training, prior = self._training, self._prior
        if prior is None:
            return training.make_model(seed, offset_column)
        own = self._network_of(prior)
        if own is not None:
            network = copied(own)
            return network if training.momentum is None else MomentumModel(network, True, training.momentum)
        # The global model already contains the analyzer's prediction.
        return GlobalLocalModel(prior, training.make_model(seed, None))

    def _network_of(self, prior: CostModel) -> NetworkModel | None:
        """The network of the prior, if the method's own model continues from its weights; None if the prior is another
        kind of model."""
        return prior.network if self._training.learns_on and self._training.model.kind == prior.KIND else None


def joined(
    training_sets: Mapping[str, TrainingSet], views: tuple[str, ...]
) -> tuple[FeatureTable, Floats, Groups, Floats]:
    """The records of all tasks one after the other, with the number of the task as the group of each, and the weights.

    ``views``: the views to keep; the symbolic one only if there is one task.
    """
    tables = [only_views(each.features, views) for each in training_sets.values()]
    groups = [np.full(len(each.log_secs), at, dtype=np.int64) for at, each in enumerate(training_sets.values())]
    return (
        FeatureTable.concatenate(tables),
        np.concatenate([e.log_secs for e in training_sets.values()]),
        np.concatenate(groups),
        np.concatenate([e.weights for e in training_sets.values()]),
    )
