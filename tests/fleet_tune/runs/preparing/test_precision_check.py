"""The check of a network that is converted to another precision: what its error is, and what is to blame for it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from devices.networks.checks.comparison import errors_of
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import import_network, run_untuned
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass
from fleet_tune.base.errors import NetworkError
from fleet_tune.base.precision import Precision
from fleet_tune.runs.prepared import Prepared
from fleet_tune.runs.preparing import device_classes
from tests.helpers.lowered_here import LoweredHere

CLASS = DeviceClass("cpu", resolve_target("native", 2))


def prepared(module: nn.Module, x: torch.Tensor, precision: Precision | None) -> Prepared:
    network = load_network((module.eval(), (x,))).in_precision(precision)
    return Prepared(network, {}, {"cpu": import_network(network, CLASS)}, frozenset(), {})


def test_the_error_of_the_untuned_network_is_told() -> None:
    torch.manual_seed(0)
    given = prepared(nn.Linear(16, 8), torch.randn(1, 16), Precision.INT8W)
    checked = device_classes.check(given, LoweredHere())
    assert checked.expected is not None
    outputs = run_untuned(given.lowered["cpu"].module, given.network.example_inputs).outputs
    assert checked.errors == {"cpu": errors_of(outputs, checked.expected)}
    assert 0 < checked.errors["cpu"].mean < checked.errors["cpu"].relative < 0.01


def test_numbers_that_a_precision_does_not_have_are_its_fault() -> None:
    layer = nn.Linear(16, 8)
    with pytest.raises(
        NetworkError, match=r"converted to fp16\).* it agrees in the precision that it came in"
    ) as caught:
        device_classes.check(prepared(layer, torch.full((1, 16), 1e5), Precision.FP16), LoweredHere())
    assert "give another --precision" in caught.value.next_step
    device_classes.check(prepared(layer, torch.full((1, 16), 1e5), Precision.BF16), LoweredHere())


def test_a_wrong_operator_is_not_the_fault_of_a_precision() -> None:
    with pytest.raises(NetworkError, match=r"begin to differ at the operator .*linear"):
        device_classes.check(prepared(nn.Linear(16, 8), torch.randn(1, 16), Precision.BF16), LoweredHere(shifted=5.0))
