"""Process that runs one network in one framework: ``python -m devices.networks.frameworks.child ORDER PARENT``.

``ORDER`` is a JSON file of :class:`devices.networks.frameworks.order.FrameworkOrder`. When the process is warm, it
prints one JSON line, ``{"sets": [...]}``. Each set of inputs has ``{"error": ...}``, the relative error on it, or
``{"problem": ...}``. If loading or the first set fails, the process prints ``{"problem": ...}`` instead and ends. Then
each line of standard input has the least seconds to run for and the number of the set. The process answers it with
``{"secs": [...]}``: the seconds of each single run.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path

import torch

from devices.error_text import brief
from devices.host.children.child import die_with_parent
from devices.networks.checks.comparison import compare
from devices.networks.frameworks.array_file import read_arrays
from devices.networks.frameworks.order import OURS, FrameworkOrder
from devices.networks.frameworks.ours import ours
from devices.networks.frameworks.runners import Loaded, Run, as_arrays, loaded
from devices.networks.frameworks.source import read_source
from devices.networks.frameworks.texts import Text
from devices.networks.network import Array
from devices.networks.torch.arrays import tensor_of

_FEWEST_RUNS = 5


def main(order_file: str, parent: str) -> None:
    """Serve until standard input ends."""
    die_with_parent(int(parent))
    # The user's file and native code may print to stdout. This must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(body: dict[str, object]) -> None:
        print(json.dumps(body), file=answers, flush=True)

    fields = json.loads(Path(order_file).read_text())
    shapes = tuple(map(tuple, fields.pop("shapes")))
    order = FrameworkOrder(**fields, shapes=shapes)
    torch.set_num_threads(order.threads)
    with torch.no_grad():
        try:
            sets = [read_arrays(file) for file in order.arrays]
            on = ours(order.folder) if order.framework == OURS else _theirs(order, sets[0][0])
            ready = [_ready(on, *each, order.warm_secs) for each in sets]
        except Exception as problem:  # a framework may raise anything over the network
            answer({"problem": brief(problem)})
            return
        if ready[0][0] is None:
            answer(ready[0][1])
            return
        answer({"sets": [told for _, told in ready]})
        for line in sys.stdin:
            least_secs, at = line.split()
            run = ready[int(at)][0]
            answer({"secs": time_runs(run, float(least_secs), _FEWEST_RUNS) if run is not None else []})


def _ready(
    on: Loaded, inputs: list[Array], expected: list[Array], warm_secs: float
) -> tuple[Run | None, dict[str, object]]:
    """Return the warm runner on some inputs (None if it fails on them), and the answer about these inputs."""
    try:
        run = on(tuple(map(tensor_of, inputs)))
        outputs = run.once() if isinstance(run, Text) else run()
        error = compare(as_arrays(outputs), tuple(expected))[1]
        time_runs(run, warm_secs, _FEWEST_RUNS)
    except Exception as problem:  # a framework may raise anything over these inputs
        return None, {"problem": brief(problem)}
    return run, {"error": error}


def _theirs(order: FrameworkOrder, inputs: list[Array]) -> Loaded:
    return loaded(order.framework, read_source(order.spec, inputs, order.trusted, order.shapes))


def time_runs(run: Run, least_secs: float, fewest: int) -> list[float]:
    """Return the seconds of each single run, until ``least_secs`` have passed and at least ``fewest`` runs were
    made."""
    secs: list[float] = []
    gc.disable()
    try:
        end = time.perf_counter() + least_secs
        while time.perf_counter() < end or len(secs) < fewest:
            _prepare(run)
            start = time.perf_counter()
            run()
            secs.append(time.perf_counter() - start)
    finally:
        gc.enable()
    return secs


def _prepare(run: Run) -> None:
    if isinstance(run, Text):
        run.prepare()


if __name__ == "__main__":
    main(*sys.argv[1:])
