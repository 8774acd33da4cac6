"""The hash by which a compiled network is known to be the same."""

from __future__ import annotations

from dataclasses import replace

from devices.networks.compiled.network_folder import made_of
from devices.networks.tasks.lowering import LoweredNetwork
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass
from fleet_tune.base.precision import Conversion, Precision
from fleet_tune.base.shapes.shapes import parse_shapes
from tests.helpers.tasks import make_task

TASK = make_task()
NETWORK = LoweredNetwork(
    "net", "fingerprint", DeviceClass("cpu", resolve_target("native", 2)), None, (TASK,), {}, (), ()
)
TRACES = {TASK.id: "[[], []]"}


def test_other_traces_weights_and_networks_are_another() -> None:
    others = [(NETWORK, TRACES), (NETWORK, {}), (replace(NETWORK, fingerprint="of other weights"), TRACES)]
    assert len({made_of(*each) for each in others}) == 3


def test_what_was_chosen_when_it_was_lowered_makes_another_network() -> None:
    products = [((0, Precision.BF16),), ((1, Precision.BF16),), ((1, Precision.INT8W),)]
    others = [replace(NETWORK, conversion=Conversion(Precision.AUTO, 0.01, each)) for each in products]
    others += [replace(NETWORK, left_out=((step, "a reason"),)) for step in ("one step", "another")]
    others += [replace(NETWORK, shapes=parse_shapes(f"n=1..8{text}")) for text in ("", "; n=8:1", "; n=6:1,8:1")]
    assert len({made_of(each, TRACES) for each in (NETWORK, *others)}) == 1 + len(others)
    reworded = replace(NETWORK, left_out=(("one step", "another reason"),))
    assert made_of(reworded, TRACES) == made_of(others[3], TRACES)
