"""Describes the GPU of this machine as one line of JSON: ``python -m bench.gpu.probe``.

``reason`` is empty if kernels can be tuned on the GPU. ``target`` then has the attributes of its CUDA target.
"""

from __future__ import annotations

import json
from typing import Any

import click

from bench.machine import bench_env, cores
from bench.processes import die_with_parent, run_json

_PROBE_SECS = 300.0


def probe() -> dict[str, Any]:
    """Return the first GPU, or the ``reason`` why kernels cannot be tuned on it."""
    import tvm

    from devices.cuda.compiler import describe
    from devices.cuda.runtime import prepare_cuda

    prepare_cuda()
    device = tvm.cuda(0)
    if not device.exist:
        return {"reason": "this machine has no NVIDIA GPU, or no driver or CUDA runtime for it"}
    if not describe():
        return {"reason": "no CUDA compiler: install the extra fleet-tune[cuda], or a CUDA toolkit"}
    return {
        "reason": "",
        "name": str(device.device_name),
        "compiler": describe(),
        "target": {
            "kind": "cuda",
            "arch": f"sm_{device.compute_version.replace('.', '')}",
            "max_threads_per_block": int(device.max_threads_per_block),
            "max_shared_memory_per_block": int(device.max_shared_memory_per_block),
            "thread_warp_size": int(device.warp_size),
        },
    }


def probe_in_child() -> dict[str, Any]:
    """Call :func:`probe` in a child process, so that this process has no context on the GPU."""
    return run_json(["-m", "bench.gpu.probe"], env=bench_env(cores()), timeout_secs=_PROBE_SECS)


@click.command()
def main() -> None:
    """Print the GPU as one line of JSON, the last line of output."""
    die_with_parent()
    click.echo(json.dumps(probe()))


if __name__ == "__main__":
    main()
