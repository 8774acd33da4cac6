"""The jobs of ``python -m bench gpu-first``: each is one command of less than eight minutes.

:data:`REHEARSAL` gives the same jobs with small networks for a CPU. They test everything but the device before the jobs
run on a machine with a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

BUDGET_SECS = 120.0
"""Default tuning time of a network."""
KERNELS_SHARE = 2.0
"""Tuning time of the kernels, as a multiple of the tuning time of a network."""
_LONGEST_SECS = 470.0

_CALLED = ("eager", "eager-fp16", "graph", "graph-tf32", "graph-fp16")
_COMPILED = ("compile", "compile-tf32", "compile-fp16")
_OF_KERNELS = tuple(f"graph{how}{last}" for how in ("", "-tf32", "-fp16") for last in ("", "-channels-last"))
_CALLS = 20


@dataclass(frozen=True)
class Job:
    """One command. Its arguments may contain ``{fleet}`` (the fleet file), ``{work}`` (the job's own folder),
    ``{budget}`` and ``{kernels_budget}`` (seconds of tuning for a network, for the kernels)."""

    name: str
    about: str
    args: tuple[str, ...]
    limit_secs: float


@dataclass(frozen=True)
class Subjects:
    """The networks and kernels that the jobs run, as ``file.py:function``, and the numbers of candidates."""

    operators: str
    """Network of independent operators, for the check of sketch rules."""
    quantised: str
    """Matrix products of int8 values, for the same check."""
    kernels: str
    """Network of independent kernels. With the suffix ``_fp16`` it names the same kernels in float16."""
    recorded: str
    """Kernels for a dataset, in the same form."""
    networks: Mapping[str, str]
    """Networks by name."""
    per_rule: int
    """Candidates of each sketch rule."""
    per_task: int
    """Candidates of each task in a dataset."""
    processor: str
    """Processor for PyTorch: ``cuda`` or ``cpu``."""


_PUBLIC, _KERNELS, _LLAMA = (f"bench/networks/{name}.py" for name in ("public_networks", "gpu_kernels", "llama"))
ON_A_GPU = Subjects(
    operators=f"{_KERNELS}:operators",
    quantised="examples/low_precision_workloads.py:quantised",
    kernels=f"{_KERNELS}:kernels",
    recorded=f"{_KERNELS}:recorded",
    networks={
        "resnet18": f"{_PUBLIC}:resnet18",
        "bert": f"{_PUBLIC}:bert_two_layers",
        "llama-prefill": f"{_LLAMA}:prefill",
        "llama-decode": f"{_LLAMA}:decode",
    },
    per_rule=64,
    per_task=200,
    processor="cuda",
)
REHEARSAL = Subjects(
    operators=f"{_KERNELS}:tiny",
    quantised="examples/low_precision_workloads.py:quantised",
    kernels=f"{_KERNELS}:tiny",
    recorded=f"{_KERNELS}:tiny",
    networks={
        "resnet18": "examples/networks.py:small_cnn",
        "bert": "examples/networks.py:bert_tiny",
        "llama-prefill": f"{_LLAMA}:tiny_prefill",
        "llama-decode": f"{_LLAMA}:tiny_decode",
    },
    per_rule=2,
    per_task=2,
    processor="cpu",
)


def jobs(of: Subjects) -> tuple[Job, ...]:
    """Return the jobs in the order in which they run: checks of correctness first, then measurements of speed."""
    return (
        Job("probe", "the device's probes", ("-m", "fleet_tune", "device", "check", "{fleet}", "--json"), 90),
        *_rules(of),
        *_kernels(of),
        *(job for name, network in of.networks.items() for job in _network(of, name, network)),
        *_datasets(of),
    )


def _rules(of: Subjects) -> Iterator[Job]:
    for name, model, *precision in (
        ("float32", of.operators),
        ("float16", of.operators, "--precision", "fp16"),
        ("bfloat16", of.operators, "--precision", "bf16"),
        ("int8", of.quantised),
    ):
        options = ("--fleet", "{fleet}", "--per-rule", str(of.per_rule), *precision)
        about = f"{of.per_rule} candidates of each sketch rule in {name}, checked"
        command = ("-m", "bench.gpu.sketch_rules", model, "{work}", *options)
        yield Job(f"rules-{name}", about, command, _LONGEST_SECS)


def _kernels(of: Subjects) -> Iterator[Job]:
    tuning = ("{work}", "--fleet", "{fleet}", "--budget-secs", "{kernels_budget}")
    ours, theirs = "bench.gpu.tuned_kernels", "bench.peers.metaschedule_kernels"
    sides = tuple(part for side in _OF_KERNELS for part in ("--side", side))
    timed = ("--model", of.kernels, "--each", "--calls", str(_CALLS), "--kept", "{work}/kept.jsonl", *sides)
    for precision, suffix in (("float32", ""), ("float16", "_fp16")):
        command = ("-m", ours, f"{of.kernels}{suffix}", *tuning)
        yield Job(f"kernels-{precision}", f"kernels in {precision}, tuned", command, _LONGEST_SECS)
    yield Job("kernels-torch", "the same of cuBLAS and cuDNN, in CUDA graphs", (*_torch(of), *timed), 400)
    for precision, suffix in (("float32", ""), ("float16", "_fp16")):
        command = ("-m", theirs, f"{of.kernels}{suffix}", *tuning)
        about = f"the same of MetaSchedule, in {precision}"
        yield Job(f"kernels-metaschedule-{precision}", about, command, _LONGEST_SECS)


def _network(of: Subjects, name: str, network: str) -> Iterator[Job]:
    options = ("--time-budget", "{budget}s", "--fleet", "{fleet}", "--out", "{work}", "--json")
    tuning = ("-m", "fleet_tune", "tune", network, *options)
    yield Job(name, f"{name}, tuned", tuning, 400)
    yield Job(f"{name}-fp16", "the same on tensor cores", (*tuning, "--precision", "fp16"), 400)
    for how, sides, limit_secs in (("torch", _CALLED, 120), ("compile", _COMPILED, 400)):
        chosen = tuple(part for side in sides for part in ("--side", side))
        yield Job(
            f"{name}-{how}", f"the same in PyTorch: {how}", (*_torch(of), "--model", network, *chosen), limit_secs
        )


def _datasets(of: Subjects) -> Iterator[Job]:
    for precision, suffix in (("float32", ""), ("float16", "_fp16")):
        collect = ("-m", "fleet_tune", "dataset", "collect", f"{of.recorded}{suffix}", "--per-task", str(of.per_task))
        about = f"{of.per_task} random candidates of each of some kernels in {precision}, as a dataset"
        command = (*collect, "--fleet", "{fleet}", "--out", "{work}", "--json")
        yield Job(f"dataset-{precision}", about, command, _LONGEST_SECS)


def _torch(of: Subjects) -> tuple[str, ...]:
    return ("-m", "bench.peers.torch_gpu", "--on", of.processor)
