"""One side of the vector-math benchmark: ``python -m bench.devices.vector_math_process exp --side ours``.

Prints its largest error, then answers each line of standard input with the nanoseconds per value of each run.
"""

from __future__ import annotations

import json
import sys
import time

import click
import numpy as np
import tvm
from scipy import special
from tvm import te

from bench.processes import die_with_parent
from devices.builds.passes.vector_math import use_vector_math
from devices.targets import parse_target, resolve_target

_VALUES, _LANES, _RUNS = 1 << 16, 16, 40  # so few values stay in the second-level cache
_EXACT = {"exp": np.exp, "erf": special.erf, "sigmoid": special.expit, "tanh": np.tanh}


@click.command()
@click.argument("function", type=click.Choice(list(_EXACT)))
@click.option("--side", type=click.Choice(["ours", "tvm"]), required=True)
def main(function: str, side: str) -> None:
    """Print the largest error, then the times. The error is absolute, but that of exp is relative."""
    die_with_parent()
    if side == "ours":
        use_vector_math()
    a = te.placeholder((_VALUES,), "float32", name="A")
    b = te.compute((_VALUES,), lambda i: getattr(tvm.tirx, function)(a[i]), name="B")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([a, b]))
    _, inner = schedule.split(schedule.get_loops(schedule.get_sblock("B"))[0], [None, _LANES])
    schedule.vectorize(inner)
    kernel = tvm.tirx.build(schedule.mod, target=parse_target(resolve_target("native", 1)))["main"]
    values = np.linspace(-8, 8, _VALUES, dtype=np.float32)
    given, result = tvm.runtime.tensor(values), tvm.runtime.tensor(np.zeros_like(values))
    kernel(given, result)
    exact = _EXACT[function](values.astype(np.float64))
    error = np.abs(result.numpy() - exact) / (exact if function == "exp" else 1.0)
    print(json.dumps({"largest_error": float(error.max())}), flush=True)
    for _ in sys.stdin:
        times = []
        for _ in range(_RUNS):
            start = time.perf_counter()
            kernel(given, result)
            times.append((time.perf_counter() - start) / _VALUES * 1e9)
        print(json.dumps({"ns": times}), flush=True)


if __name__ == "__main__":
    main()
