"""``--method``: each is only a choice of the policies in this package, with the hyperparameters of its source.

Where a paper leaves a number open, the docstring of its preset says what stands there instead. Every part can be
switched by itself with ``dataclasses.replace``: the sketch bandit (``sketch_policy``), the task bandit
(``task_policy``), the contextual epsilon (``epsilon``), expected improvement (``acquisition``), the draft
(``generator``).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, cast

from fleet_tune.errors import UserError
from policies.cost_models.moa import MOMENTUM, MomentumModel, Weighted
from policies.cost_models.protocol import CostModel
from policies.cost_models.registry import MODEL_NAMES, ModelName, kind_of, learns_on, make_model, views_of
from policies.features.views import PER_STORE
from policies.search.acquisition import AcquisitionName
from policies.search.annealing import AnnealingSettings
from policies.search.bandits import EXPLORATION, TaskBandit, TaskPolicy
from policies.search.draft import DraftSettings

GeneratorName = Literal["draft", "latent", "genetic", "annealing", "random"]


@dataclass(frozen=True)
class Preset:
    """A search method.

    ``generator``: where candidates come from: a genetic search on the calibrated analyzer and the model together
    (``draft``), on the analyzer alone for the model to verify (``latent``), on the model alone (``genetic``), simulated
    annealing on the model (``annealing``), the last two random until there is one, or uniform draws (``random``).
    ``model``: the cost model, None where the method has none; ``from_analyzer``: whether it starts from the analyzer's
    prediction; ``momentum``: of its adaptation (:mod:`policies.cost_models.moa`), None: it is fine-tuned; ``offline``:
    it is never trained on what this run measures, so that it has to be pre-trained. ``acquisition``: ``ei`` and ``pi``
    (expected improvement and its probability), ``ucb`` (confidence bound) or ``mean`` (the prediction itself);
    ``per_second``: divided by the seconds that the trial is expected to take.

    ``sketch_policy``: which sketches a batch comes from: ``ucb`` (Bansor), ``uniform``, or ``joint`` (all sketches are
    one space and compete by their scores). ``task_policy``: which tasks (see
    :class:`policies.search.bandits.TaskBandit`). ``exploration``: the constant C of both bandits. ``turn``: the bandits
    count trials and a sketch is chosen for each ``trial``, or they count rounds of ``batch`` trials and a sketch is
    chosen for a whole ``round`` (Ansor, Bansor).

    ``batch``: trials of a round in the source: a replay trains the model after each. ``epsilon``: share of random
    candidates; None is AdaTune's contextual one within ``epsilon_bounds``, from ``epsilon_plans`` random candidates, or
    from those offered where that is 0. ``explore``: random candidates are drawn from the ``draft`` or from the whole
    ``space``. ``alpha``: weight of diversity (AutoTVM equation 3) among the ``top_factor * batch`` best (its lambda;
    None: all). ``radius``: of the discounted neighbourhood, in doublings of a tile factor.
    """

    name: str
    source: str
    generator: GeneratorName
    acquisition: AcquisitionName
    sketch_policy: Literal["ucb", "uniform", "joint"]
    task_policy: TaskPolicy
    batch: int
    model: ModelName | None = "boosted"
    from_analyzer: bool = False
    momentum: float | None = None
    offline: bool = False
    per_second: bool = False
    turn: Literal["trial", "round"] = "trial"
    exploration: float = EXPLORATION
    epsilon: float | None = None
    epsilon_bounds: tuple[float, float] = (0.0, 1.0)
    epsilon_plans: int = 0
    explore: Literal["draft", "space"] = "space"
    alpha: float = 0.0
    top_factor: float | None = None
    radius: float = 0.0
    draft: DraftSettings = field(default_factory=DraftSettings)
    annealing: AnnealingSettings = field(default_factory=AnnealingSettings)

    @property
    def learned_model(self) -> bool:
        """Whether a cost model is trained."""
        return self.model is not None

    @property
    def views(self) -> tuple[str, ...]:
        """The views of candidates that the model reads; none without a model."""
        return () if self.model is None else views_of(self.model)

    @property
    def kind(self) -> str:
        """What a saved model of this method calls itself; empty without a model."""
        return "" if self.model is None else kind_of(self.model)

    @property
    def learns_on(self) -> bool:
        """Whether the model is updated from where it stands, instead of made anew from all records."""
        return self.model is not None and learns_on(self.model)

    def make_model(self, seed: int, offset_column: int | None) -> CostModel:
        """An untrained cost model; ``offset_column`` from the training set."""
        if self.model is None:
            raise ValueError(f"the method '{self.name}' has no cost model")
        made = make_model(self.model, seed, offset_column if self.from_analyzer else None)
        if self.momentum is None:
            return made
        assert isinstance(made, Weighted)
        return MomentumModel(made, False, self.momentum)

    def make_task_bandit(self, seed: int = 0) -> TaskBandit:
        """The allocation of trials to tasks that belongs to this method."""
        rounds = self.batch if self.turn == "round" else 1
        return TaskBandit(seed, policy=self.task_policy, exploration=self.exploration, round_trials=rounds)


EVOLUTION = DraftSettings(size=512, population=2048, generations=4)
"""Ansor's evolutionary search: 2,048 candidates in each of 4 generations."""

