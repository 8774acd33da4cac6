"""Methods whose classes another process cannot import."""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from ray import cloudpickle

from actors.pickling import send_by_value
from policies.search.methods import METHOD_NAMES, method_named

OWN = """
from dataclasses import dataclass, replace

from policies.cost_models.forest import RandomForestModel
from policies.cost_models.registry import CostModelEntry
from policies.search.acquisition import ExpectedImprovement
from policies.search.methods import method_named
from policies.search.trainer import Training


class Mine(ExpectedImprovement):
    name = "mine"


class Forest(RandomForestModel):
    KIND = "my-forest"


def make(seed, offset_column):
    return Forest(seed)


METHOD = replace(
    method_named("fleet"), name="own", acquisition=Mine(), training=Training(CostModelEntry("my-forest", Forest, make))
)
"""


def test_a_method_of_a_users_module_can_be_read_where_the_module_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users_own_search.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    method = importlib.import_module("users_own_search").METHOD
    send_by_value(method)
    (tmp_path / "sent").write_bytes(cloudpickle.dumps(method))
    code = "import sys; from ray import cloudpickle; method = cloudpickle.loads(open(sys.argv[1], 'rb').read()); "
    code += "print(method.acquisition.name, method.training.model.make(0, None).KIND)"
    read = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "sent")], capture_output=True, text=True, check=True
    )
    assert read.stdout.split() == ["mine", "my-forest"]


def test_parts_in_tuples_and_attributes_travel_by_value_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_weights.py").write_text("class Weight:\n    value = 3\n")
    whole = "from users_weights import Weight\nfrom policies.search.acquisition import ExpectedImprovement\n"
    whole += "class Mine(ExpectedImprovement):\n    def __init__(self): self.weights = ({'first': Weight()},)\n"
    (tmp_path / "users_nested.py").write_text(whole)
    monkeypatch.syspath_prepend(str(tmp_path))
    method = replace(method_named("fleet"), acquisition=importlib.import_module("users_nested").Mine())
    send_by_value(method)
    (tmp_path / "sent").write_bytes(cloudpickle.dumps(method))
    code = "import sys; from ray import cloudpickle; method = cloudpickle.loads(open(sys.argv[1], 'rb').read()); "
    code += "print(method.acquisition.weights[0]['first'].value)"
    read = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "sent")], capture_output=True, text=True, check=True
    )
    assert read.stdout.split() == ["3"]


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_presets_travel_by_name_and_stay_equal(name: str) -> None:
    method = method_named(name)
    send_by_value(method)
    pickled = cloudpickle.dumps(method)
    assert len(pickled) < 4000
    assert cloudpickle.loads(pickled) == method
