"""A run with ``--shapes``, interrupted and resumed, from the network's function to the folder and its calls."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fleet_tune
from devices.networks.input_shapes import NetworkInputError
from fleet_tune.base.errors import OutputFolderError
from fleet_tune.base.results import Progress, TuneResult

pytestmark = [pytest.mark.timeout(900), pytest.mark.long, pytest.mark.usefixtures("ray_cluster")]

NETWORK = '''
import torch
from tests.helpers.dynamic_networks import Mixing

def net():
    """Rows of a batch that is fixed by --shapes, and of one that is dynamic."""
    torch.manual_seed(0)
    rows, batch = torch.export.Dim("rows", min=2, max=64), torch.export.Dim("batch", min=2, max=64)
    return Pair(), (torch.randn(5, 24), torch.randn(4, 8)), ({0: rows}, {0: batch})

class Pair(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mixing, self.after = Mixing(), torch.nn.Linear(8, 8)

    def forward(self, x, y):
        return self.mixing(x) + self.after(y).mean(0)
'''
LEAST, MOST = 2, 19


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(NETWORK)
    return path


def module_of(file: Path) -> nn.Module:
    from devices.networks.user_file import call_function

    module: nn.Module = call_function(file, "net")[0]
    return module.eval()


def check_calls(folder: Path, module: nn.Module) -> None:
    """The network in the folder is right for every extent, and refuses others."""
    run = fleet_tune.load(folder)
    y = torch.randn(3, 8)
    for extent in range(LEAST, MOST + 1):
        x = torch.randn(extent, 24)
        with torch.no_grad():
            np.testing.assert_allclose(run(x, y), module(x, y), atol=1e-4, err_msg=str(extent))
    with pytest.raises(NetworkInputError, match=f"rows = {MOST + 1}, and the network was compiled for rows=2..{MOST}"):
        run(torch.randn(MOST + 1, 24), y)


def test_a_dynamic_network_is_tuned_interrupted_resumed_and_called(file: Path, tmp_path: Path) -> None:
    out, spec = tmp_path / "out", f"{file}:net"
    shapes = f"batch=3, rows={LEAST}..{MOST}"
    signals = iter([signal.SIGINT])

    def interrupt(progress: Progress) -> None:
        if progress.new_trials:
            for number in signals:
                signal.raise_signal(number)

    def tune(weights: str, trials: int, stops: bool = False) -> TuneResult:
        return fleet_tune.tune(
            spec,
            out=out,
            store="",
            trials=trials,
            shapes=shapes,
            shapes_weights=weights,
            on_progress=interrupt if stops else None,
        )

    first = tune("rows=19:1", 1000, stops=True)
    assert first.interrupted
    assert first.new_trials > 0
    stored = sum(first.outcomes.values())
    second = tune("rows=2:1,19:3", stored + 4)  # other weights: the same extent is typical
    assert not second.interrupted
    assert 0 < second.new_trials < stored + 4
    assert sum(second.outcomes.values()) == stored + second.new_trials
    (network,) = second.networks
    assert network.published in ("tuned", "untuned")
    assert network.checked_on == "this machine"
    module = module_of(file)
    check_calls(out, module)
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["shapes"] == f"rows={LEAST}..{MOST}; rows=2:1,19:3"
    assert manifest["bounds"] == f"rows={LEAST}..{MOST}, batch=3; rows=2:1,19:3"
    with pytest.raises(OutputFolderError, match=r"typically 19, and this one is for rows=2\.\.19, typically 2 "):
        tune("rows=2:1", 4)
