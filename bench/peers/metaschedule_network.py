"""A whole network tuned by MetaSchedule for a given time, the way TVM's guide to end-to-end optimization has it.

``python -m bench.peers.metaschedule_network MODEL OUT --budget-secs 120`` goes through the steps of TVM's own
``static_shape_tuning`` pipeline with ``cpu_weight_prepack`` (its advice for CPUs), one by one, because that pipeline
ends after a number of trials and a comparison needs it to end after a time: with the batch in which the time passed.
The clock starts with the tuning. OUT then holds the compiled network and its weights, for :func:`load`.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
import tvm
from tvm import relax
from tvm.relax import transform
from tvm.relax.frontend.torch import from_exported_program
from tvm.s_tir import meta_schedule as ms

from bench.machine import cores
from bench.peers.example import load_example
from bench.peers.metaschedule import Timeline
from bench.processes import die_with_parent
from devices.instruction_sets import native_cpu

_LIBRARY, _PARAMETERS = "network.so", "parameters.npz"
# More trials than the time is enough for.
_MANY = 1_000_000


def tune(model: str, out: Path, budget_secs: float) -> dict[str, Any]:
    """Tunes ``model`` (file.py:function) for ``budget_secs`` and compiles it into ``out``, an existing folder."""
    module, inputs = load_example(model)
    program = torch.export.export(module, inputs)
    network = from_exported_program(program, keep_params_as_input=True, unwrap_unit_return_tuple=True)
    network, parameters = relax.frontend.detach_params(network)
    # All of its kernels are scheduled by the tuner: at TVM's own optimization level, 3.
    target = tvm.target.Target({"kind": "llvm", "mcpu": native_cpu(), "num-cores": cores()})
    start = time.perf_counter()
    with target, tempfile.TemporaryDirectory(prefix="metaschedule-", ignore_cleanup_errors=True) as folder:
        prepare = [
            transform.DecomposeOpsForInference(),
            transform.CanonicalizeBindings(),
            relax.get_pipeline("zero"),
            transform.AttachAttrLayoutFreeBuffers(),
        ]
        network = tvm.transform.Sequential(prepare)(network)
        timeline = _tuned(network, target, folder, start, budget_secs)
        finish = [
            transform.MetaScheduleApplyDatabase(folder),
            transform.SplitLayoutRewritePreproc(),
            transform.LiftTransformParams(),
            transform.FoldConstant(),
        ]
        network = tvm.transform.Sequential(finish)(network)
        executable = tvm.compile(network, target)
    executable.export_library(str(out / _LIBRARY))
    _save_parameters(executable, parameters.get("main", []), out / _PARAMETERS)
    return {
        "trials": sum(batch["trials"] for batch in timeline.batches),
        "valid": sum(batch["valid"] for batch in timeline.batches),
        "elapsed_secs": timeline.batches[-1]["elapsed_secs"] if timeline.batches else 0.0,
    }


def _tuned(network: Any, target: Any, folder: str, start: float, budget_secs: float) -> Timeline:
    timeline = Timeline(start, budget_secs)
    try:
        ms.relax_integration.tune_relax(
            network,
            {},
            target,
            folder,
            _MANY,
            # Its workers start so slowly that the default of 30 s would void the trials of the first batch.
            builder=ms.builder.LocalBuilder(timeout_sec=180, max_workers=cores()),
            measure_callbacks=[*ms.measure_callback.MeasureCallback.create("default"), timeline],
        )
    except RuntimeError:
        if not timeline.time_up:
            raise
    return timeline


def _save_parameters(executable: Any, parameters: Sequence[Any], path: Path) -> None:
    """The weights as ``main`` takes them: laid out anew where its kernels want it."""
    machine = relax.VirtualMachine(executable, tvm.cpu())
    if parameters and "main_transform_params" in executable.as_text():
        parameters = list(machine["main_transform_params"](list(parameters)))
    np.savez(path, *(parameter.numpy() for parameter in parameters))


def load(folder: Path) -> Callable[..., Any]:
    """The compiled network in ``folder`` as a function of TVM's tensors."""
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(folder / _LIBRARY)), tvm.cpu())
    with np.load(folder / _PARAMETERS, allow_pickle=False) as arrays:
        parameters = [tvm.runtime.tensor(arrays[f"arr_{at}"]) for at in range(len(arrays.files))]
    return lambda *inputs: machine["main"](*inputs, *parameters)


@click.command()
@click.argument("model")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--budget-secs", type=float, required=True)
def main(model: str, out: Path, budget_secs: float) -> None:
    """Prints the figures as one line of JSON, the last line of output."""
    die_with_parent()
    out.mkdir(parents=True, exist_ok=True)
    click.echo(json.dumps(tune(model, out, budget_secs)))


if __name__ == "__main__":
    main()
