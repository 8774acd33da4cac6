"""``tune --cost-model`` and ``--offline-model``: which method they ask for, and that the help names each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet_tune import api
from fleet_tune.base.config import tune_options
from fleet_tune.base.config.request import RunRequest
from fleet_tune.base.config.tune_options import METHODS
from fleet_tune.base.records.sharing.shared import STORE_VARIABLE
from fleet_tune.base.results import Plan
from fleet_tune.cli import main as cli
from policies.cost_models.registry import COST_MODELS
from policies.search.methods import METHOD_NAMES, method_named


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Methods that a plan was asked for."""
    methods: list[str] = []

    def plan(request: RunRequest) -> Plan:
        methods.append(request.method)
        return Plan(request.network, request.method, {}, (), None, 600.0)

    monkeypatch.setattr(api, "make_plan", plan)
    return methods


@pytest.mark.parametrize(
    ("options", "method"),
    [
        ("", "fleet"),
        ("--method autotvm --cost-model pacm", "autotvm:pacm"),
        ("--method pruner --offline-model", "pruner:offline"),
        ("--method ansor --cost-model pacm --offline-model", "ansor:pacm:offline"),
    ],
)
def test_a_model_in_place_of_the_methods_own(planned: list[str], options: str, method: str) -> None:
    assert cli.main(["tune", "net.onnx", "--dry-run", *options.split()]) == 0
    assert planned == [method]
    assert method_named(method).name == method


def test_the_old_name_of_the_option_works_and_says_so(planned: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tune", "net.onnx", "--dry-run", "--json", "--method", "ansor", "--model", "pacm"]) == 0
    assert planned == ["ansor:pacm"]
    out, err = capsys.readouterr()
    assert json.loads(out)["method"] == "ansor:pacm"
    assert "--model is called --cost-model now" in err
    assert cli.main(["tune", "--help"]) == 0
    assert "--model" not in capsys.readouterr().out.split()


def test_the_help_names_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tune", "--help"]) == 0
    shown = "".join(capsys.readouterr().out.split())  # lines may be broken at hyphens
    for name in COST_MODELS:
        assert name in shown


def test_an_unknown_model_is_refused_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("oracle", "raced", "pacm:offline"):  # the last two may follow the name of a method
        assert cli.main(["tune", "net.onnx", "--dry-run", "--cost-model", wrong]) == 2
        problem, next_step = capsys.readouterr().err.splitlines()
        assert problem == f"error: there is no cost model '{wrong}'"
        assert next_step.startswith("next: choose one of: boosted, ")


@pytest.mark.parametrize(
    ("options", "store"), [("", "default.db"), ("--store other.db", "other.db"), ("--no-store", None)]
)
def test_the_store_of_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: str, store: str | None) -> None:
    stores: list[Path | None] = []

    def plan(request: RunRequest) -> Plan:
        stores.append(request.store and request.store.path)
        return Plan(request.network, request.method, {}, (), None, 600.0)

    monkeypatch.setattr(api, "make_plan", plan)
    monkeypatch.setenv(STORE_VARIABLE, str(tmp_path / "default.db"))
    monkeypatch.chdir(tmp_path)
    assert cli.main(["tune", "net.onnx", "--dry-run", *options.split()]) == 0
    assert stores == [None if store is None else tmp_path / store]


def test_a_store_and_none_contradict_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tune", "net.onnx", "--store", "s.db", "--no-store"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: --store and --no-store contradict each other",
        "next: give one of them",
    ]


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("fleet-tune tune --method p", ["pruner"]),
        ("fleet-tune tune --method a", ["autotvm", "adatune", "ansor"]),
        ("fleet-tune tune --precision ", ["bf16", "fp16", "int8w", "auto"]),
        ("fleet-tune tune --cost-model p", ["pacm"]),
    ],
)
def test_a_shell_completes_names(
    words: str, completed: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_FLEET_TUNE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", "3")
    with pytest.raises(SystemExit):
        cli.main([])
    assert [line.partition(",")[2] for line in capsys.readouterr().out.split()] == completed


def test_all_methods_have_names_to_complete() -> None:
    assert METHODS == METHOD_NAMES
    assert tuple(COST_MODELS) == tune_options.COST_MODELS
