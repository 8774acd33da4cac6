"""The card: a summary of the results of ``python -m bench gpu-first`` in a folder, as ``bench/data/gpu`` keeps it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.gpu.jobs import ON_A_GPU
from bench.result import BenchError
from bench.saved_result import commit

PRECISIONS = {"float32": "", "float16": "-fp16"}
"""Suffix of a network's job name by precision."""


def make_card(folder: Path) -> dict[str, Any]:
    """Return the card of the results in ``folder``. Parts without a result are left out."""
    machine = json.loads((folder / "machine.json").read_text())
    results = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    card: dict[str, Any] = {"schema": 1, "gpu": machine["gpu"]["name"], "machine": machine["machine"]}
    card["date"] = time.strftime("%Y-%m-%d", time.gmtime((folder / "machine.json").stat().st_mtime))
    card["command"], card["commit"] = "python -m bench gpu-first", ""
    with suppress(BenchError):  # a copy of the repository without its git history
        card["commit"] = commit()[:8]
    found = {
        "probe": _probe(results),
        "rules": {name: results[f"rules-{name}"] for name in _RULES if f"rules-{name}" in results},
        "kernels": {name: _kernels(results, name) for name in PRECISIONS if f"kernels-{name}" in results},
        "networks": _networks(results),
        "datasets": {
            name: results[f"dataset-{name}"]["outcomes"] for name in PRECISIONS if f"dataset-{name}" in results
        },
    }
    return {**card, **{name: value for name, value in found.items() if value}}


_RULES = ("float32", "float16", "bfloat16", "int8")


def _probe(results: Mapping[str, Any]) -> dict[str, Any]:
    if "probe" not in results:
        return {}
    fingerprint = results["probe"]["devices"][0]["fingerprint"]
    abstraction = fingerprint["abstraction"]
    return {
        "driver": fingerprint["driver"],
        "float32_flops": abstraction["peak_flops"],
        "bandwidth_bytes": abstraction["bandwidth_bytes"],
        "int8_products": abstraction["int8_flops"],
    }


def _kernels(results: Mapping[str, Any], precision: str) -> dict[str, Any]:
    """Return the FLOP of each kernel with its seconds by side (None: no result), and the trials of each tuner."""
    ours, theirs = results[f"kernels-{precision}"], results.get(f"kernels-metaschedule-{precision}", {})
    torch = results.get("kernels-torch", {}).get("kernels", {})
    arithmetics = {"torch": "graph", "torch-tf32": "graph-tf32"} if precision == "float32" else {"torch": "graph-fp16"}
    kernels = {}
    for name, kernel in ours["kernels"].items():
        secs = {"ours": kernel["best_secs"]}
        secs["metaschedule"] = theirs.get("kernels", {}).get(name, {}).get("best_secs")
        sides = torch.get(name, {}).get("sides", {})
        for side, way in arithmetics.items():  # the faster of the two memory formats
            both = [sides.get(way), sides.get(f"{way}-channels-last")]
            secs[side] = min((each for each in both if each is not None), default=None)
        kernels[name] = {"flop": kernel["flop"], "secs": secs}
    tuners = {"ours": ours, "metaschedule": theirs}
    numbers = ("trials", "valid", "valid_per_minute", "elapsed_secs")
    return {
        "kernels": kernels,
        "tuners": {name: {each: tuner[each] for each in numbers} for name, tuner in tuners.items() if tuner},
    }


def _networks(results: Mapping[str, Any]) -> dict[str, Any]:
    networks = {}
    for name in ON_A_GPU.networks:
        called = {}
        for job in (f"{name}-torch", f"{name}-compile"):
            called.update(results.get(job, {}).get("calls", {}))
        for precision, suffix in PRECISIONS.items():
            tuned = results.get(f"{name}{suffix}")
            sides = {side: secs for side, secs in called.items() if side.endswith("-fp16") is (precision == "float16")}
            if tuned is None and not sides:
                continue
            ours = None if tuned is None or not tuned["networks"] else _tuned(tuned)
            reason = "" if ours else "the job has no result" if tuned is None else "no network was compiled"
            networks[f"{name}, {precision}"] = {"ours": ours, "reason": reason, "torch": {"call_secs": sides}}
    return networks


def _tuned(tuned: Mapping[str, Any]) -> dict[str, Any]:
    (network,) = tuned["networks"]
    return {
        "latency_secs": network["tuned_secs"],
        "untuned_secs": network["untuned_secs"],
        "published": network["published"],
        "problem": network["problem"],
        "trials": sum(tuned["outcomes"].values()),
        "outcomes": tuned["outcomes"],
        "relative_error": network["max_rel_error"],
        "elapsed_secs": tuned["elapsed_secs"],
    }
