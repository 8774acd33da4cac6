"""Networks of fixed shapes are tuned as they were before there were dynamic dimensions: the same workloads, so that
their records stay of use, and the same manifest.

The constants are those of the commit 6214b8b5. A change of lowering changes them too: then write the new ones down.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
import torch
from torch import nn

from devices.networks.compiled.network_folder import compile_network
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import import_network
from examples.networks import decode_step, mlp, small_cnn
from fleet_tune.base.domain import DeviceClass

CLASS = DeviceClass("cpu", '{"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3", "num-cores": 2}')
FINGERPRINT = "8e683793facaece0756f8157eb8274c2"
"""Of the ONNX model."""
KEYS = [
    *("schema", "model", "model_fingerprint", "device_class", "target", "versions", "inputs", "outputs"),
    *("made_of", "parameters", "files", "libraries", "tasks"),
]
HASHES: dict[str, list[tuple[str, int]]] = {
    "mlp": [
        ("e89c8540d360fb37", 1),
        ("b04f9833acb87855", 1),
        ("8836e4a3f22d4c4c", 1),
    ],
    "small_cnn": [
        ("4321a479e2434279", 1),
        ("088362816a043cc7", 1),
        ("9144182e9e436de9", 1),
        ("a421c9b3813f61eb", 1),
        ("74bea7ff7949aa9c", 1),
    ],
    "decode_step": [
        ("50abd5ee7b2ec3f9", 1),
        ("9a541760ed9979bf", 9),
        ("d63db4126382a7c9", 4),
        ("32f3ad4a31e65f54", 1),
        ("f2b3ada4326dd1d5", 4),
        ("6979abeb9ee85c1a", 4),
        ("e477c81995bbc729", 4),
        ("a70712d5ac5ae2be", 1),
        ("907493b54fc330fe", 4),
        ("ca5855d1a6732f16", 4),
        ("e1b771780b3292fb", 4),
        ("229650e6272c5963", 4),
        ("f4d35e2a2bcae617", 1),
        ("a22989a73adda235", 1),
        ("e4d7df912384bdcc", 1),
        ("f122d61558f23977", 1),
        ("f0553691c35e682e", 1),
        ("18cc85cf34fb459a", 1),
        ("f7327a53c6091352", 1),
        ("93546ef7c47387ec", 1),
        ("a2abf3516b1f9aab", 1),
    ],
    "concatenated": [
        ("8120fe43553eb998", 1),
        ("d8e61049110e6ac0", 1),
        ("14bef0e3ff4a46ac", 1),
    ],
    "onnx": [
        ("0b76af51487ad380", 1),
        ("49d47895d7ddfd97", 1),
    ],
}
"""Hash and weight of the workload of each task, in their order."""


class Concatenated(nn.Module):
    """Two convolutions whose results are concatenated in place."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.after = nn.Conv2d(3, 8, 1), nn.Conv2d(3, 8, 1), nn.Conv2d(16, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(torch.cat([self.one(x).relu(), self.other(x).sigmoid()], 1))


SHAPES_IN_GRAPH = """<ir_version: 8, opset_import: ["": 17]>
net (float[4, 6] x) => (float[a, b] y) <float[6, 2] w = {1,2,3,4,5,6,7,8,9,10,11,12}> {
    s = Shape (x)
    i = Constant <value = int64[1] {0}> ()
    k = Gather (s, i)
    back = Constant <value = int64[1] {-1}> ()
    t = Concat <axis = 0> (k, back)
    p = MatMul (x, w)
    r = Softmax <axis = 0> (p)
    q = Reshape (r, t)
    y = Slice (q, i, k)
}"""


@pytest.fixture
def specs(tmp_path: Path) -> dict[str, Any]:
    onnx.save(onnx.parser.parse_model(SHAPES_IN_GRAPH), str(tmp_path / "net.onnx"))
    return {
        "mlp": mlp,
        "small_cnn": small_cnn,
        "decode_step": decode_step,
        "concatenated": lambda: (Concatenated().eval(), (torch.randn(1, 3, 6, 6),)),
        "onnx": lambda: str(tmp_path / "net.onnx"),
    }


@pytest.mark.parametrize("name", HASHES)
def test_the_workloads_of_a_fixed_network_are_as_before(name: str, specs: dict[str, Any]) -> None:
    lowered = import_network(load_network(specs[name]()), CLASS)
    assert [(task.workload.hash, task.weight) for task in lowered.tasks] == HASHES[name]
    assert (lowered.shapes, dict(lowered.dynamic)) == (None, {})
    assert set(lowered.workloads.values()) == {task.workload.hash for task in lowered.tasks}


def test_the_manifest_of_a_fixed_network_is_as_before(specs: dict[str, Any], tmp_path: Path) -> None:
    network = load_network(specs["onnx"]())
    assert network.fingerprint == FINGERPRINT
    compile_network(import_network(network, CLASS), {}, tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert list(manifest) == KEYS
    assert manifest["inputs"] == [{"name": "x", "shape": [4, 6], "dtype": "float32"}]
    assert manifest["outputs"] == [{"shape": [4, 2], "dtype": "float32"}]
