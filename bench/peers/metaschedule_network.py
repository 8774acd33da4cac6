"""A whole network tuned by MetaSchedule for a given time, the way TVM's guide to end-to-end optimization has it.

``python -m bench.peers.metaschedule_network MODEL OUT --budget-secs 120`` goes through the steps of TVM's own
``static_shape_tuning`` pipeline with ``cpu_weight_prepack`` (its advice for CPUs), one by one, because that pipeline
ends after a number of trials and a comparison needs it to end after a time: with the batch in which the time passed, or
that with which all kernels have had one. The clock starts with the tuning, when the steps before it are done. OUT then
holds the compiled network and its weights, for :func:`load`. With ``--moment 60`` it has the network of after a minute
too, or the first one of which all kernels have had a batch, in a folder of its own: it is compiled in the end, from
what was measured by then. A kernel without a record stays as TVM leaves it, unscheduled; the figures say how many those
are. A batch has ``--batch`` trials: smaller ones let all have a turn in time. With ``--our-engine`` MetaSchedule's
search builds and measures with ours (:mod:`bench.peers.our_engine`), and its networks are compiled with our passes too:
their kernels are those that were measured.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
import tvm
from tvm import relax
from tvm.ir.utils import derived_object
from tvm.relax import transform
from tvm.relax.frontend.torch import from_exported_program
from tvm.s_tir import meta_schedule as ms

from bench.machine import cores
from bench.peers.example import load_example
from bench.peers.metaschedule import Timeline, stored_workloads
from bench.peers.our_engine import our_engine, use_our_passes
from bench.processes import die_with_parent
from devices.builds.worker import PASS_OPTIONS
from devices.instruction_sets import native_cpu

_LIBRARY, _PARAMETERS = "network.so", "parameters.npz"
# More trials than the time is enough for.
_MANY = 1_000_000
BATCH = 64
"""Trials of a batch of MetaSchedule's scheduler, by default."""


@derived_object
class Moments(ms.measure_callback.PyMeasureCallback):  # type: ignore[misc]
    """Keeps a copy of the database after the first batch past each of some moments at which all tasks have had one."""

    def __init__(self, timeline: Timeline, profiler: Any, database: Path, moments: Sequence[float]) -> None:
        super().__init__()
        self.kept: list[tuple[Path, dict[str, float]]] = []
        """Folder, and the seconds, trials and seconds of the device by then."""
        self._timeline = timeline
        self._profiler = profiler
        self._database = database
        self._left = sorted(moments)

    def apply(self, _scheduler: Any, _task_id: int, candidates: Any, _builds: Any, _runs: Any) -> None:
        elapsed = time.perf_counter() - self._timeline.start
        is_first_pass = len(self._timeline.batches) + 1 < self._timeline.tasks  # with the batch of this call
        if is_first_pass or not self._left or elapsed < self._left[0]:
            return
        folder = self._database.with_name(f"{self._database.name}-{self._left[0]:g}")
        shutil.copytree(self._database, folder, ignore=shutil.ignore_patterns("logs"))
        trials = sum(batch["trials"] for batch in self._timeline.batches) + len(candidates)
        self.kept.append((folder, {"secs": elapsed, "trials": trials, "device_secs": runner_secs(self._profiler)}))
        self._left = [moment for moment in self._left if moment > elapsed]


def runner_secs(profiler: Any) -> float:
    """Return the seconds that MetaSchedule's runner has had so far, by its own profiler."""
    spent = profiler.get()
    return float(sum(spent.get(name, 0.0) for name in ("SendToRunner", "JoinRunnerFutures")))


