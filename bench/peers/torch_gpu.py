"""Seconds that PyTorch's kernels take on the GPU for one network, timed by the device's events.

``python -m bench.peers.torch_gpu --model bench/networks/workloads.py:conv2d_nhwc`` prints one line of JSON:
``best_secs`` is the median of single runs, None with a ``reason`` where this PyTorch has no CUDA.
"""

from __future__ import annotations

import json
import statistics
from typing import Any

import click
import torch

from bench.peers.example import load_example
from bench.processes import die_with_parent

_WARM_RUNS, _RUNS = 20, 100


def measure(model: str) -> dict[str, Any]:
    """Runs the network of ``file.py:function`` in eager mode."""
    if not torch.cuda.is_available():
        return {"best_secs": None, "reason": f"PyTorch {torch.__version__} cannot use a GPU here"}
    module, inputs = load_example(model)
    module, inputs = module.cuda(), tuple(tensor.cuda() for tensor in inputs)
    times = []
    with torch.inference_mode():
        for number in range(_WARM_RUNS + _RUNS):
            begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call,unused-ignore]
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call,unused-ignore]
            begin.record()
            module(*inputs)
            end.record()
            end.synchronize()
            if number >= _WARM_RUNS:
                times.append(begin.elapsed_time(end) / 1e3)
    return {"best_secs": statistics.median(times), "runs": _RUNS, "torch": torch.__version__}


@click.command()
@click.option("--model", required=True, help="file.py:function, relative to the repository.")
def main(model: str) -> None:
    """Prints the figures as one line of JSON, the last line of output."""
    die_with_parent()
    click.echo(json.dumps(measure(model)))


if __name__ == "__main__":
    main()
