"""Files of results: what is in them, and which are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import bench.saved_result
from bench.benchmark import Benchmark
from bench.processes import ROOT
from bench.result import BenchError, BenchResult
from bench.saved_result import SCHEMA, Provenance, read_result, read_results

COMMAND = ("-m", "bench", "draft-penalties", "--save", "--label", "small set")


def saved(folder: Path, label: str = "") -> Path:
    provenance = Provenance("bench.drafts.draft_penalties", [ROOT / "LICENSE"], COMMAND, label)
    return provenance.save(BenchResult("draft-penalties", 0.98765432, 0.5, 1.9753, "Best-1", {"n": 3}), folder=folder)


def test_a_result_is_saved_with_what_it_depends_on(tmp_path: Path) -> None:
    path = saved(tmp_path / "new", "hosted")
    assert path.name == "draft-penalties-hosted.json"
    result = read_result(path)
    assert result.key == path.stem
    assert result.command == "python -m bench draft-penalties --save --label 'small set'"
    assert len(result.commit) == 40
    assert result.date.endswith("+00:00")
    assert result.duration_secs >= 0
    assert set(result.machine) == {"cpu", "cores", "memory_gib", "system"}
    assert {"python", "apache-tvm", "numpy"} <= set(result.versions)
    assert {"LICENSE", "policies/analysis/analyzer.py", "bench/drafts/draft_penalties.py"} <= set(result.dependencies)
    assert result.changed() == ()
    assert result.result == {
        "bench": "draft-penalties",
        "ours": 0.98765,
        "peer": 0.5,
        "ratio": 1.9753,
        "unit": "Best-1",
        "details": {"n": 3},
    }


def test_results_come_in_the_order_of_their_keys(tmp_path: Path) -> None:
    for label in ("rows", "hosted", ""):
        saved(tmp_path, label)
    (tmp_path / ".draft.json.ab.part").write_text("half of a")  # what an interrupt leaves
    assert [each.label for each in read_results(tmp_path)] == ["hosted", "rows", ""]


@pytest.mark.parametrize("label", ["../up", "Upper", "a b", "-a", "a--b"])
def test_a_label_that_is_no_file_name_is_refused(tmp_path: Path, label: str) -> None:
    with pytest.raises(BenchError, match="lower-case letters"):
        saved(tmp_path, label)


def test_another_form_is_refused_with_a_next_step(tmp_path: Path) -> None:
    path = saved(tmp_path)
    body = json.loads(path.read_text())
    cases: list[tuple[Any, str]] = [
        ({**body, "schema": SCHEMA + 1}, f"has schema {SCHEMA + 1}, and this version reads {SCHEMA}"),
        ({"bench": "draft", "ours": 1.0}, "has schema None"),
        ([1], "has schema None"),
        ({**body, "more": 1}, r"keys missing or unknown: \['more'\]"),
        ({key: value for key, value in body.items() if key != "commit"}, r"\['commit'\]"),
        ({**body, "result": 3}, "is no result of a benchmark"),
        ({**body, "label": "rows"}, "rename it to draft-penalties-rows.json"),
    ]
    for case, message in cases:
        path.write_text(json.dumps(case))
        with pytest.raises(BenchError, match=message):
            read_result(path)
    path.write_text("{")
    with pytest.raises(BenchError, match=r"cannot be read .* remove it, or run its benchmark again with --save"):
        read_result(path)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BenchError, match="cannot be written"):
        saved(tmp_path / "file")


def test_only_a_benchmark_that_has_ended_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.saved_result.Provenance.save, "__defaults__", ((), tmp_path))

    def run(fail: bool) -> BenchResult:
        if fail:
            raise BenchError("the peer has ended")
        return BenchResult("example", 1.0, None, None, "s")

    option = click.Option(["--fail"], is_flag=True)
    command = Benchmark("example", "An example.", [option], (), run, str).command()
    first = CliRunner().invoke(command, ["--save", "--json"])
    assert first.exit_code == 0, first.output
    before = (tmp_path / "example.json").read_bytes()
    assert isinstance(CliRunner().invoke(command, ["--save", "--fail"]).exception, BenchError)
    assert (tmp_path / "example.json").read_bytes() == before
    assert json.loads(first.stdout.splitlines()[-1])["ours"] == 1.0
    without = CliRunner().invoke(command, ["--label", "x"])
    assert "add --save" in str(without.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["example.json"]
