"""A network that is compiled for a GPU by a process that has built no kernel before."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from devices.cuda.compiler import find_compiler
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import import_network
from devices.sketches.spaces import DesignSpace, ScheduleError
from fleet_tune.base.domain import Candidate
from fleet_tune.base.precision import Precision
from policies.space.sampling import sample
from tests.helpers.gpu_target import H200

NETWORK = """
import torch
from torch import nn

def network():
    return nn.Sequential(nn.Linear(64, 96), nn.Softmax(-1)).eval(), (torch.rand(32, 64),)
"""
COMPILE = """
import json, sys
from pathlib import Path
from devices.networks.frontend import load_network
from devices.networks.tasks.lowering import import_network
from devices.networks.compiled.network_folder import compile_network
from fleet_tune.base.domain import DeviceClass
from fleet_tune.base.precision import Precision

target, network, traces, out = sys.argv[1:]
lowered = import_network(load_network(network).in_precision(Precision.FP16), DeviceClass("gpu", target))
compile_network(lowered, json.loads(traces), Path(out))
"""


def test_kernels_on_tensor_cores_and_reductions_over_threads_are_in_one_network(tmp_path: Path) -> None:
    """The first need an option of TVM's passes that the others fail with, and intrinsics that nothing has loaded."""
    if find_compiler() is None:
        assert os.environ.get("CI") != "true"
        pytest.skip("this machine has no CUDA compiler")
    file = tmp_path / "network.py"
    file.write_text(NETWORK)
    lowered = import_network(load_network(f"{file}:network").in_precision(Precision.FP16), H200)
    (product,) = (task for task in lowered.tasks if task.workload.name.startswith("matmul"))
    space = DesignSpace(product)
    sketch = space.sketches[0]
    assert sketch.rule == "tensorize"
    traces: dict[str, str] = {}
    for row in sample(sketch, 50, np.random.default_rng(0)):
        with contextlib.suppress(ScheduleError):
            candidate = Candidate(product.id, 0, sketch.id, tuple(map(int, row)))
            traces[product.id] = space.schedule(candidate).trace
            break
    command = [sys.executable, "-c", COMPILE, H200.target, f"{file}:network", json.dumps(traces), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    library = (tmp_path / "out" / "network.so").read_bytes()
    assert b"nvcuda::wmma::mma_sync" in library
    assert b"__shfl_down_sync" in library
