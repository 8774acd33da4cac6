"""Tunes a whole network with MetaSchedule for a given time, as TVM's guide to end-to-end optimization does.

``python -m bench.peers.metaschedule_network MODEL OUT --budget-secs 120`` runs the steps of TVM's own
``static_shape_tuning`` pipeline with ``cpu_weight_prepack`` (TVM's advice for CPUs) one by one. That pipeline ends
after a number of trials, but a comparison needs tuning that ends after a time. Tuning ends after the first batch that
ends past the budget, but not before each kernel has had a batch. The clock starts when the steps before the tuning are
done. OUT then holds the compiled network and its weights, for :func:`load`.

With ``--moment 60`` a subfolder of OUT also holds the network as it was after 60 seconds, or when each kernel had had a
batch if that was later. It is compiled at the end, from what was measured by then. A kernel without a record is left
unscheduled, as TVM leaves it; the figures have the number of these kernels. A batch has ``--batch`` trials: with small
batches every kernel gets one within the time.

With ``--our-engine`` MetaSchedule's search builds and measures on our engine (:mod:`bench.peers.our_engine`). Its
networks are then compiled with our passes too, so that their kernels are those that were measured.
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
# More trials than fit into any budget.
_MANY = 1_000_000
BATCH = 64
"""Default number of trials in a batch of MetaSchedule's task scheduler."""


@derived_object
class Moments(ms.measure_callback.PyMeasureCallback):  # type: ignore[misc]
    """Keeps a copy of the database for each of some moments (in seconds): after the first batch that ends past the
    moment, and not before all tasks have had a batch."""

    def __init__(self, timeline: Timeline, profiler: Any, database: Path, moments: Sequence[float]) -> None:
        super().__init__()
        self.kept: list[tuple[Path, dict[str, float]]] = []
        """Folder of each copy, with the seconds, the trials and the device's seconds until then."""
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
    """Return the seconds that MetaSchedule's runner has taken so far, by MetaSchedule's own profiler."""
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
    """Tune a network, compile it and return the figures.

    Args:
        model: file.py:function.
        out: existing folder for the compiled network. The networks of earlier ``moments`` go into subfolders.
        budget_secs: seconds of tuning.
        moments: seconds after which the network is compiled too.
        on_ours: build and measure on our engine.
        batch: trials in a batch of MetaSchedule's task scheduler.
        seed: seed of the search; None for a random one.
    """
    module, inputs = load_example(model)
    program = torch.export.export(module, inputs)
    network = from_exported_program(program, keep_params_as_input=True, unwrap_unit_return_tuple=True)
    network, parameters = relax.frontend.detach_params(network)
    # The tuner schedules all kernels, so the target keeps TVM's default optimization level, 3.
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
    """Compile the network with the schedules of a database into the folder ``out``."""
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
    """Yield MetaSchedule's own builder. Its workers start so slowly that with the default timeout of 30 s the trials of
    the first batch would fail."""
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
    """Save the weights as ``main`` takes them, in the layouts that its kernels need."""
    machine = relax.VirtualMachine(executable, tvm.cpu())
    if parameters and "main_transform_params" in executable.as_text():
        parameters = list(machine["main_transform_params"](list(parameters)))
    np.savez(path, *(parameter.numpy() for parameter in parameters))


def load(folder: Path) -> Callable[..., Any]:
    """Return the compiled network in ``folder`` as a function of TVM tensors."""
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(folder / _LIBRARY)), tvm.cpu())
    with np.load(folder / _PARAMETERS, allow_pickle=False) as arrays:
        parameters = [tvm.runtime.tensor(arrays[f"arr_{at}"]) for at in range(len(arrays.files))]
    main = machine["main"]  # the lookup takes time that must not count as the network's
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
    """Print the figures as one line of JSON, the last line of output."""
    die_with_parent()
    out.mkdir(parents=True, exist_ok=True)
    click.echo(json.dumps(tune(model, out, budget_secs, moments, on_ours, batch, seed)))


if __name__ == "__main__":
    main()
