"""The dataset that the offline benchmarks run on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from examples.workloads import Example, fresh, grouped, other_tasks, rows, strided, unseen, untouched
from examples.workloads import dataset as workloads
from fleet_tune.base.records.datasets.dataset import load
from fleet_tune.base.task_data import Dataset
from fleet_tune.runs.transfer.pretrained import BUILTIN_PATHS, data_sources, read_model
from fleet_tune.training.collection import refresh

PATH = Path(__file__).parents[3] / "bench" / "data" / "znver5-2.ftd"


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return load(PATH)


def test_it_holds_a_thousand_measured_candidates_of_every_workload(dataset: Dataset) -> None:
    names = [data.task.workload.name.split()[0] for data in dataset]
    assert len(dataset) >= 6
    assert {"matmul", "matmul_add_relu", "conv2d_add_relu", "softmax"} <= set(names)
    for data in dataset:
        assert len(data) >= 1000
        assert data.ok.mean() > 0.9
        assert len({data.candidate(at).id for at in range(len(data))}) == len(data)
    assert PATH.stat().st_size < 20e6


def test_it_was_measured_quietly_and_to_the_end(dataset: Dataset) -> None:
    for data in dataset:
        batches = np.isfinite(data.run_secs[data.ok]).sum(axis=1)
        assert batches.min() >= 3, data.task.workload.name
        assert np.median(data.spread[data.ok]) < 0.04, data.task.workload.name


def test_its_sketches_are_described_as_this_version_does(dataset: Dataset) -> None:
    """Else: ``fleet-tune dataset refresh bench/data/znver5-2.ftd``."""
    renewed, left_out = refresh(dataset)
    assert left_out == 0
    for old, new in zip(dataset, renewed, strict=True):
        now = {each.id: each for each in new.sketches}  # there are others since it was measured
        assert [replace(now[each.id], index=each.index) for each in old.sketches] == list(old.sketches)


def test_the_grouped_convolutions_are_all_in_their_dataset() -> None:
    data = load(PATH.parent / "grouped" / "znver5-1.ftd")
    module, inputs = grouped()
    with torch.no_grad():
        assert len(module(*inputs)) == len(inputs) == len(data)
    for task in data:
        assert task.ok.sum() > 150, task.task.workload.name
        assert np.median(task.spread[task.ok]) < 0.04, task.task.workload.name


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("fresh", {13: 1, 400: 13}),
        ("strided", {180: 8}),
        ("deployed", {7: 1, 36: 1, 363: 1, 400: 13}),
        ("served", {6: 1, 29: 1, 99: 1, 400: 15}),
        ("hosted", {8: 1, 25: 1, 217: 1, 400: 13}),
        ("resnet18", {500: 13}),
    ],
    ids=["fresh", "strided", "deployed", "served", "hosted", "resnet18"],
)
def test_sets_hold_what_they_are_said_to(name: str, counts: dict[int, int]) -> None:
    (path,) = (PATH.parent / name).glob("*.ftd")
    data = load(path)
    assert Counter(len(task) for task in data) == counts
    for task in data:
        assert task.ok.mean() > 0.8, task.task.workload.name
        assert np.median(task.spread[task.ok]) < 0.04, task.task.workload.name


WIDE = ("quantised", "halves")
"""Sets of a Zen 5 whose vector units have 512 bits."""


def test_the_peak_of_a_kind_of_device_is_the_same_in_all_its_sets() -> None:
    """One that is probed beside other work is too low, and the analyzer reads it. A class may have two kinds of device:
    there are Zen 5 with vector units of 256 and of 512 bits."""
    peaks: dict[tuple[str, bool], list[float]] = {}
    for path in PATH.parent.rglob("*.ftd"):
        for task in load(path):
            kind = task.task.device_class.name, path.parent.name in WIDE
            peaks.setdefault(kind, []).append(task.abstraction.peak_flops)
    assert len(peaks) >= 4
    for name, found in peaks.items():
        assert max(found) < 1.25 * min(found), name


def _shapes(example: Example) -> set[tuple[int, ...]]:
    return {tuple(each.shape) for each in example[1]}


@pytest.mark.parametrize(("make", "count"), [(untouched, 10), (unseen, 12), (fresh, 13)])
def test_workloads_for_figures_are_none_of_those_that_something_was_fitted_on(
    make: Callable[[], Example], count: int
) -> None:
    module, inputs = make()
    with torch.no_grad():
        assert len(module(*inputs)) == count
    fitted = [_shapes(example) for example in (workloads(), other_tasks(), grouped(), rows(), strided())]
    assert set().union(*fitted).isdisjoint(_shapes((module, inputs)))


def test_the_hosted_workloads_are_in_no_other_set_and_no_model_has_seen_them() -> None:
    path = PATH.parent / "hosted" / "rocketlake-1.ftd"
    data = load(path)
    others = {task.task.workload.hash for each in PATH.parent.rglob("*.ftd") if each != path for task in load(each)}
    assert len(others) > 100
    assert others.isdisjoint({task.task.workload.hash for task in data})
    digest = data_sources("", data).digest
    for path in BUILTIN_PATHS.values():
        sources = read_model(path)[1].data
        assert sources
        for source in sources:
            assert source.digest != digest
            assert "rocketlake-1" not in source.device_classes


def test_the_fresh_workloads_are_in_no_other_set() -> None:
    assert (_shapes(untouched()) | _shapes(unseen())).isdisjoint(_shapes(fresh()))
