"""The card of a folder of results, and the page that is made of cards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.gpu.card import make_card
from bench.gpu.page import page

MACHINE = {"cores": 16, "cpu": "processor", "python": "3.12", "versions": {"apache-tvm": "0.27"}}
VERDICTS = {"right": 60, "wrong": 1, "refused": 3, "failed": 0, "unchecked": 0}
TUNED = {"tuned_secs": 5e-4, "untuned_secs": 2e-3, "published": "tuned", "problem": "", "max_rel_error": 1e-6}
TRIALS = {"trials": 90, "valid": 80, "valid_per_minute": 20.0, "elapsed_secs": 240.0}


def written(folder: Path, **results: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "machine.json").write_text(json.dumps({"gpu": {"name": "a GPU"}, "machine": MACHINE, "driver": ""}))
    for name, value in results.items():
        (folder / f"{name.replace('_', '-')}.json").write_text(json.dumps(value))
    return folder


def kernels(**secs: float | None) -> dict[str, Any]:
    return {"kernels": {name: {"best_secs": each, "flop": 1e9} for name, each in secs.items()}, **TRIALS}


def test_a_folder_without_results_has_the_machine_alone(tmp_path: Path) -> None:
    card = make_card(written(tmp_path / "out"))
    assert set(card) == {"schema", "gpu", "machine", "date", "command", "commit"}


def test_kernels_stand_beside_the_faster_order_of_each_arithmetic(tmp_path: Path) -> None:
    sides = {"graph": 4e-5, "graph-channels-last": 2e-5, "graph-tf32": 1e-5, "graph-fp16": None}
    folder = written(
        tmp_path / "out",
        kernels_float32=kernels(product=1e-5, other=None),
        kernels_float16=kernels(product=5e-6),
        kernels_torch={"kernels": {"product": {"sides": sides}}},
        kernels_metaschedule_float32=kernels(product=3e-5),
    )
    card = make_card(folder)
    assert card["kernels"]["float32"]["kernels"]["product"]["secs"] == {
        "ours": 1e-5,
        "metaschedule": 3e-5,
        "torch": 2e-5,
        "torch-tf32": 1e-5,
    }
    assert card["kernels"]["float32"]["tuners"]["metaschedule"] == TRIALS
    assert card["kernels"]["float16"]["kernels"]["product"]["secs"] == {
        "ours": 5e-6,
        "metaschedule": None,
        "torch": None,
    }
    (tmp_path / "cards").mkdir()
    (tmp_path / "cards" / "a.json").write_text(json.dumps(card))
    text = page(tmp_path / "cards")
    assert "| product | 10.0 | 30.0 | 20.0 | 10.0 |" in text
    assert "| other | - | - | - | - |" in text
    assert "| **its time / ours** (kernels) | 1.00 (1) | 3.00 (1) | 2.00 (1) | 1.00 (1) |" in text
    assert "MetaSchedule: 90 trials in 240 s, 80 ran, 20 a minute." in text


def test_networks_and_rules_are_on_the_page(tmp_path: Path) -> None:
    tuned = {"networks": [TUNED], "outcomes": {"ok": 80, "build_error": 2}, "elapsed_secs": 150.0}
    folder = written(
        tmp_path / "out",
        llama_decode=tuned,
        llama_decode_torch={"calls": {"eager": 3e-3, "graph-fp16": 3e-4}},
        rules_float16={"rules": {"tensorize": VERDICTS}, "faults": [], "refusals": {}},
        dataset_float32={"outcomes": {"ok": 1600}},
    )
    card = make_card(folder)
    assert card["networks"]["llama-decode, float16"]["ours"] is None
    assert card["datasets"] == {"float32": {"ok": 1600}}
    (tmp_path / "cards").mkdir()
    (tmp_path / "cards" / "a.json").write_text(json.dumps(card))
    text = page(tmp_path / "cards")
    assert "| float16, tensorize | 60 | 1 | 3 | 0 | 0 |" in text
    assert "Ours after 82 trials, 150 s in all; untuned 2.00 ms; relative error 1.0e-06." in text
    float32, _, float16 = text.partition("### llama-decode, float16")
    assert "| ours | **0.500** |" in float32
    assert "| PyTorch, single calls | 3.000 |" in float32
    assert "| PyTorch, CUDA graph, float16 | 0.300 |" in float16
    assert "Ours: not measured (the job has no result)." in float16
