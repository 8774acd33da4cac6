"""Bansor's tables I and II: the number of sketches of each operator, and the tasks and sketches of each network.

The sketches counted here are those of a fleet-tune run: MetaSchedule's by its default rules, and ours, separately. The
paper's sketches are Ansor's. Nothing is measured and no device is needed, so the table has GPUs too. An operator may
become several tasks (a transposed convolution; product and softmax of TBS). It then has a figure for each task that
computes something.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from bench.benchmark import Benchmark
from bench.machine import bench_env, cores
from bench.processes import run_json
from bench.result import BenchError, BenchResult
from bench.tables import markdown

TARGETS: dict[str, dict[str, object]] = {
    "CPU": {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell", "num-cores": 2},
    "GPU": {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024, "max_shared_memory_per_block": 49152},
}
_MODULES, _OWN = "bench/networks/operator_modules.py", "bench/networks/bansor_modules.py"
OPERATORS: dict[str, tuple[str, dict[str, int]]] = {
    "C1D": (f"{_MODULES}:conv1d", {"CPU": 3}),
    "C2D": (f"{_MODULES}:conv2d", {"CPU": 3}),
    "C3D": (f"{_MODULES}:conv3d", {"CPU": 3}),
    "GMM": (f"{_MODULES}:matmul", {"CPU": 3}),
    "GRP": (f"{_MODULES}:conv2d_grouped", {"CPU": 3}),
    "DIL": (f"{_MODULES}:conv2d_dilated", {"CPU": 3}),
    "DEP": (f"{_MODULES}:conv2d_depthwise", {"CPU": 3}),
    "T2D": (f"{_MODULES}:conv2d_transposed", {"CPU": 3}),
    "CAP": (f"{_MODULES}:conv2d_capsule", {"CPU": 3}),
    "NRM": (f"{_MODULES}:matrix_norm", {"CPU": 3}),
    "ConvLayer": (f"{_OWN}:conv_layer", {"GPU": 1}),
    "TBS": (f"{_OWN}:tbs", {"CPU": 27, "GPU": 4}),
}
"""Table I: each operator, with the paper's number of sketches by device. The paper has no number for ConvLayer on a
CPU."""
NETWORKS: dict[str, str] = {
    "3D-ResNet-18": f"{_OWN}:resnet3d_18",
    "BERT": "bench/networks/public_networks.py:bert_base",
    "DCGAN": "bench/networks/paper_networks.py:dcgan",
}
"""Table II; BERT needs ``pip install transformers``."""
PUBLISHED: dict[str, tuple[str, ...]] = {
    "3D-ResNet-18": ("23", "23,000", "(9, 4)", "(1, 1)"),
    "BERT": ("10", "10,000", "(9, 4)", "(3, 1)"),
    "DCGAN": ("5", "5,000", "(3, 1)", "(3, 1)"),
}
"""The paper's tasks, trials, and most and fewest sketches of a task on (CPU, GPU)."""
TRIALS = 1000
"""Trials of each task, as Ansor recommends and Bansor uses."""
_TIMEOUT_SECS = 3600.0

Counts = Mapping[str, Mapping[str, Any]]
"""By the name of an operator or network: its ``tasks``, or the ``error`` that kept it from being read."""


def run(operators: Sequence[str], networks: Sequence[str]) -> BenchResult:
    """Return the counts of these operators and networks on each target. ``ours``: the number of all sketches of the
    operators on a CPU.

    Raises :class:`BenchError` if none of them could be read.
    """
    began = time.perf_counter()
    specs = {**{name: OPERATORS[name][0] for name in operators}, **{name: NETWORKS[name] for name in networks}}
    found: dict[str, Counts] = {}
    for device, target in TARGETS.items():
        args = ["-m", "bench.drafts.sketch_counts_process", "--target", json.dumps(target), *specs.values()]
        by_spec = run_json(args, env=bench_env(cores()), timeout_secs=_TIMEOUT_SECS)
        found[device] = {name: by_spec[spec] for name, spec in specs.items()}
    if all("error" in each for counts in found.values() for each in counts.values()):
        name, first = next(iter(found["CPU"].items()))
        raise BenchError(f"{name} cannot be read: {first['error']}")
    details = {
        "operators": list(operators),
        "networks": list(networks),
        "counts": found,
        "elapsed_secs": time.perf_counter() - began,
    }
    total = sum(sum(_sketches(found["CPU"][name])) for name in operators if "tasks" in found["CPU"][name])
    return BenchResult("sketch-counts", float(total), None, None, "sketches", details)


def _sketches(counted: Mapping[str, Any]) -> list[int]:
    """Number of sketches of each task that computes something."""
    return [task["metaschedule"] + task["ours"] for task in counted["tasks"] if task["flop"]]


def table_1(counts: Mapping[str, Counts], operators: Sequence[str]) -> str:
    """Return table I. For each operator it has the sketches by MetaSchedule's rules and by ours, for each of its tasks,
    and the paper's number."""
    rows = []
    for name in operators:
        cells = []
        for device in TARGETS:
            counted = counts[device][name]
            tasks = [task for task in counted.get("tasks", ()) if task["flop"]]
            each = [f"{task['metaschedule']} and {task['ours']}" for task in tasks]
            cells += ["; ".join(each) or counted.get("error", "none"), str(OPERATORS[name][1].get(device, "-"))]
        rows.append((name, *cells))
    columns = [f"{what} on a {device}" for device in TARGETS for what in ("MetaSchedule's and ours", "the paper's")]
    return markdown(("sketches (table I)", *columns), rows)


def table_2(counts: Mapping[str, Counts], networks: Sequence[str]) -> str:
    """Return table II: tasks, trials, and most and fewest sketches of a task on (CPU, GPU), each beside the paper's
    figure."""
    rows = []
    for name in networks:
        errors = [counts[device][name]["error"] for device in TARGETS if "error" in counts[device][name]]
        if errors:
            rows.append((name, *(errors[:1] * 4)))
            continue
        tasks = len(counts["CPU"][name]["tasks"])
        both = [_sketches(counts[device][name]) for device in TARGETS]
        most, least = (f"({', '.join(str(pick(each)) for each in both)})" for pick in (max, min))
        ours = (str(tasks), f"{TRIALS * tasks:,}", most, least)
        rows.append((name, *(f"{mine}, paper {its}" for mine, its in zip(ours, PUBLISHED[name], strict=True))))
    return markdown(("networks (table II)", "tasks", "trials", "most sketches", "fewest sketches"), rows)


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    parts = []
    if details["operators"]:
        parts.append(table_1(details["counts"], details["operators"]))
    if details["networks"]:
        parts.append(table_2(details["counts"], details["networks"]))
    return "\n\n".join(parts)


def _named(option: str, parameter: str, known: Sequence[str]) -> click.Option:
    return click.Option(
        [option, parameter], multiple=True, type=click.Choice(known), default=known, help="One of these; else all."
    )


BENCHMARK = Benchmark(
    name="sketch-counts",
    help="Bansor's tables I and II: sketches of its operators, tasks and sketches of its networks.",
    options=(
        _named("--operator", "operators", tuple(OPERATORS)),
        _named("--network", "networks", tuple(NETWORKS)),
    ),
    short=("--operator", "GMM", "--network", "DCGAN"),
    run=run,
    table=table,
)