FLEET = Preset(
    name="fleet",
    source="fleet-tune: calibrated draft, expected improvement per second, UCB over sketches and tasks",
    generator="draft",
    acquisition="ei",
    per_second=True,
    sketch_policy="ucb",
    task_policy="ucb",
    batch=8,
    epsilon_bounds=(0.02, 0.2),
    explore="draft",
    alpha=0.1,
    radius=1.0,
    from_analyzer=True,
)
"""Ours: Pruner's draft on an analyzer that is calibrated online, boosted trees that start from the analyzer, AdaTune's
expected improvement and contextual epsilon (bounded by 2 and 20 percent), Bansor's bandits, AutoTVM's diversity;
batches of 8, because nothing waits for a round to end."""

AUTOTVM = Preset(
    name="autotvm",
    source="AutoTVM: simulated annealing on boosted trees (rank objective), diversity-aware choice, epsilon 0.05",
    generator="annealing",
    model="boosted-rank",
    acquisition="mean",
    sketch_policy="joint",
    task_policy="round-robin",
    batch=64,
    epsilon=0.05,
    alpha=0.1,
    top_factor=2.0,
)
"""AutoTVM, Algorithm 1 and appendix A.3: batches of 64 (``b_GBT``), 128 chains of at most 500 steps (``n_sa``,
``step_sa``), epsilon 0.05, the rank objective of equation 2, equation 3 among the best ``lambda * b``. Open in the
paper: lambda (figure 6 tries 1, 2 and 4: 2 here), alpha (0.1: a candidate of new components alone gains a tenth of the
best score), and tasks, which it tunes one by one: in turn here. A template is one space: our sketches compete as one.
"""

ADATUNE = Preset(
    name="adatune",
    source="AdaTune: simulated annealing on a random forest, expected improvement, contextual epsilon",
    generator="annealing",
    model="forest",
    acquisition="ei",
    sketch_policy="joint",
    task_policy="round-robin",
    batch=32,
    epsilon=None,
    epsilon_plans=20,
    alpha=0.1,
    top_factor=2.0,
)
"""AdaTune, Algorithm 1 and appendix A: batches of 32, a random forest of 10 trees with max_features 10, equations 1 and
2 in AutoTVM's diversity objective, equation 3 over 20 random plans; everything else AutoTVM's."""

ANSOR = Preset(
    name="ansor",
    source="Ansor, as Bansor section II describes it: random sketch, evolutionary search on XGBoost",
    generator="genetic",
    acquisition="mean",
    sketch_policy="uniform",
    turn="round",
    task_policy="gradient",
    batch=64,
    epsilon=0.05,
    draft=EVOLUTION,
)
"""Ansor by Bansor's Algorithm 1: each round one task by the gradient of equation 2 (epsilon-greedy, epsilon 0.05), one
sketch drawn uniformly, an evolutionary search of 2,048 candidates in 4 generations on boosted trees, 64 measurements
(``num_measures_per_round`` of its code), of which 0.05 random."""

