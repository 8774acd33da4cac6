"""A network is compared with its framework on NaN and infinities too."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from devices.networks.checks.special_inputs import special_inputs_of
from devices.networks.network import Array
from devices.networks.processes.fresh_process import OtherInputs
from fleet_tune.report.network import network_lines
from fleet_tune.runs.publishing import network_check
from tests.helpers.compiling import Example, Faked, Told

pytestmark = pytest.mark.usefixtures("networks_run_here")


class Special(Faked):
    """This machine, where networks lose NaN: those with a schedule, or all."""

    def __init__(self, example: Example, losing: str = "") -> None:
        super().__init__(example.network)
        self._others = OtherInputs(tuple(special_inputs_of(example.network).values()))
        self._losing = losing
        self.runs = 0

    def outputs(self, folder: Path) -> tuple[Array, ...]:
        outputs = super().outputs(folder)
        self.runs += 1
        manifest = json.loads((folder / "manifest.json").read_text())
        scheduled = any(entry["trace"] is not None for entry in manifest["tasks"])
        if self._losing == "all" or (self._losing == "scheduled" and scheduled):
            self.special_outputs = [_without_nan(each) for each in self.special_outputs]
        return outputs


def _without_nan(outputs: Sequence[Array]) -> tuple[Array, ...]:
    return tuple(np.nan_to_num(each) for each in outputs)


def test_a_network_that_treats_them_as_its_framework_says_nothing(example: Example, tmp_path: Path) -> None:
    place = Special(example)
    result = example.built(example.right(tmp_path / "records.db"), place)
    assert len(place.special_outputs) == 2
    assert np.isnan(place.special_outputs[0][0]).any()
    assert (result.published, result.special) == ("tuned", "")
    assert "special values" not in {label for label, *_ in network_lines(result)}


def test_an_import_that_differs_is_published_and_told(example: Example, tmp_path: Path) -> None:
    result = example.built(example.right(tmp_path / "records.db"), Special(example, "all"))
    assert result.published == "tuned"
    assert not result.fallbacks
    assert result.special.startswith("on inputs with NaN, output 0: ")
    assert "finite where the framework's are NaN" in result.special
    assert example.published(tmp_path)[1]["special_values"] == result.special
    (line,) = [line for label, line, _ in network_lines(result) if label == "special values"]
    assert "docs/networks.md" in line


def test_kernels_that_lose_them_by_their_schedule_are_not_used(example: Example, tmp_path: Path) -> None:
    told = Told()
    result = example.built(example.right(tmp_path / "records.db"), Special(example, "scheduled"), progress=told)
    assert result.special == ""
    assert len(result.fallbacks) == len(example.tasks)
    assert all("finite where the framework's are NaN" in each.reason for each in result.fallbacks)
    assert example.published(tmp_path)[0] < 1e-5


def test_tiles_of_winograd_that_spread_them_are_used_and_told(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_check, "uses_winograd", lambda trace: bool(trace))
    result = example.built(example.right(tmp_path / "records.db"), Special(example, "scheduled"))
    assert result.published == "tuned"
    assert not result.fallbacks
    assert result.special.endswith("as NaN and infinities reach whole tiles of Winograd's algorithm")
