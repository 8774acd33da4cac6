"""Transfer between tasks: who teaches whom, and that AutoTVM's models are added as in its equation 4."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from bench.models import transfer
from bench.models.laboratory import LABORATORY_MODELS, load_model, method_named
from bench.models.transfer import between, priors
from bench.networks.resnet18_table import SOURCE, TARGETS
from bench.replay.replay_runs import RecordedTask
from bench.replay.warm_starts import summed
from bench.result import BenchError
from fleet_tune.base.task_data import TaskData
from policies.cost_models.global_local import GlobalLocalModel
from policies.cost_models.knowledge import general_examples
from policies.cost_models.neural import NeuralSettings
from policies.cost_models.protocol import CostModel
from policies.search.trainer import Trainer, Training
from policies.search.training_table import TrainingSet
from tests.bench.made_up import made_up

NAMES = [f"C{number} conv2d" for number in (10, 11, 12, 1, 2, 3, 4, 5, 6, 7, 8, 9)] + ["Matmul-1024 matmul"]


def test_figure_8_has_six_tasks_on_one_side_and_four_on_the_other() -> None:
    learned, targets = between(NAMES, SOURCE, TARGETS)
    assert [NAMES[at] for at in learned] == [f"C{number} conv2d" for number in range(1, 7)]
    assert [NAMES[at] for at in targets] == ["C7 conv2d", "C8 conv2d", "C9 conv2d", "Matmul-1024 matmul"]


def test_a_side_that_is_missing_or_a_task_on_both_is_refused() -> None:
    for teachers, targets in (((), ("C7",)), (("C1",), ())):
        with pytest.raises(BenchError, match="name some with --from and others with --to"):
            between(NAMES, teachers, targets)
    with pytest.raises(BenchError, match="C7 conv2d is on both sides"):
        between(NAMES, ("C1", "C7"), ("C7", "C8"))
    with pytest.raises(BenchError, match="no task of the dataset is called 'C13'"):
        between(NAMES, ("C13",), ("C7",))


def test_only_the_named_tasks_teach(data: TaskData, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def taught(sources: list[TaskData], *_: object, **__: object) -> None:
        asked.append([each.task.workload.name for each in sources])

    monkeypatch.setattr(transfer, "general_prior", taught)
    one, two = made_up("one", seed=1), made_up("two", seed=2)
    for name in ("autotvm", "fleet"):
        assert priors("workloads", [data, one], [], [], method_named(name), [two]) == [b"", b""]
        assert priors("workloads", [data, one], [], [], method_named(name)) == [b"", b""]
    assert asked == [["two"], ["two"], ["one"], ["matmul"]] * 2


def test_a_tree_gru_is_added_to_the_one_that_was_taught(data: TaskData) -> None:
    """f(x) = f_global(x) + shift + f_local(x), where the global network stays as it was taught."""
    entry = LABORATORY_MODELS["tree-gru"]
    settings = NeuralSettings(members=1, epochs=1, least_steps=2, update_epochs=1, least_update_steps=2)

    def make(seed: int, _: int | None) -> CostModel:
        model: Any = entry.make(seed, None)
        model.settings = settings
        return model

    quick = dataclasses.replace(entry, make=make)
    examples = general_examples([data], entry.views)
    assert examples is not None
    general = make(0, None)
    general.fit(examples.features, examples.log_secs, examples.groups)
    prior = load_model(summed(general).save())
    trainer = Trainer(Training(quick), prior)
    weights = np.ones(len(examples.log_secs))
    records = TrainingSet(examples.features, examples.log_secs, examples.groups, (), None, weights)
    model = trainer.train({"task": records}, 1)
    assert isinstance(model, GlobalLocalModel)
    local = load_model(model.save())
    assert isinstance(local, GlobalLocalModel)
    mean = model.predict(examples.features)[0]
    level = prior.predict(examples.features)[0]
    assert np.allclose(level, general.predict(examples.features)[0])
    rest = mean - level - model.shift
    assert rest.std() > 0  # the local network says something
    assert np.allclose(local.general.predict(examples.features)[0], level)
    assert summed(method_named("fleet").training.model.make(0, None)).KIND == "gaussian"  # type: ignore[union-attr]
    search = RecordedTask(data).search(method_named("autotvm:tree-gru"), 0, prior)
    assert {each.reason for each in search.propose(8)} != {"random"}