BANSOR = Preset(
    name="bansor",
    source="Bansor section III: Ansor with UCB over sketches and over tasks, C = 0.3",
    generator="genetic",
    acquisition="mean",
    sketch_policy="ucb",
    turn="round",
    task_policy="ucb",
    batch=64,
    epsilon=0.05,
    draft=EVOLUTION,
)
"""Ansor, with the sketch of a round chosen by equations 3 and 4, its task by equations 5 and 6; C = 0.3 (section V)."""

PRUNER = Preset(
    name="pruner",
    source="Pruner: latent schedule explorer on the analyzer, verified by PaCM, epsilon 0.1",
    generator="latent",
    model="pacm",
    acquisition="mean",
    sketch_policy="joint",
    turn="round",
    task_policy="gradient",
    batch=10,
    epsilon=0.1,
    draft=DraftSettings(size=512, population=1536, generations=3),
)
"""Pruner, Algorithm 1, section 4 and its code: a genetic search on the symbol-based analyzer (population 1,536, two
steps, mutation 0.85) drafts 512 candidates, PaCM verifies them, rounds of ten measurements of which a tenth is random,
Ansor's gradient over the tasks. The draft is new each round (its code renews it every second one), and is not bred
further on the cost model. The analyzer is ours, without its calibration."""

RANDOM = Preset(
    name="random",
    source="uniform candidates, sketches and tasks in turn: the baseline of every paper",
    generator="random",
    model=None,
    acquisition="mean",
    sketch_policy="uniform",
    task_policy="round-robin",
    batch=64,
    epsilon=1.0,
)
"""Every candidate is drawn uniformly from a uniformly drawn sketch."""

MOA_PRUNER = replace(
    PRUNER,
    name="moa-pruner",
    source="MoA-Pruner: Pruner with momentum online adaptation of a pre-trained PaCM, momentum 0.99",
    momentum=MOMENTUM,
)
"""Pruner with section 4.3. Its first siamese model is a pre-trained PaCM (``--transfer-from``); without one it is what
the first training makes."""

_PRESETS = {preset.name: preset for preset in (FLEET, AUTOTVM, ADATUNE, ANSOR, BANSOR, PRUNER, MOA_PRUNER, RANDOM)}
PRESET_NAMES = tuple(_PRESETS)
OFFLINE = "offline"
SEARCH_MODELS: tuple[ModelName, ...] = tuple(name for name in MODEL_NAMES if PER_STORE not in views_of(name))
"""The cost models that a search can use: their features follow from decisions alone."""


def preset(name: str) -> Preset:
    """The method of this name; UserError for one that is unknown.

    A name may go on with a model that takes the place of the method's own, and with ``offline``: ``autotvm:tree-gru``,
    ``pruner:offline``, ``autotvm:mlp:offline``. Its preset has the whole name.
    """
    method, *changes = name.split(":")
    found = _PRESETS.get(method)
    choose = f"choose one of: {', '.join(PRESET_NAMES)}"
    if found is None:
        raise UserError(f"there is no method '{method}'", choose)
    offline = OFFLINE in changes
    models = [change for change in changes if change != OFFLINE]
    if changes and found.model is None:
        raise UserError(f"the method '{method}' has no cost model to replace or to keep offline", choose)
    for model in models:
        if model not in SEARCH_MODELS:
            raise UserError(
                f"there is no cost model '{model}' for a search", f"choose one of: {', '.join(SEARCH_MODELS)}"
            )
    if len(models) > 1:
        raise UserError(f"'{name}' names {len(models)} cost models", "name one")
    if models:
        found = replace(found, model=cast(ModelName, models[0]))
    return replace(found, name=name, offline=offline) if changes else found


def spec(method: str, model: str | None = None, *, offline: bool = False) -> str:
    """The name by which :func:`preset` finds a method with another model, or one that is not trained online."""
    return ":".join([method, *([model] if model else []), *([OFFLINE] if offline else [])])
