"""The page of what was measured on GPUs: docs/generated/gpu.md, from the files of ``bench/data/gpu``.

Each file holds what the pieces of ``python -m bench gpu-first`` found on one card, with the commit that ran.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

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
    "graph": "PyTorch, CUDA graph",
    "graph-tf32": "PyTorch, CUDA graph, TF32",
    "graph-fp16": "PyTorch, CUDA graph, float16",
    "compile": "torch.compile, max-autotune",
    "compile-fp16": "torch.compile, max-autotune, float16",
}


def page(folder: Path = FOLDER) -> str:
    """The text of the page."""
    cards = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return _HEAD + "".join(_card(card) for card in cards)


def _card(card: Mapping[str, Any]) -> str:
    machine, probe = card["machine"], card["probe"]
    lines = [
        f"\n## {card['gpu']}",
        f"`{card['command']}`, {card['date']}, commit {card['commit']}. Driver {card['driver']}, {machine['cores']} "
        f"cores of an {machine['cpu']}, Python {machine['python']}, TVM {machine['versions']['apache-tvm']}.",
        f"The probe: {probe['float32_flops'] / 1e12:.1f} TFLOP/s in float32, {probe['bandwidth_bytes'] / 1e12:.2f} "
        f"TB/s, {probe['int8_products'] / 1e12:.1f} T products of bytes a second.",
    ]
    for name, network in card["networks"].items():
        lines += [f"### {name}", markdown(("ms that a caller waits", "median"), list(_rows(network)))]
        ours = network["ours"]
        lines.append(
            f"Ours: not measured ({network['reason']})."
            if ours is None
            else f"Ours after {ours['trials']} trials, {ours['elapsed_secs']:.0f} s in all; untuned "
            f"{ours['untuned_secs'] * 1e3:.2f} ms; relative error {ours['relative_error']:.1e}."
        )
    return "\n\n".join(lines) + "\n"


def _rows(network: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if network["ours"] is not None:
        yield "ours", f"**{network['ours']['latency_secs'] * 1e3:.3f}**"
    for side, title in _SIDES.items():
        secs = network["torch"]["call_secs"].get(side)
        if secs is not None:
            yield title, f"{secs * 1e3:.3f}"
