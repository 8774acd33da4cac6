"""The page of measurements on GPUs: docs/generated/gpu.md, made from the files of ``bench/data/gpu``.

Each file is the ``card.json`` of ``python -m bench gpu-first`` on one GPU, with the commit that ran.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.gpu.verdicts import VERDICTS
from bench.processes import ROOT
from bench.tables import markdown

FOLDER = ROOT / "bench" / "data" / "gpu"
PAGE = ROOT / "docs" / "generated" / "gpu.md"
_HEAD = """\
# Measured on GPUs

Written by `python -m bench docs` from `bench/data/gpu`. What it means: [GPUs](../gpu.md).
"""
_SIDES = {
    "eager": "PyTorch, single calls",
    "eager-fp16": "PyTorch, single calls, float16",
    "graph": "PyTorch, CUDA graph",
    "graph-tf32": "PyTorch, CUDA graph, TF32",
    "graph-fp16": "PyTorch, CUDA graph, float16",
    "compile": "torch.compile, max-autotune",
    "compile-tf32": "torch.compile, max-autotune, TF32",
    "compile-fp16": "torch.compile, max-autotune, float16",
}
_KERNEL_SIDES = {
    "ours": "ours",
    "metaschedule": "MetaSchedule",
    "torch": "cuBLAS, cuDNN",
    "torch-tf32": "the same, TF32",
}


def page(folder: Path = FOLDER) -> str:
    """Return the text of the page. ``folder``: the files to read."""
    cards = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return _HEAD + "".join(_card(card) for card in cards)


def _card(card: Mapping[str, Any]) -> str:
    machine, probe = card["machine"], card.get("probe", {})
    driver = card.get("driver") or probe.get("driver", "unknown")
    lines = [
        f"\n## {card['gpu']}",
        f"`{card['command']}`, {card['date']}, commit {card['commit']}. Driver {driver}, {machine['cores']} "
        f"cores of an {machine['cpu']}, Python {machine['python']}, TVM {machine['versions']['apache-tvm']}.",
    ]
    if probe:
        lines.append(
            f"The probe: {probe['float32_flops'] / 1e12:.1f} TFLOP/s in float32, {probe['bandwidth_bytes'] / 1e12:.2f} "
            f"TB/s, {probe['int8_products'] / 1e12:.1f} T products of bytes a second."
        )
    if "rules" in card:
        lines += ["### Sketch rules", markdown(("random candidates", *VERDICTS), list(_rules(card["rules"])))]
    for precision, found in card.get("kernels", {}).items():
        lines += [f"### Kernels, {precision}", _kernels(found["kernels"]), _tuners(found["tuners"])]
    for name, network in card.get("networks", {}).items():
        lines += [f"### {name}", markdown(("ms that a caller waits", "median"), list(_rows(network)))]
        ours = network["ours"]
        if ours is None:
            lines.append(f"Ours: not measured ({network['reason']}).")
            continue
        told = f"Ours after {ours['trials']} trials, {ours['elapsed_secs']:.0f} s in all"
        told += "" if ours["untuned_secs"] is None else f"; untuned {ours['untuned_secs'] * 1e3:.2f} ms"
        told += "" if ours["relative_error"] is None else f"; relative error {ours['relative_error']:.1e}"
        lines.append(f"{told}.{' ' + ours['problem'] if ours.get('problem') else ''}")
    return "\n\n".join(lines) + "\n"


def _rules(rules: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for precision, found in rules.items():
        for rule, counted in found["rules"].items():
            yield (f"{precision}, {rule}", *(str(counted[verdict]) for verdict in VERDICTS))


def _kernels(kernels: Mapping[str, Any]) -> str:
    """Return a table with the microseconds of each kernel by side. The last row has the geometric mean of each side's
    time divided by ours, and the number of kernels in it."""
    sides = list(next(iter(kernels.values()))["secs"])
    rows = [(name, *map(_micros, (kernel["secs"][side] for side in sides))) for name, kernel in kernels.items()]
    ratios = []
    for side in sides:
        both = [(kernel["secs"][side], kernel["secs"]["ours"]) for kernel in kernels.values()]
        known = [other / ours for other, ours in both if other is not None and ours is not None]
        ratios.append(f"{statistics.geometric_mean(known):.2f} ({len(known)})" if known else "-")
    return markdown(
        ("us", *(_KERNEL_SIDES[side] for side in sides)), [*rows, ("**its time / ours** (kernels)", *ratios)]
    )


def _micros(secs: float | None) -> str:
    return "-" if secs is None else f"{secs * 1e6:.1f}"


def _tuners(tuners: Mapping[str, Any]) -> str:
    told = []
    for name, tuner in tuners.items():
        rate = tuner["valid_per_minute"]
        told.append(
            f"{_KERNEL_SIDES[name]}: {tuner['trials']} trials in {tuner['elapsed_secs']:.0f} s, {tuner['valid']} ran"
            + ("" if rate is None else f", {rate:.0f} a minute")
        )
    return f"{'; '.join(told)}."


def _rows(network: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if network["ours"] is not None and network["ours"]["latency_secs"] is not None:
        yield "ours", f"**{network['ours']['latency_secs'] * 1e3:.3f}**"
    for side, title in _SIDES.items():
        secs = network["torch"]["call_secs"].get(side)
        if secs is not None:
            yield title, f"{secs * 1e3:.3f}"
