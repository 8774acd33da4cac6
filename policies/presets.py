"""``--method``: each is only a choice of the policies in this package, with the hyperparameters of its source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from fleet_tune.errors import UserError
from policies.bandits import EXPLORATION, TaskBandit, TaskPolicy
from policies.boosted_trees import GradientBoostedModel
from policies.cost_model import CostModel
from policies.draft import DraftSettings


@dataclass(frozen=True)
class Preset:
    """A search method.

    ``generator``: where candidates come from: a genetic search on the calibrated analyzer (``draft``), on the learned
    model (``model``; random until there is one), or uniform draws (``random``). ``acquisition``: ``ei`` (expected
    improvement per second), ``mean`` (the model's prediction), ``none``. ``epsilon``: share of random candidates; None
    is AdaTune's contextual one within ``epsilon_bounds``. ``explore``: random candidates are drawn from the
    ``draft`` or from the whole ``space``. ``alpha``: weight of diversity (AutoTVM equation 3), ``radius`` of the
    discounted neighbourhood in doublings of a tile factor. ``learned_model``: whether a cost model is trained;
    ``from_analyzer``: whether it starts from the analyzer's prediction.
    """

    name: str
    source: str
    generator: Literal["draft", "model", "random"]
    acquisition: Literal["ei", "mean", "none"]
    sketch_policy: Literal["ucb", "uniform"]
    task_policy: TaskPolicy
    epsilon: float | None = None
    epsilon_bounds: tuple[float, float] = (0.0, 1.0)
    explore: Literal["draft", "space"] = "space"
    exploration: float = EXPLORATION
    alpha: float = 0.0
    radius: float = 0.0
    draft: DraftSettings = field(default_factory=DraftSettings)
    learned_model: bool = True
    from_analyzer: bool = False

    def make_model(self, seed: int, offset_column: int | None) -> CostModel:
        """An untrained cost model; ``offset_column`` from the training set."""
        if not self.learned_model:
            raise ValueError(f"the method '{self.name}' has no cost model")
        return GradientBoostedModel(seed, offset_column=offset_column if self.from_analyzer else None)

    def make_task_bandit(self, seed: int = 0) -> TaskBandit:
        """The allocation of trials to tasks that belongs to this method."""
        return TaskBandit(seed, policy=self.task_policy, exploration=self.exploration)


_PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            name="fleet",
            source="fleet-tune: calibrated draft, expected improvement per second, UCB over sketches and tasks",
            generator="draft",
            acquisition="ei",
            sketch_policy="ucb",
            task_policy="ucb",
            epsilon_bounds=(0.02, 0.2),
            explore="draft",
            alpha=0.1,
            radius=1.0,
            from_analyzer=True,
        ),
        Preset(
            name="random",
            source="uniform candidates, sketches and tasks in turn: the baseline of every paper",
            generator="random",
            acquisition="none",
            sketch_policy="uniform",
            task_policy="round-robin",
            learned_model=False,
        ),
        Preset(
            name="ansor",
            source="Ansor, as Bansor section II describes it: random sketch, evolutionary search on XGBoost",
            generator="model",
            acquisition="mean",
            sketch_policy="uniform",
            task_policy="gradient",
            epsilon=0.05,
            draft=DraftSettings(size=512, population=2048, generations=4),
        ),
        Preset(
            name="bansor",
            source="Bansor section III: Ansor with UCB over sketches and over tasks, C = 0.3",
            generator="model",
            acquisition="mean",
            sketch_policy="ucb",
            task_policy="ucb",
            epsilon=0.05,
            draft=DraftSettings(size=512, population=2048, generations=4),
        ),
    )
}
PRESET_NAMES = tuple(_PRESETS)
PLANNED = ("autotvm", "adatune", "pruner", "moa-pruner")


def preset(name: str) -> Preset:
    """The method of this name; UserError for one that is unknown or not available yet."""
    found = _PRESETS.get(name)
    if found is not None:
        return found
    choose = f"choose one of: {', '.join(PRESET_NAMES)}"
    if name in PLANNED:
        raise UserError(f"the method '{name}' is planned and not available in this version", choose)
    raise UserError(f"there is no method '{name}'", choose)