def tune(
    model: str,
    out: Path,
    budget_secs: float,
    moments: Sequence[float] = (),
    on_ours: bool = False,
    batch: int = BATCH,
    seed: int | None = None,
) -> dict[str, Any]:
    """Tunes ``model`` (file.py:function) for ``budget_secs`` and compiles it into ``out``, an existing folder, and the
    networks of earlier ``moments`` into folders in it. ``on_ours``: on our engine. ``batch``: trials of a batch of
    its scheduler."""
    module, inputs = load_example(model)
    program = torch.export.export(module, inputs)
    network = from_exported_program(program, keep_params_as_input=True, unwrap_unit_return_tuple=True)
    network, parameters = relax.frontend.detach_params(network)
    # All of its kernels are scheduled by the tuner: at TVM's own optimization level, 3.
    target = tvm.target.Target({"kind": "llvm", "mcpu": native_cpu(), "num-cores": cores()})
    with target, tempfile.TemporaryDirectory(prefix="metaschedule-", ignore_cleanup_errors=True) as made:
        folder = Path(made) / "database"
        folder.mkdir()
        prepare = [
            transform.DecomposeOpsForInference(),
            transform.CanonicalizeBindings(),
            relax.get_pipeline("zero"),
            transform.AttachAttrLayoutFreeBuffers(),
        ]
        network = tvm.transform.Sequential(prepare)(network)
        options = {"num_trials_per_iter": batch, "seed": seed}
        with our_engine(Path(made), cores()) if on_ours else _engine() as engine, ms.Profiler() as profiler:
            tasks = len(ms.relax_integration.extract_tasks(network, target))
            timeline = Timeline(time.perf_counter(), budget_secs, tasks)
            kept = Moments(timeline, profiler, folder, moments)
            _tune(network, target, folder, timeline, kept, {**options, **engine})
        trials = sum(each["trials"] for each in timeline.batches)
        elapsed_secs = timeline.batches[-1]["elapsed_secs"] if timeline.batches else 0.0
        if on_ours:
            use_our_passes()
        networks = []
        earlier = [each for each in kept.kept if each[1]["trials"] < trials]  # the last batch may be past a moment
        last = {"secs": elapsed_secs, "trials": trials, "device_secs": runner_secs(profiler)}
        for number, (database, figures) in enumerate([*earlier, (folder, last)]):
            compiled = out if database == folder else out / f"network-{number}"
            compiled.mkdir(exist_ok=True)
            with tvm.transform.PassContext(config=PASS_OPTIONS if on_ours else {}):
                _compile(network, parameters.get("main", []), target, database, compiled)
            unscheduled = tasks - len(set(stored_workloads(database)))
            networks.append({**figures, "unscheduled": unscheduled, "folder": str(compiled)})
    return {
        "tasks": tasks,
        "trials": trials,
        "valid": sum(each["valid"] for each in timeline.batches),
        "elapsed_secs": elapsed_secs,
        "networks": networks,
    }


def _compile(network: Any, parameters: Sequence[Any], target: Any, database: Path, out: Path) -> None:
    """Compile the network from what is in a database."""
    finish = [
        transform.MetaScheduleApplyDatabase(str(database)),
        transform.SplitLayoutRewritePreproc(),
        transform.LiftTransformParams(),
        transform.FoldConstant(),
    ]
    executable = tvm.compile(tvm.transform.Sequential(finish)(network), target)
    executable.export_library(str(out / _LIBRARY))
    _save_parameters(executable, parameters, out / _PARAMETERS)


@contextmanager
def _engine() -> Iterator[dict[str, Any]]:
    """Yield MetaSchedule's own builder. Its workers start so slowly that the default of 30 s would void the trials of
    the first batch."""
    yield {"builder": ms.builder.LocalBuilder(timeout_sec=180, max_workers=cores())}


def _tune(
    network: Any, target: Any, folder: Path, timeline: Timeline, kept: Moments, engine: Mapping[str, Any]
) -> None:
    try:
        ms.relax_integration.tune_relax(
            network,
            {},
            target,
            str(folder),
            _MANY,
            measure_callbacks=[*ms.measure_callback.MeasureCallback.create("default"), kept, timeline],
            **engine,
        )
    except RuntimeError:
        if not timeline.time_up:
            raise


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
    main = machine["main"]  # to look it up takes time, which is no time of the network's
    return lambda *inputs: main(*inputs, *parameters)


@click.command()
@click.argument("model")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--budget-secs", type=float, required=True)
@click.option("--moment", "moments", type=float, multiple=True, help="Compile the network of this second too.")
@click.option("--our-engine", "on_ours", is_flag=True, help="Build and measure with our builder and our device.")
@click.option("--batch", type=click.IntRange(min=1), default=BATCH, help="Trials of a batch of its scheduler.")
@click.option("--seed", type=int, help="Of its search; else another one each time.")
def main(
    model: str,
    out: Path,
    budget_secs: float,
    moments: Sequence[float],
    on_ours: bool,
    batch: int,
    seed: int | None,
) -> None:
    """Prints the figures as one line of JSON, the last line of output."""
    die_with_parent()
    out.mkdir(parents=True, exist_ok=True)
    click.echo(json.dumps(tune(model, out, budget_secs, moments, on_ours, batch, seed)))


if __name__ == "__main__":
    main()
