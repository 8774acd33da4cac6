"""Places under the roofline by hand."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree

import pytest
import tvm
from tvm import te

from fleet_tune.base.domain import DeviceAbstraction, DeviceClass, Fingerprint, Workload
from fleet_tune.base.records.datasets.dataset_codec import encode_value
from fleet_tune.base.records.stores.classes import FINGERPRINTS
from fleet_tune.report.html.roofline import devices_in, place, roofline

DEVICE = DeviceAbstraction("cpu", 2, 16, 32, 32768, 1 << 20, 1 << 25, 100e9, 10e9, int8_flops=400e9)


def workload(flop: float, dtype: str = "float32") -> Workload:
    """Two tensors of 1,000 elements."""
    x = te.placeholder((1000,), dtype, name="x")
    function = te.create_prim_func([x, te.compute((1000,), lambda i: x[i] + x[i], name="twice")])
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    return Workload(f"h{flop}{dtype}", f"twice {dtype}", flop, tvm.ir.save_json(module))


def test_the_slope_and_the_roof() -> None:
    # 8,000 bytes. 4 operations a byte: memory allows 40 GFLOP/s; 20: arithmetic allows 100.
    low, high = place(workload(32e3), 1e-6, DEVICE), place(workload(160e3), 2e-6, DEVICE)
    assert low is not None
    assert high is not None
    assert (low.intensity, low.flops, low.roof_flops, low.peak_flops) == pytest.approx((4.0, 32e9, 40e9, 100e9))
    assert (high.intensity, high.flops, high.roof_flops) == pytest.approx((20.0, 80e9, 100e9))
    bytes_of = place(workload(160e3, "int8"), 1e-6, DEVICE)
    assert bytes_of is not None
    assert (bytes_of.intensity, bytes_of.roof_flops) == pytest.approx((80.0, 400e9))


@pytest.mark.parametrize(("flop", "secs"), [(0.0, 1e-6), (1e3, float("inf")), (1e3, 0.0)])
def test_what_has_no_place(flop: float, secs: float) -> None:
    assert place(workload(flop), secs, DEVICE) is None
    assert place(Workload("h", "unreadable", 1e3, "{}"), 1e-6, DEVICE) is None


def test_a_picture_with_the_ridge_and_each_kernel() -> None:
    places = [each for flop in (32e3, 160e3) if (each := place(workload(flop), 2e-6, DEVICE))]
    svg = ElementTree.fromstring(roofline(places, DEVICE, "roof"))
    [roof] = svg.findall("polyline")
    corners = re.findall(r"[\d.]+,[\d.]+", roof.get("points", ""))
    # x from 1 to 100 on 556, y from 10 to 1,000 GFLOP/s on 268: the ridge is at 10 operations and 100 GFLOP/s.
    assert corners == ["72.0,280.0", "350.0,146.0", "628.0,146.0"]
    assert [each.findtext("title") for each in svg.findall("circle")] == [
        "twice float32: 16.0 GFLOP/s",
        "twice float32: 80.0 GFLOP/s",
    ]


def test_the_devices_of_a_store() -> None:
    print_ = Fingerprint(DeviceClass("zen", "{}"), DEVICE, "CPU", 2, "0.27", 1e-3)
    meta = {FINGERPRINTS: json.dumps([encode_value(print_), {"type": "Unknown"}])}
    assert devices_in(meta) == {"zen": DEVICE}
    assert devices_in({}) == {}
    assert devices_in({FINGERPRINTS: "no JSON"}) == {}
