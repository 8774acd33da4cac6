"""What a run is asked for: defaults, and that a value out of its range is told in one line with a next step."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleet_tune import api
from fleet_tune.base.config.fleet_file import default_fleet
from fleet_tune.base.config.request import DEFAULT_TIME_BUDGET_SECS, RunRequest, run_request
from fleet_tune.base.config.values import MAX_SEED
from fleet_tune.base.domain import Limits
from fleet_tune.base.errors import RecordStoreError, RequestError
from fleet_tune.base.records.sharing.shared import STORE_VARIABLE
from fleet_tune.base.records.sharing.store_place import StorePlace


def test_without_a_limit_there_is_the_default_one() -> None:
    request = run_request("net.onnx", out="o")
    assert request == RunRequest(
        "net.onnx", Path("o").absolute(), default_fleet(), Limits(time_budget_secs=DEFAULT_TIME_BUDGET_SECS)
    )
    assert request.records == Path("o").absolute() / "records.db"


@pytest.mark.parametrize(
    ("values", "limits"),
    [
        ({"trials": 5}, Limits(trials=5)),
        ({"task_trials": 5}, Limits(task_trials=5)),
        ({"time_budget_secs": 5}, Limits(time_budget_secs=5.0)),
        ({"trials": 5, "time_budget_secs": 0.5}, Limits(time_budget_secs=0.5, trials=5)),
        ({"trials": np.int64(5)}, Limits(trials=5)),
    ],
)
def test_a_limit_takes_the_place_of_the_default(values: dict[str, Any], limits: Limits) -> None:
    assert run_request("net.onnx", out="o", **values).limits == limits


def test_a_job_of_a_cluster_keeps_its_results_out_of_the_folder_that_ray_removes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", '{"metadata": {"job_submission_id": "resnet18"}}')
    with pytest.raises(RequestError, match="the output folder 'out' would lie in") as told:
        run_request("net.onnx", out="out")
    assert "--out an absolute path" in told.value.next_step
    assert run_request("net.onnx", out=tmp_path).out == tmp_path


def test_the_ends_of_the_ranges_are_in_them() -> None:
    for values in ({"seed": 0, "metrics_port": 1}, {"seed": MAX_SEED, "metrics_port": 65535}):
        request = run_request("net.onnx", out="o", **values)
        assert (request.seed, request.metrics_port) == (values["seed"], values["metrics_port"])


@pytest.mark.parametrize(
    ("values", "told"),
    [
        *(({"time_budget_secs": secs}, "time budget") for secs in (0, 0.0, -1.0, math.nan, math.inf, "5m", True)),
        *(({"trials": count}, "number of trials is") for count in (0, -3, 2.5, math.nan, "9", True)),
        *(({"task_trials": count}, "number of trials of every task") for count in (0, 1.0)),
        *(({"seed": seed}, "seed") for seed in (-1, MAX_SEED + 1, 0.5, None)),
        *(({"metrics_port": port}, "port") for port in (0, 65536, -1, "80")),
        *(
            ({"address": address}, "address of a Ray")
            for address in ("", "local", "ray://h:1", "h:70000", "h", "a..b:6379", 6379)
        ),
        *(({name: value}, "not") for name in ("inputs", "transfer_from", "fleet") for value in (5, "", "a\0b", b"x")),
        *(({name: value}, "true or false") for name in ("pretrained", "trust_model") for value in (None, 1, "no")),
        ({"method": None}, "method is a name"),
        *(({"library": name}, "library is onednn or none") for name in ("xnnpack", "", 5, ["onednn"])),
        *(({"precision": name}, "precision is bf16, fp16, int8w or auto") for name in ("float32", "BF16", "", 16)),
    ],
)
def test_a_value_out_of_its_range_is_told_in_a_line(values: dict[str, Any], told: str) -> None:
    with pytest.raises(RequestError, match=told) as caught:
        run_request("net.onnx", out="o", **values)
    assert repr(next(iter(values.values()))) in caught.value.problem
    assert caught.value.next_step
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("digits", [400, 5000])
@pytest.mark.parametrize("name", ["trials", "task_trials", "time_budget_secs", "seed", "metrics_port"])
def test_numbers_of_many_digits(name: str, digits: int) -> None:
    with pytest.raises(RequestError) as caught:
        run_request("net.onnx", out="o", **{name: 10**digits})
    assert len(str(caught.value)) < 300


def test_what_the_python_api_is_given_in_the_place_of_paths_and_networks() -> None:
    for wrong in (None, 5, b"net"):
        with pytest.raises(RequestError, match="a network is a path"):
            api.plan(wrong)
        with pytest.raises(RequestError, match="a record database is a path"):
            api.compile_network("net.onnx", records=wrong, out="o")
        with pytest.raises(RequestError, match="the output folder is a path"):
            api.tune("net.onnx", out=wrong)  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="a compiled network is a path"):
            api.load(wrong)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="the progress callback is a function, not 5"):
        api.tune("net.onnx", out="o", on_progress=5)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="the progress callback is a function, not 5"):
        api.collect("net.onnx", task_trials=1, out="o", on_progress=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        ["--time-budget", "nan"],
        ["--time-budget", "-5"],
        ["--time-budget", "9" * 400],
        ["--time-budget", "\u0663m"],
        ["--trials", "9" * 400],
        ["--trials", "9" * 5000],
        ["--trials", "-1"],
        ["--seed", "-1"],
        ["--seed", "9" * 400],
        ["--metrics-port", "0"],
        ["--address", "not a host"],
        ["--inputs", "x" * 5000],
        ["--fleet", "x" * 5000],
    ],
)
def test_wrong_options_end_in_two_lines(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    from fleet_tune.cli import main as cli

    assert cli.main(["tune", "net.onnx", *options]) == 2
    problem, next_step, *others = capsys.readouterr().err.splitlines()
    assert problem.startswith("error: ")
    assert next_step.startswith("next: ")
    assert not others


def test_a_model_is_trusted_where_that_is_said_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from fleet_tune.cli import main as cli

    asked: list[bool] = []
    monkeypatch.setattr(api, "make_plan", lambda request: asked.append(request.trust_model))
    monkeypatch.setattr("fleet_tune.report.run.render_plan", lambda _plan: "")
    for options in ([], ["--trust-model"]):
        assert cli.main(["tune", "net.pt2", "--dry-run", *options]) == 0
    api.plan("net.pt2")
    api.plan("net.pt2", trust_model=True)
    assert asked == [False, True, False, True]


def test_the_store_is_the_users_unless_another_or_none_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(STORE_VARIABLE, str(tmp_path / "mine.db"))
    request = run_request("net.onnx", out="o")
    assert (request.store, request.store_named) == (StorePlace(tmp_path / "mine.db"), False)
    request = run_request("net.onnx", out="o", store=tmp_path / "other.db")
    assert (request.store, request.store_named) == (StorePlace(tmp_path / "other.db"), True)
    assert run_request("net.onnx", out="o", store="").store is None
    assert run_request("net.onnx", out="o", collects=True).store is None
    assert run_request("net.onnx", out="o", store="team.db").store == StorePlace(Path.cwd() / "team.db")
    for wrong in (5, "a\0b", b"x"):
        with pytest.raises(RequestError, match="record store") as caught:
            run_request("net.onnx", out="o", store=wrong)  # type: ignore[arg-type]
        assert "--store" in caught.value.next_step


def test_a_file_of_inputs_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "inputs.npz").touch()
    assert run_request("net.onnx", out="o", inputs=tmp_path / "inputs.npz").inputs == tmp_path / "inputs.npz"
    for refused in (
        lambda: run_request("net.onnx", out="o", inputs=tmp_path / "other.npz"),
        lambda: api.compile_network("net.onnx", records="r", out=tmp_path / "out", inputs=tmp_path / "other.npz"),
    ):
        with pytest.raises(RequestError, match=r"there is no file .*other\.npz") as caught:
            refused()
        assert "--inputs" in caught.value.next_step


@pytest.mark.parametrize("content", [None, b"", b"something else"])
def test_what_is_compiled_from_is_a_record_database(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "some").write_bytes(content)
    with pytest.raises(RecordStoreError, match="record database") as caught:
        api.compile_network("net.onnx", records=tmp_path / "some", out=tmp_path / "out")
    assert caught.value.next_step == "give the path of a records.db with --records"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("function", [api.tune, api.plan])
def test_the_python_api_refuses_the_same(function: Any, tmp_path: Path) -> None:
    out = {"out": tmp_path / "out"} if function is api.tune else {}
    with pytest.raises(RequestError, match="not nan"):
        function("net.onnx", time_budget_secs=math.nan, **out)
    with pytest.raises(RequestError, match="not 0"):
        function("net.onnx", trials=0, **out)
    assert not (tmp_path / "out").exists()


def test_priority_and_weight_are_of_runs_that_share_a_cluster() -> None:
    request = run_request("net.onnx", out="o", address="auto", priority=-3, weight=2)
    assert (request.priority, request.weight) == (-3, 2.0)
    for wrong in ({"priority": 1}, {"weight": 2.0}):
        with pytest.raises(RequestError, match="share a cluster") as caught:
            run_request("net.onnx", out="o", **wrong)  # type: ignore[arg-type]
        assert "--address" in caught.value.next_step


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"priority": 101}, "a priority is a whole number from -100 to 100"),
        ({"priority": 1.5}, "a priority is a whole number"),
        ({"weight": 0}, "a weight is a number from 0.01 to 100"),
        ({"weight": float("nan")}, "a weight is a number from 0.01 to 100"),
    ],
)
def test_wrong_priorities_and_weights_are_refused(wrong: dict[str, float], told: str) -> None:
    with pytest.raises(RequestError, match=told):
        run_request("net.onnx", out="o", address="auto", **wrong)  # type: ignore[arg-type]
