"""The common part of neural cost models (PyTorch, on one core).

An ensemble of ``members`` networks, each with weights of its own and trained on a resample of the records (a single
member: on all records), by LambdaRank unless a subclass has another loss. Its scores order the candidates of a task;
:mod:`policies.cost_models.out_of_bag` turns them into log seconds with a deviation. Prediction runs in evaluation mode,
training on lists of records of one task each.

``from_analyzer``: the score starts from the analyzer's prediction, ``s(x) = network(x) - log(analyzer's seconds)``, and
the last layer starts at 0: before the first record the ranking is the analyzer's, and the network learns its error. For
a sketch that is not described, the mean prediction over the records of ``fit`` replaces the analyzer's.

Inputs are standardised column by column with the mean and deviation of the records of ``fit``; later updates keep them,
so that weights keep their meaning. A column that did not vary there is only shifted.

The seed determines everything: the weights, the resamples and the order of the records are drawn from generators of the
model's own. PyTorch's global generator and number of threads are left unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from policies.arrays import Floats, Groups
from policies.cost_models import model_bytes
from policies.cost_models.lambda_rank import lambda_rank, relevance
from policies.cost_models.monotone import MonotoneMap
from policies.cost_models.out_of_bag import learn_deviation, resamples, spread
from policies.cost_models.protocol import CostModelDefaults, check_records
from policies.features.table import FeatureTable
from policies.features.views import FEATURE_VERSION, INVARIANT, VIEW_SHAPES, check_version

if TYPE_CHECKING:
    from torch import Tensor, nn

PREDICTED_ROWS = 1024
"""Candidates that go through a network at a time."""


@dataclass(frozen=True)
class NeuralSettings:
    """Settings of a network's training: Adam, with the learning rate falling to 0 along half a cosine.

    Rate, decay and clip are those of Pruner's code, which makes 50 passes over millions of records.
    """

    members: int = 2
    """Networks of the ensemble."""
    epochs: int = 15
    """Passes over the records in ``fit``."""
    update_epochs: int = 5
    """Passes over the records in an update."""
    list_size: int = 256
    """Records of one list of the ranking, all of one task; a step takes one list."""
    least_steps: int = 150
    """Least number of the optimiser's steps in ``fit``, so that a few records get more passes."""
    least_update_steps: int = 30
    """Least number of steps in an update."""
    learning_rate: float = 7e-4
    weight_decay: float = 1e-6
    clip: float = 0.5
    """Largest norm of a gradient."""

    def __post_init__(self) -> None:
        least = min(self.members, self.epochs, self.update_epochs, self.least_steps, self.least_update_steps)
        if least < 1 or self.list_size < 2:
            raise ValueError(f"a network is trained with members, epochs and lists, got {self}")


