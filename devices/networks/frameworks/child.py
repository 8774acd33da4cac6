"""Process that runs one network in one framework: ``python -m devices.networks.frameworks.child ORDER PARENT``.

``ORDER`` is a JSON file of :class:`devices.networks.frameworks.order.FrameworkOrder`. When the process is warm, it
prints one JSON line: ``{"error": ...}`` with its relative error, or ``{"problem": ...}``, and ends. Then it answers
each line of standard input, the least seconds to run for, with ``{"secs": [...]}``: the seconds of each single run.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch

from devices.error_text import brief
from devices.host.children.child import die_with_parent
from devices.networks.comparison import compare
from devices.networks.frameworks.order import OURS, FrameworkOrder
from devices.networks.frameworks.runners import Run, as_arrays, runner
from devices.networks.frameworks.source import read_source

_WARM_SECS = 1.0
_FEWEST_RUNS = 5


def main(order_file: str, parent: str) -> None:
    """Serve until standard input ends."""
    die_with_parent(int(parent))
    # The user's file and native code may print: what they print is no answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(body: dict[str, object]) -> None:
        print(json.dumps(body), file=answers, flush=True)

    order = FrameworkOrder(**json.loads(Path(order_file).read_text()))
    torch.set_num_threads(order.threads)
    with torch.no_grad():
        try:
            run, error = _ready(order)
        except Exception as problem:  # whatever a framework raises over the network
            answer({"problem": brief(problem)})
            return
        answer({"error": error})
        for line in sys.stdin:
            answer({"secs": time_runs(run, float(line), _FEWEST_RUNS)})


def _ready(order: FrameworkOrder) -> tuple[Run, float]:
    """Return the warm runner, and the relative error of its outputs."""
    with np.load(order.arrays) as stored:
        inputs, expected = (
            [stored[f"{kind}-{at}"] for at in range(sum(name.startswith(f"{kind}-") for name in stored.files))]
            for kind in ("input", "output")
        )
    run = (
        _ours(order, inputs)
        if order.framework == OURS
        else runner(order.framework, read_source(order.spec, inputs, order.trusted))
    )
    error = compare(as_arrays(run()), tuple(expected))[1]
    time_runs(run, _WARM_SECS, _FEWEST_RUNS)
    return run, error


def _ours(order: FrameworkOrder, inputs: list[np.ndarray]) -> Run:
    """Return the runner of the compiled network."""
    from devices.networks.network_folder import load

    network = load(order.folder)
    tensors = tuple(map(torch.from_numpy, inputs))
    return lambda: network(*tensors)


def time_runs(run: Run, least_secs: float, fewest: int) -> list[float]:
    """Return the seconds of each single run, until ``least_secs`` have passed and at least ``fewest`` runs were
    made."""
    secs: list[float] = []
    gc.disable()
    end = time.perf_counter() + least_secs
    while time.perf_counter() < end or len(secs) < fewest:
        start = time.perf_counter()
        run()
        secs.append(time.perf_counter() - start)
    gc.enable()
    return secs


if __name__ == "__main__":
    main(*sys.argv[1:])
