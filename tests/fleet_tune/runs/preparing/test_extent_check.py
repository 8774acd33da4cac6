"""The check of a network with a dynamic dimension before it is tuned, at other extents than the typical one."""

from __future__ import annotations

import pytest

from devices.networks.dynamic.other_extents import other_extents
from devices.networks.network import Network
from devices.networks.tasks.lowering import import_network
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass
from fleet_tune.base.errors import NetworkError
from fleet_tune.report.skipped import skipped_lines
from fleet_tune.runs.prepared import Prepared
from fleet_tune.runs.preparing import device_classes
from tests.helpers.dynamic_networks import layers, refusing
from tests.helpers.lowered_here import LoweredHere

CLASS = DeviceClass("cpu", resolve_target("native", 2))


def prepared(network: Network) -> Prepared:
    return Prepared(network, {}, {"cpu": import_network(network, CLASS)}, frozenset(), {})


def test_what_the_framework_computes_at_other_extents_is_kept() -> None:
    checked = device_classes.check(prepared(layers()), LoweredHere())
    assert checked.other_extents is not None
    assert [(each.name, len(each.inputs[0])) for each in checked.other_extents.compared] == [
        ("n = 2", 2), ("n = 4", 4), ("n = 5", 5), ("n = 8", 8),
    ]  # fmt: skip
    assert [each.expected[0].shape for each in checked.other_extents.compared] == [(2, 8), (4, 8), (5, 8), (8, 8)]
    assert not checked.left_out


def test_a_disagreement_at_the_smallest_extent_is_named_and_analysed_there() -> None:
    with pytest.raises(
        NetworkError, match=r"^with n = 2: the imported .* begin to differ at the operator .*linear"
    ) as caught:
        device_classes.check(prepared(layers()), LoweredHere(shifted=5.0, rows=2))
    assert "report this operator" in caught.value.next_step


def test_an_extent_that_the_framework_refuses_is_told_with_its_reason() -> None:
    """The smallest one that it takes is compared."""
    network = refusing(layers(), 2, 5)
    checked = device_classes.check(prepared(network), LoweredHere())
    first, second = skipped_lines(checked.left_out)
    assert first == (
        "with n = 2 it is not compared: its framework refuses these inputs (2 rows are too many); give bounds that it "
        "takes"
    )
    assert second.startswith("with n = 5 it is not compared")
    with pytest.raises(NetworkError, match=r"^with n = 4: "):
        device_classes.check(prepared(network), LoweredHere(shifted=5.0, rows=4))


def test_a_class_that_joins_is_compared_with_what_is_known() -> None:
    """So the framework runs once, and what it refuses is told once."""
    network = refusing(layers(), 2)
    first = device_classes.check(prepared(network), LoweredHere())
    known = other_extents(layers(least=3))
    late = Prepared(network, {}, first.lowered, frozenset(), {}, expected=first.expected, other_extents=known)
    checked = device_classes.check(late, LoweredHere())
    assert checked.other_extents is known
    assert not checked.left_out


def test_a_network_that_fails_at_an_extent_is_named() -> None:
    class Failing(LoweredHere):
        def outputs(self, lowered, inputs):  # type: ignore[no-untyped-def]
            if len(inputs[0]) == 2:
                raise NetworkError("it crashes", "report it")
            return super().outputs(lowered, inputs)

    with pytest.raises(NetworkError, match=r"^with n = 2: it crashes"):
        device_classes.check(prepared(layers()), Failing())