class NeuralModel(CostModelDefaults):
    """See the module's docstring. A subclass names the views that its network reads, in order (``inputs``), and makes
    the network (``_make``)."""

    KIND: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]]
    views: ClassVar[tuple[str, ...]]

    def __init__(self, seed: int = 0, settings: NeuralSettings | None = None, *, from_analyzer: bool = False) -> None:
        self.seed = seed
        self.settings = settings or NeuralSettings()
        self.from_analyzer = from_analyzer
        self._networks: list[nn.Module] = []
        self._centre: dict[str, NDArray[np.float32]] = {}
        self._scale: dict[str, NDArray[np.float32]] = {}
        self._stand_in = 0.0
        self._level: MonotoneMap | None = None
        self._noise = 0.0
        self._updates = 0

    @property
    def network(self) -> Self:
        """See :class:`policies.cost_models.protocol.CostModel`: the model itself."""
        return self

    @classmethod
    def _make(cls) -> nn.Module:
        """A network with random weights."""
        raise NotImplementedError

    # -- the protocol ---------------------------------------------------------------------------------------------

    def fit(self, features: FeatureTable, log_secs: Floats, groups: Groups, weights: Floats | None = None) -> None:
        """See :meth:`CostModel.fit`: fresh weights."""
        check_records(features, log_secs, groups, weights)
        self._check_shapes(features)
        self._updates = 0
        self._standardise(features)
        self._networks = self._fresh()
        self._train(features, log_secs, groups, weights, self.settings.epochs, self.settings.least_steps)

    def update(self, features: FeatureTable, log_secs: Floats, groups: Groups, weights: Floats | None = None) -> None:
        """See :meth:`CostModel.update`: continue from the current weights. Before the first training this is
        ``fit``."""
        if not self._networks:
            self.fit(features, log_secs, groups, weights)
            return
        check_records(features, log_secs, groups, weights)
        self._check_shapes(features)
        self._updates += 1
        settings = self.settings
        self._train(features, log_secs, groups, weights, settings.update_epochs, settings.least_update_steps)

    def predict(self, features: FeatureTable) -> tuple[Floats, Floats]:
        """See :meth:`CostModel.predict`."""
        if not self._networks:
            raise ValueError("the model has not been trained")
        self._check_shapes(features)
        if not len(features):
            return np.empty(0), np.empty(0)
        scores = self._scores(features)
        each = scores if self._level is None else self._level(scores)
        return each.mean(axis=0), np.sqrt(spread(each) ** 2 + self._noise**2)

    def save(self) -> bytes:
        """See :meth:`CostModel.save`: a header of plain values, and all weights and scales by their names."""
        header = {
            "version": FEATURE_VERSION,
            "seed": self.seed,
            "settings": asdict(self.settings),
            "from_analyzer": self.from_analyzer,
            "stand_in": self._stand_in,
            "noise": self._noise,
            "updates": self._updates,
            "slope": None if self._level is None else self._level.slope,
        }
        arrays: dict[str, NDArray[Any]] = dict(self.weights())
        for name in self.inputs:
            arrays[f"centre.{name}"], arrays[f"scale.{name}"] = self._centre[name], self._scale[name]
        if self._level is not None:
            arrays["level.at"], arrays["level.values"] = self._level.at, self._level.values
        return model_bytes.pack(model_bytes.SavedState(self.KIND, header, arrays))

    @classmethod
    def load(cls, data: bytes) -> Self:
        """Return the model that ``save`` wrote. Raise ValueError for other bytes, or a model of another feature
        version."""
        saved = model_bytes.unpack(data, cls.KIND)
        header = saved.header
        check_version(header)
        arrays = dict(saved.arrays)
        try:
            settings = NeuralSettings(**header["settings"])
        except TypeError as error:
            raise ValueError(f"the cost model '{cls.KIND}' cannot be read: {error}") from error
        model = cls(header["seed"], settings, from_analyzer=header["from_analyzer"])
        model._stand_in, model._noise = float(header["stand_in"]), float(header["noise"])
        model._updates = int(header["updates"])
        for name in cls.inputs:
            columns = (VIEW_SHAPES[name][-1],)
            for moments, kind in ((model._centre, "centre"), (model._scale, "scale")):
                moments[name] = arrays.pop(f"{kind}.{name}")
                if moments[name].shape != columns or not np.isfinite(moments[name]).all():
                    raise ValueError(
                        f"the cost model '{cls.KIND}' has scales of another shape for '{name}': if an earlier version "
                        "saved it, train it anew"
                    )
        if header["slope"] is not None:
            model._level = MonotoneMap(arrays.pop("level.at"), arrays.pop("level.values"), float(header["slope"]))
        model._networks = model._fresh()
        model.set_weights(arrays)
        return model

    # -- weights --------------------------------------------------------------------------------------------------

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Copies of all weights by ``member.parameter``; ValueError before the first training."""
        if not self._networks:
            raise ValueError("the model has not been trained")
        return {
            f"{number}.{name}": values.detach().numpy().copy()
            for number, network in enumerate(self._networks)
            for name, values in network.state_dict().items()
        }

    def set_weights(self, weights: Mapping[str, NDArray[np.float32]]) -> None:
        """Replace the weights; ValueError if a name is missing or unknown, a shape differs, or a value is not
        finite."""
        import torch

        shapes = {name: values.shape for name, values in self.weights().items()}
        if {name: values.shape for name, values in weights.items()} != shapes:
            raise ValueError(f"these are not the weights of a model '{self.KIND}' of {len(self._networks)} members")
        if not all(np.isfinite(values).all() for values in weights.values()):
            raise ValueError("weights must be finite numbers")
        for number, network in enumerate(self._networks):
            state = {name: torch.from_numpy(weights[f"{number}.{name}"].copy()) for name in network.state_dict()}
            network.load_state_dict(state)

    @property
    def parameters(self) -> int:
        """Number of weights of one member."""
        return sum(values.numel() for values in self._make().parameters())

    # -- training -------------------------------------------------------------------------------------------------

    @classmethod
    def _labels(cls, log_secs: Floats, groups: Groups) -> Floats:
        """Labels that the loss compares scores with, larger for faster, ``(n,)``."""
        return relevance(log_secs, groups)

    @classmethod
    def _loss(cls, scores: Tensor, labels: Tensor) -> Tensor:
        """The loss of a list of one task's records."""
        return lambda_rank(scores, labels)

    def _check_shapes(self, features: FeatureTable) -> None:
        for name in self.views:
            shape = features.view(name).shape[1:]
            if shape != VIEW_SHAPES[name]:
                raise ValueError(f"the view '{name}' has the shape {shape}, the model reads {VIEW_SHAPES[name]}")

    def _fresh(self) -> list[nn.Module]:
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            networks = [self._make() for _ in range(self.settings.members)]
            if self.from_analyzer:
                for network in networks:
                    last = network.get_submodule("last")
                    torch.nn.init.zeros_(last.get_parameter("weight"))
                    torch.nn.init.zeros_(last.get_parameter("bias"))
        return networks

    def _standardise(self, features: FeatureTable) -> None:
        for name in self.inputs:
            values = features.view(name)
            rows = values.reshape(-1, values.shape[-1]).astype(np.float64)
            rows = rows[(rows != 0).any(axis=1)]
            if not len(rows):
                rows = np.zeros((1, values.shape[-1]))
            scale = rows.std(axis=0)
            self._centre[name] = rows.mean(axis=0).astype(np.float32)
            self._scale[name] = np.where(scale > 1e-3, scale, 1.0).astype(np.float32)
        if self.from_analyzer:
            described = features.view(INVARIANT)[:, 1] > 0
            predicted = features.view(INVARIANT)[described, 0]
            self._stand_in = float(predicted.mean()) if len(predicted) else 0.0

    def _tensors(self, features: FeatureTable) -> list[Tensor]:
        import torch

        tensors = []
        for name in self.inputs:
            values = features.view(name)
            there = (values != 0).any(axis=-1, keepdims=True)
            tensors.append(torch.from_numpy(np.where(there, (values - self._centre[name]) / self._scale[name], 0.0)))
        return tensors

    def _base(self, features: FeatureTable) -> NDArray[np.float32]:
        """Scores to start from, larger for faster, ``(n,)``."""
        if not self.from_analyzer:
            return np.zeros(len(features), dtype=np.float32)
        view = features.view(INVARIANT)
        return -np.where(view[:, 1] > 0, view[:, 0], np.float32(self._stand_in))

    def _scores(self, features: FeatureTable) -> Floats:
        """Each member's prediction, larger for slower, ``(M, n)``, in evaluation mode."""
        import torch

        base = self._base(features)
        tensors = self._tensors(features)
        with one_thread(), torch.no_grad():
            each = []
            for network in self._networks:
                network.eval()
                parts = [
                    network(*(tensor[start : start + PREDICTED_ROWS] for tensor in tensors)).numpy()
                    for start in range(0, len(features), PREDICTED_ROWS)
                ]
                each.append(-(np.concatenate(parts) + base))
        return np.array(each, dtype=np.float64)

    def _train(
        self,
        features: FeatureTable,
        log_secs: Floats,
        groups: Groups,
        weights: Floats | None,
        epochs: int,
        least_steps: int,
    ) -> None:
        import torch

        rng = np.random.default_rng([self.seed, self._updates])
        counts = np.ones(len(log_secs)) if weights is None else weights
        drawn = resamples(self.settings.members, counts, rng)
        tensors = self._tensors(features)
        base = torch.from_numpy(self._base(features).astype(np.float32))
        labels = torch.from_numpy(self._labels(log_secs, groups).astype(np.float32))
        with one_thread():
            for network, times in zip(self._networks, drawn, strict=True):
                self._train_member(
                    network,
                    tensors,
                    base,
                    labels,
                    np.repeat(np.arange(len(times)), times),
                    groups,
                    rng,
                    epochs,
                    least_steps,
                )
        self._level, self._noise = learn_deviation(self._scores(features), log_secs, drawn, counts, ranks=True)

    def _train_member(
        self,
        network: nn.Module,
        tensors: list[Tensor],
        base: Tensor,
        labels: Tensor,
        rows: NDArray[np.intp],
        groups: Groups,
        rng: np.random.Generator,
        epochs: int,
        least_steps: int,
    ) -> None:
        import torch

        settings = self.settings
        per_epoch = len(_lists(rows, groups, settings.list_size, rng))
        steps = max(epochs * per_epoch, least_steps)
        network.train()
        optimiser = torch.optim.Adam(
            network.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
        )
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        done = 0
        while done < steps:
            for listed in _lists(rows, groups, settings.list_size, rng)[: steps - done]:
                at = torch.from_numpy(listed)
                scores = network(*(tensor[at] for tensor in tensors)) + base[at]
                loss = self._loss(scores, labels[at])
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(network.parameters(), settings.clip)
                optimiser.step()
                schedule.step()
                done += 1
        network.eval()


def _lists(rows: NDArray[np.intp], groups: Groups, size: int, rng: np.random.Generator) -> list[NDArray[np.intp]]:
    """The rows in random lists of at most ``size``, each of one task, in random order."""
    lists: list[NDArray[np.intp]] = []
    for group in np.unique(groups[rows]):
        shuffled = rng.permutation(rows[groups[rows] == group])
        lists += np.array_split(shuffled, -(-len(shuffled) // size))
    return [lists[at] for at in rng.permutation(len(lists))]


@contextmanager
def one_thread() -> Iterator[None]:
    """Run PyTorch on one thread: sums have one order, and the other cores stay free to measure or build."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
