"""Outputs of which a comparison says nothing are told, and what they do not show is compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import nn

from devices.networks.checks.silent_outputs import silent_outputs
from devices.networks.frontend import Network, load_network
from devices.networks.network import Array
from devices.networks.processes.lowering_process import LoweringProcess
from devices.networks.tasks.lowering import LoweredNetwork, UntunedResult, import_network, run_untuned
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass
from fleet_tune.base.errors import NetworkError
from fleet_tune.runs.prepared import Prepared
from fleet_tune.runs.preparing import device_classes

CLASS = DeviceClass("cpu", resolve_target("native", 2))
GIVE = ": give other inputs with --inputs"


class Here(LoweringProcess):
    """Lowers and runs networks in this process; as the other one it runs what was lowered last for a class. ``wrong``:
    the first value between is."""

    def __init__(self, wrong: bool = False) -> None:
        self.wrong = wrong
        self.runs = 0
        self._last: dict[str, LoweredNetwork] = {}

    def lowered(self, network: Network, device_class: DeviceClass) -> LoweredNetwork:
        self._last[device_class.name] = import_network(network, device_class)
        return self._last[device_class.name]

    def run(self, lowered: LoweredNetwork, inputs: Sequence[Array]) -> UntunedResult:
        self.runs += 1
        untuned = run_untuned(self._last.get(lowered.device_class.name, lowered).module, inputs)
        first, *others = untuned.outputs
        return UntunedResult((first + np.float32(self.wrong and len(others) > 0), *others), untuned.secs)

    def close(self) -> None: ...


class Headless(nn.Module):
    """A network whose head is of zeros, as vision transformers are made."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 4)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).relu())  # type: ignore[no-any-return]


def _check(module: nn.Module, *inputs: torch.Tensor, here: Here | None = None, skip: Sequence[str] = ()) -> list[str]:
    network = load_network((module, inputs))
    prepared = Prepared(network, {}, {"cpu": import_network(network, CLASS)}, frozenset(), {})
    parts = device_classes.check(prepared, here or Here(), skip).left_out
    assert {(each.what, each.device_class) for each in parts} <= {("output", "cpu")}
    return [each.reason for each in parts]


def test_a_network_whose_outputs_are_zero_is_compared_further_in() -> None:
    here = Here()
    [told] = _check(Headless(), torch.randn(2, 8), here=here)
    assert told == (
        "output 0 is 0 everywhere, and a comparison of it says nothing on any inputs that were tried; "
        f"the 3 values before the outputs agree{GIVE}"
    )
    assert here.runs == 2


def test_what_outputs_of_zeros_do_not_show_is_compared_although_the_network_is_compared_later() -> None:
    here = Here()
    [told] = _check(Headless(), torch.randn(2, 8), here=here, skip=["cpu"])
    assert "the 3 values before the outputs agree" in told
    assert here.runs == 1
    assert _check(nn.Linear(8, 4), torch.randn(2, 8), here=here, skip=["cpu"]) == []
    assert here.runs == 1


def test_a_wrong_operator_before_outputs_of_zeros_is_named() -> None:
    with pytest.raises(NetworkError, match=r"disagrees .* at the operator .*linear.*outputs do not show it"):
        _check(Headless(), torch.randn(2, 8), here=Here(wrong=True))


def test_an_output_that_does_not_depend_on_the_inputs_is_told() -> None:
    class Apart(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x * 2, torch.arange(4.0) + (x > x).float()

    [told] = _check(Apart(), torch.randn(4))
    assert told.startswith("output 1 does not depend on the inputs, and a comparison of it says nothing on any inputs")
    assert "values before the outputs agree" in told


def test_other_inputs_are_tried_where_an_output_says_nothing_on_the_given_ones() -> None:
    class Root(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            return x.abs(), x.sqrt(), x.relu()

    told = _check(Root(), -torch.ones(2, 2) * torch.tensor([1.0, 2.0]))
    where = "a comparison of it says nothing on these inputs (the network's own examples); on others it agrees"
    assert told == [f"output 1 has no finite number, and {where}{GIVE}", f"output 2 is 0 everywhere, and {where}{GIVE}"]


def test_an_output_that_nothing_shows_does_not_keep_the_next_one_from_its_comparison() -> None:
    class Both(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            return (x - x) + torch.arange(4.0), x.relu(), (x - x) * 3

    told = _check(Both(), -torch.ones(4))
    assert sorted(each.partition(" ")[2].partition(" ")[0] for each in told) == ["0", "1", "2"]
    (first,) = [each for each in told if each.startswith("output 1")]
    assert "on others it agrees" in first


def test_other_networks_are_not_doubted() -> None:
    here = Here()
    assert _check(nn.Sequential(nn.Linear(8, 4), nn.Softmax(-1)), torch.randn(3, 8), here=here) == []
    assert here.runs == 1


def test_onnx_graphs_are_compared_further_in_too(tmp_path: Path) -> None:
    zero = onnx.numpy_helper.from_array(np.zeros((4, 3), np.float32), "zero")
    graph = helper.make_graph(
        [helper.make_node("Exp", ["x"], ["power"]), helper.make_node("MatMul", ["power", "zero"], ["y"])],
        "zeros",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (2, 4))],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (2, 3))],
        [zero],
    )
    path = tmp_path / "zeros.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    network = load_network(path)
    [silent] = silent_outputs(network, network.framework_outputs())
    assert (silent.at, silent.reason, silent.others) == (0, "is 0 everywhere", None)
    prepared = Prepared(network, {}, {"cpu": import_network(network, CLASS)}, frozenset(), {})
    [part] = device_classes.check(prepared, Here()).left_out
    assert "the 2 values before the outputs agree" in part.reason
