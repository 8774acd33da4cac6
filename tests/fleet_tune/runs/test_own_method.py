"""Methods that a user makes of parts: how they are found and refused, and a run with one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import fleet_tune
from fleet_tune.base.errors import UserError
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.runs.methods import method_of
from policies.cost_models.registry import GAUSSIAN
from policies.search.exploration import FixedEpsilon
from policies.search.methods import Method, method_named
from tests.helpers.commands import fleet_tune_here

OWN = '''
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from policies.cost_models.forest import RandomForestModel
from policies.cost_models.registry import CostModelEntry
from policies.features.table import SYMBOLIC
from policies.search.generators import DraftGenerator
from policies.search.methods import method_named
from policies.search.trainer import Training


class Forest(RandomForestModel):
    KIND = "my-forest"
    views = (SYMBOLIC,)


@dataclass(frozen=True)
class Optimistic:
    """Fastest plausible candidates first."""

    name: ClassVar[str] = "optimistic"

    def __call__(self, mean, deviation, best_secs, /):
        import numpy as np

        return np.exp(deviation - mean)

    def energy(self, mean, deviation, best_secs, /):
        return mean - deviation


def make(seed, offset_column):
    return Forest(seed)


METHOD = replace(
    method_named("fleet"),
    name="mine",
    acquisition=Optimistic(),
    training=Training(CostModelEntry("my-forest", Forest, make)),
    batch=4,
    starts_from="",
)
NUMBER = 3
WRONG = replace(METHOD, generator="draft")
CLASS = replace(METHOD, generator=DraftGenerator)
'''


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "my_search.py"
    path.write_text(OWN)
    return path


def test_a_preset_a_file_and_an_object_name_a_method(own: Path) -> None:
    assert method_of("pruner:offline") == method_named("pruner:offline")
    found = method_of(f"{own}:METHOD")
    assert (found.name, found.batch) == ("mine", 4)
    assert method_of(f"{own}:METHOD") is found  # the file ran once
    assert method_of(found) is found


def test_the_example_is_a_method() -> None:
    example = Path(__file__).parents[3] / "examples" / "own_method.py"
    assert method_of(f"{example}:METHOD").name == "own"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("NUMBER", "my_search.py:NUMBER is of the type int, not a policies.search.methods.Method"),
        ("WRONG", "the part 'generator' of my_search.py:WRONG is of the type str"),
        ("CLASS", "the part 'generator' of my_search.py:CLASS is the class DraftGenerator"),
        ("NONE", "has no 'NONE'"),
    ],
)
def test_what_is_no_method_is_refused(own: Path, name: str, problem: str) -> None:
    with pytest.raises(UserError) as raised:
        method_of(f"{own}:{name}")
    assert problem in raised.value.problem
    if name == "NONE":
        assert raised.value.next_step == "choose one of its methods: METHOD, WRONG, CLASS"


def test_a_file_that_is_missing_or_fails_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read the method's file"):
        method_of(str(tmp_path / "other.py:METHOD"))
    with pytest.raises(UserError, match="names no method in a file"):
        method_of(str(tmp_path / "other.py"))
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    with pytest.raises(UserError, match=r"cannot be run: ModuleNotFoundError"):
        method_of(str(tmp_path / "broken.py:METHOD"))


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"batch": 0}, "has batches of 0 trials"),
        ({"name": "a:b"}, "is named 'a:b'"),
        ({"training": "pacm"}, "the part 'training'"),
        ({"training": replace(method_named("pruner").training, model="pacm")}, "the part 'training.model'"),  # type: ignore[type-var]
        ({"training": replace(method_named("moa-pruner").training, model=GAUSSIAN)}, "has no weights"),  # type: ignore[type-var]
        ({"tasks": None}, "the part 'tasks'"),
        ({"exploration": FixedEpsilon}, "the part 'exploration'"),
        ({"selection": 2.0}, "the part 'selection'"),
        ({"by_round": True}, "counts rounds, and its sketches have prior visits"),
    ],
)
def test_a_wrong_part_is_named(changed: dict[str, object], problem: str) -> None:
    with pytest.raises(UserError) as raised:
        method_of(replace(method_named("fleet"), **changed))  # type: ignore[arg-type]
    assert problem in raised.value.problem


def test_the_command_line_refuses_a_wrong_method_before_anything_starts(own: Path) -> None:
    wrong = fleet_tune_here("tune", "net.onnx", "--dry-run", "--method", f"{own}:NUMBER")
    assert wrong.returncode == 2
    assert "not a policies.search.methods.Method" in wrong.stderr
    both = fleet_tune_here("tune", "net.onnx", "--dry-run", "--method", f"{own}:METHOD", "--cost-model", "pacm")
    assert both.returncode == 2
    assert "not one in a file" in both.stderr


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.long
def test_a_run_with_a_users_method(own: Path, tmp_path: Path) -> None:
    """Its classes exist in this process alone, and reach the searcher and the learner by value."""
    model = tmp_path / "model.py"
    model.write_text(
        "import torch\n\n\ndef layer():\n    return torch.nn.Linear(48, 64).eval(), (torch.randn(8, 48),)\n"
    )
    result = fleet_tune.tune(f"{model}:layer", out=tmp_path / "out", method=f"{own}:METHOD", trials=16, store="")
    assert not result.interrupted
    with RecordReader(tmp_path / "out" / "records.db") as reader:
        trials = [record for record in reader if record.revision == 0]
    assert len(trials) >= 16
    assert len({record.candidate.id for record in trials}) == len(trials)
    assert isinstance(method_of(f"{own}:METHOD"), Method)
