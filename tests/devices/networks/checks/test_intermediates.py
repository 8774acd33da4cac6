"""The operator at which an imported network and its framework begin to differ is named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from tvm import relax

from devices.networks.checks.intermediates import first_difference
from devices.networks.frontend import load_network
from devices.networks.network import Array, Intermediate, Network
from devices.networks.onnx import converters
from devices.networks.tasks.lowering import (
    DisagreementError,
    LoweredNetwork,
    agreement,
    import_network,
    run_untuned,
    with_operator,
)
from devices.networks.torch.operators.translations import Translations
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass
from fleet_tune.base.errors import NetworkError

CPU = DeviceClass("cpu", resolve_target("native", 2))


def _run(network: Network) -> tuple[LoweredNetwork, tuple[Array, ...]]:
    lowered = import_network(network, CPU)
    return lowered, run_untuned(lowered.module, network.example_inputs).outputs


def _found(network: Network) -> NetworkError:
    with pytest.raises(DisagreementError) as caught:
        agreement(*_run(network), network.framework_outputs())
    return with_operator(caught.value, network, _run)


class _ManyValues:
    """A framework of 1,000 values, those from ``wrong`` on of which differ."""

    def __init__(self, wrong: int) -> None:
        self.wrong = wrong
        self.computed: list[int] = []
        self.chosen: Sequence[Intermediate] = ()
        self.framework = self
        self.example_inputs, self.inputs_from = (), ""

    def intermediates(self) -> tuple[Intermediate, ...]:
        return tuple(Intermediate(str(at), f"operator {at}") for at in range(1000))

    def returning(self, values: Sequence[Intermediate], folder: Path) -> Any:
        assert folder.is_dir()
        self.chosen = values
        self.computed.append(len(values))
        return self

    def given(self, *_: Any) -> Any:
        return self

    def errors_of(self, _: Any) -> list[float]:
        return [0.5 if int(value.name) >= self.wrong else 0.0 for value in self.chosen]


@pytest.mark.parametrize("wrong", [0, 1, 15, 16, 500, 999])
def test_the_first_of_many_values_is_found_with_few_at_a_time(wrong: int) -> None:
    network: Any = _ManyValues(wrong)
    found = first_difference(network, network.errors_of)
    assert found is not None
    assert found[0].operator == f"operator {wrong}"
    assert max(network.computed) <= 64
    assert len(network.computed) == 2


def test_nothing_is_found_where_all_values_agree() -> None:
    network: Any = _ManyValues(1000)
    assert first_difference(network, network.errors_of) is None


def test_an_onnx_operator_is_named_with_its_node_and_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(converters.CONVERTERS, "Elu", lambda _, inputs, *__: relax.op.nn.relu(inputs[0]))
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("MatMul", ["x", "w"], ["m"], "product"),
        helper.make_node("Elu", ["m"], ["e"], "bend", alpha=0.5),
        helper.make_node("Reshape", ["e", "s"], ["r"]),
        helper.make_node("Exp", ["r"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in ("x", "y")]
    weight = numpy_helper.from_array(np.eye(3, dtype=np.float32) - np.float32(0.5), "w")
    proto = helper.make_model(
        helper.make_graph(nodes, "net", values[:1], values[1:], [weight]),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=10,
    )
    onnx.save(proto, str(tmp_path / "net.onnx"))
    error = _found(load_network(tmp_path / "net.onnx"))
    assert (
        "they begin to differ at the operator Elu ('bend', node 3 of 5) of float32[2, 3] with alpha=0.5: relative"
        in (error.problem)
    )
    assert "report this operator" in error.next_step
    assert "\n" not in str(error)


class _Bent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(4, 4), nn.LeakyReLU(0.4))

    def forward(self, data: Tensor) -> dict[str, Tensor]:
        bent = self.layer(data)
        return {"sum": bent.sum(1), "parts": torch.exp(bent).split(2, 1)[1]}


def _misread_leaks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Translations.create_convert_map

    def with_fault(self: Any) -> Any:
        def misread(node: Any) -> Any:
            return self.block_builder.emit(relax.op.nn.relu(self.env[node.args[0]]))

        return {**whole(self), "leaky_relu.default": misread}

    monkeypatch.setattr(Translations, "create_convert_map", with_fault)


def test_a_torch_operator_is_named_with_its_module_and_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    _misread_leaks(monkeypatch)
    error = _found(load_network((_Bent(), (torch.randn(3, 4),))))
    assert "at the operator leaky_relu.default (in layer.1, " in error.problem
    assert "of float32[3, 4], 0.4: relative error" in error.problem


def test_an_operator_of_an_exported_program_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    torch.export.save(torch.export.export(_Bent(), (torch.randn(3, 4),)), str(tmp_path / "net.pt2"))
    _misread_leaks(monkeypatch)
    assert "at the operator leaky_relu.default (in layer.1" in _found(load_network(tmp_path / "net.pt2")).problem
