from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fleet_tune
from fleet_tune import api
from fleet_tune.base.config.fleet_file import load_fleet
from fleet_tune.base.config.request import RunRequest
from fleet_tune.base.domain import Limits
from fleet_tune.base.errors import NetworkError
from fleet_tune.base.results import NetworkResult, Plan, Progress, TaskProgress, TuneResult
from fleet_tune.cli import main as cli
from policies.search.methods import METHOD_NAMES

TASK = TaskProgress("h@zen5", "conv", "zen5", 2, 2e9, 3, 8, 1e-3, best_rule="register_blocked")
RESULT = TuneResult(
    network="net",
    out=Path("out"),
    tasks=(TASK,),
    outcomes={"ok": 7, "build_error": 1},
    new_trials=8,
    elapsed_secs=65.0,
    interrupted=False,
    networks=(NetworkResult("zen5", Path("out"), 2e-3, 0.5, 4e-3, 1e-6, 2e-6, framework="PyTorch"),),
)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What these results name as their output folder lies here."""
    monkeypatch.chdir(tmp_path)


class RecordedOutcome:
    """Stands for a function of the API that carries out a request: keeps the requests, reports progress once, returns
    the result."""

    def __init__(self, result: Any) -> None:
        self.result = result
        self.requests: list[RunRequest] = []

    def __call__(self, request: RunRequest, on_progress: Callable[[Progress], None] | None = None) -> Any:
        if on_progress is not None:
            on_progress(
                Progress("tuning", 1.0, 60.0, None, 8, 8, {"ok": 8}, 2.0, {"build": 1}, {"local": "good"}, (TASK,))
            )
        self.requests.append(request)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> RecordedOutcome:
    recorded = RecordedOutcome(RESULT)
    monkeypatch.setattr(api, "run_tuning", recorded)
    return recorded


def test_the_options_reach_the_run(tuned: RecordedOutcome, tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text('[[device]]\nname = "a"')
    arguments = (
        f"tune dir/networks.py:resnet18 --method random --trials 64 --time-budget 1m30s --fleet {file} --out o"
        " --address h:1 --seed 7 --metrics-port 9464"
    )
    assert cli.main(arguments.split()) == 0
    assert tuned.requests == [
        RunRequest(
            network="dir/networks.py:resnet18",
            out=Path("o").absolute(),
            fleet=load_fleet(file),
            limits=Limits(time_budget_secs=90.0, trials=64),
            method="random",
            seed=7,
            address="h:1",
            metrics_port=9464,
        )
    ]


def test_the_api_makes_the_same_request(tuned: RecordedOutcome) -> None:
    assert cli.main(["tune", "net.onnx", "--out", "o", "--trials", "5", "--transfer-from", "d", "--no-pretrained"]) == 0
    api.tune("net.onnx", out="o", trials=5, transfer_from="d", pretrained=False)
    from_command_line, from_python = tuned.requests
    assert from_command_line == from_python


@pytest.mark.parametrize(
    ("network", "out"),
    [
        ("dir/networks.py:resnet18", "fleet-tune-out/resnet18"),
        ("dir/my net.v2.onnx", "fleet-tune-out/my_net.v2"),
        ("net.pt2", "fleet-tune-out/net"),
        (":", "fleet-tune-out/network"),
    ],
)
def test_the_default_folder_is_named_after_the_network(tuned: RecordedOutcome, network: str, out: str) -> None:
    assert cli.main(["tune", network]) == 0
    (request,) = tuned.requests
    assert request.out == Path(out).absolute()
    assert request.limits == Limits(time_budget_secs=600.0)


def test_the_summary_goes_to_stdout_and_progress_to_stderr(
    tuned: RecordedOutcome, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["tune", "net.onnx"]) == 0
    out, err = capsys.readouterr()
    assert "2.00× as fast as PyTorch" in out
    assert "8 trials" in err
    assert "8 trials" not in out
    assert tuned.requests


def test_json_is_the_last_line_of_stdout_and_alone_there(
    tuned: RecordedOutcome, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["tune", "net.onnx", "--json"]) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    result = json.loads(out)
    assert result["model"] == "net"
    assert result["networks"][0]["speedup_over_framework"] == 2.0
    assert "as fast as PyTorch" in err
    assert tuned.requests


@pytest.mark.usefixtures("tuned")
def test_the_result_is_left_in_a_file_that_a_line_of_its_own_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "result.json").write_text("of an earlier command")
    for options in ([], ["--json"]):
        assert cli.main(["tune", "net.onnx", *options]) == 0
        out, err = capsys.readouterr()
        assert f"result: {tmp_path}/out/result.json" in (err if options else out).splitlines()
    assert json.loads((tmp_path / "out" / "result.json").read_text()) == json.loads(out)
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["result.json"]


def test_a_result_that_cannot_be_written_is_told_and_the_run_has_ended_well(
    tuned: RecordedOutcome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").write_text("a file")
    assert cli.main(["tune", "net.onnx", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["model"] == "net"
    assert "warning: result.json cannot be written to out: " in err
    assert "result:" not in err
    assert tuned.requests


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_prints_its_summary_and_tells_the_signal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int, code: int
) -> None:
    stopped = TuneResult("net", Path("out"), (TASK,), {"ok": 8}, 8, 5.0, True, (), number)
    monkeypatch.setattr(api, "run_tuning", RecordedOutcome(stopped))
    assert cli.main(["tune", "net.onnx", "--json"]) == code
    out, err = capsys.readouterr()
    assert json.loads(out)["interrupted"] is True
    assert "Stopped early" in err
    assert json.loads(Path("out/result.json").read_text())["interrupted"] is True


def test_a_signal_before_there_is_anything_ends_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "run_tuning", interrupted)
    assert cli.main(["tune", "net.onnx"]) == 130
    assert "stopped before" in capsys.readouterr().err


def test_dry_run_prints_the_plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    task = TaskProgress("h@zen5", "conv", "zen5", 2, 2e9, 3, 0, math.inf)
    planned = RecordedOutcome(Plan("net", "fleet", {"local": "zen5"}, (task,), None, 600.0))
    monkeypatch.setattr(api, "make_plan", planned)
    assert cli.main(["tune", "net.onnx", "--dry-run", "--trials", "5"]) == 0
    assert "Nothing was measured" in capsys.readouterr().out
    assert cli.main(["tune", "net.onnx", "--dry-run", "--json"]) == 0
    out, err = capsys.readouterr()
    plan = json.loads(out)
    assert plan["tasks"][0]["best_secs"] is None
    assert plan["time_budget_secs"] == 600
    assert "Nothing was measured" in err
    assert planned.requests[0].limits == Limits(trials=5)
    assert (planned.requests[0].transfer_from, planned.requests[0].pretrained) == (None, True)
    assert plan["transferred"] is None
    assert cli.main(["tune", "net.onnx", "--dry-run", "--transfer-from", "last", "--no-pretrained"]) == 0
    assert (planned.requests[2].transfer_from, planned.requests[2].pretrained) == (Path("last"), False)


def test_compile_builds_from_records(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []

    def compile_network(network: str, **options: Any) -> TuneResult:
        calls.append((network, options))
        return RESULT

    monkeypatch.setattr(api, "compile_network", compile_network)
    assert (
        cli.main(["compile", "net.onnx", "--records", "a/records.db", "--out", "b", "--inputs", "i.npz", "--json"]) == 0
    )
    options: dict[str, Any] = {
        "records": Path("a/records.db"),
        "out": Path("b"),
        "fleet": None,
        "inputs": Path("i.npz"),
    }
    options |= {"trust_model": False, "precision": None, "max_error": None, "shapes": None, "shapes_weights": None}
    options |= {"library": None}
    assert calls == [("net.onnx", options)]
    assert json.loads(capsys.readouterr().out)["new_trials"] == 8


def test_a_network_that_is_not_published_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = dataclasses.replace(RESULT.networks[0], published="nothing", problem="it is wrong")
    monkeypatch.setattr(api, "compile_network", lambda *_, **__: dataclasses.replace(RESULT, networks=(nothing,)))
    assert cli.main(["compile", "net.onnx", "--records", "a/records.db", "--out", "b"]) == 2
    out, err = capsys.readouterr()
    assert "not published" in out
    assert "error: the network of zen5 is not published: it is wrong\nnext: report the network" in err


def test_the_summary_can_be_saved_as_a_picture(tuned: RecordedOutcome, tmp_path: Path) -> None:
    assert cli.main(["tune", "net.onnx", "--svg", str(tmp_path / "s.svg")]) == 0
    assert (tmp_path / "s.svg").read_text().startswith("<svg")
    assert tuned.requests


@pytest.mark.parametrize(
    ("arguments", "problem", "next_step"),
    [
        ("tune", "Missing argument 'NETWORK'.", "fleet-tune tune --help"),
        ("tune a b", "Got unexpected extra argument", "fleet-tune tune --help"),
        ("tune a --nonsense", "No such option '--nonsense'.", "fleet-tune tune --help"),
        (
            "tune a --trials 0",
            "the number of trials is a whole number from 1 to 1000000000, not 0",
            "give another with --trials",
        ),
        ("tune a --trials many", "Invalid value for '--trials': 'many' is not a valid integer", "--help"),
        ("tune a --time-budget 5x", "'5x' is not a duration", "90s, 5m or 1h30m"),
        ("tune a --metrics-port 70000", "the port of the metrics is a whole number from 1 to 65535", "--metrics-port"),
        ("tune a --seed -1", "a seed is a whole number from 0 to 4294967295, not -1", "--seed"),
        ("tune a --fleet none.toml", "cannot read the fleet file none.toml: No such file", "--fleet"),
        ("tune a --dry-run --fleet none.toml", "cannot read the fleet file none.toml: No such file", "--fleet"),
        ("compile a --records r --out o --fleet none.toml", "cannot read the fleet file none.toml: No such", "--fleet"),
        ("tune a --svg /nowhere/at/all.svg", "--svg: /nowhere/at/all.svg cannot be written", "name another file"),
        ("compile a --records r --out o --svg /", "--svg: / cannot be written", "name another file"),
        ("compile a --records r.db", "Missing option '--out'.", "fleet-tune compile --help"),
        (f"store key f n --records {'9' * 400}", "Invalid value for '--records'", "fleet-tune store key --help"),
        ("store key f n --connections 262144", "Invalid value for '--connections'", "fleet-tune store key --help"),
        ("store serve f --host a..b", "--host 'a..b' is not the name or address of a host", "give another"),
        ("device sing", "No such command 'sing'.", "fleet-tune device --help"),
        ("reprot", "No such command 'reprot'. Did you mean 'report'?", "fleet-tune --help"),
    ],
)
def test_a_wrong_command_line_is_told_in_two_lines(
    arguments: str, problem: str, next_step: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments.split()) == 2
    out, err = capsys.readouterr()
    told, advice = err.splitlines()
    assert out == ""
    assert told.startswith(f"error: {problem}")
    assert advice.startswith("next: ")
    assert next_step in advice


def test_a_user_error_of_several_lines_is_told_in_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(api, "run_tuning", RecordedOutcome(NetworkError("bad model:\n  line 1\n", "mend\nit")))
    assert cli.main(["tune", "net.onnx"]) == 2
    assert capsys.readouterr().err.splitlines()[-2:] == ["error: bad model: line 1", "next: mend it"]


def test_our_own_faults_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "run_tuning", RecordedOutcome(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli.main(["tune", "net.onnx"])


@pytest.mark.parametrize("command", [[], ["device"]])
def test_no_command_prints_the_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(command) == 2
    assert "Usage: fleet-tune" in capsys.readouterr().err


def test_the_help_names_every_method_that_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tune", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in METHOD_NAMES)


def test_the_version_is_an_option_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert fleet_tune.__version__ in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out == f"fleet-tune {fleet_tune.__version__}\n"


def test_a_device_is_served_on_loopback_with_our_stopping_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    from devices.device_factory import STOP_DECISION
    from devices.server import server

    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    monkeypatch.setattr(server, "serve", lambda *a, **k: calls.append((a, k)))
    assert cli.main(["device", "serve", "--port", "0", "--threads", "3"]) == 0
    assert cli.main(["device", "serve", "--bind", "0.0.0.0"]) == 0
    assert [(*at, options["threads"]) for at, options in calls] == [("127.0.0.1", 0, 3), ("0.0.0.0", 9090, None)]
    assert calls[0][1]["decide"] == STOP_DECISION


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "code",
    [
        "import fleet_tune",
        "from fleet_tune.cli import main as cli; assert cli.main(['--help']) == 0",
        "from fleet_tune.cli import main as cli; assert cli.main(['tune', '--help']) == 0",
        "from fleet_tune.cli import main as cli; assert cli.main(['tune', 'a', '--time-budget', '5x']) == 2",
    ],
)
def test_nothing_heavy_is_loaded_before_it_is_needed(code: str) -> None:
    heavy = ("ray", "torch", "tvm", "rich", "numpy", "onnx")
    done = _python(f"{code}\nimport sys\nloaded = [m for m in {heavy} if m in sys.modules]\nassert not loaded, loaded")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "program", [[sys.executable, "-m", "fleet_tune"], [Path(sys.executable).parent / "fleet-tune"]]
)
def test_a_process_ends_with_code_2_and_no_traceback(program: list[str], tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text('[[device]]\nname = "a"\n\nthread = 3\n')
    done = subprocess.run(
        [*program, "tune", "net.onnx", "--fleet", "fleet.toml"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(fleet_tune.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines() == [
        "error: fleet.toml, line 4: unknown key 'thread' in [[device]]",
        "next: did you mean threads? keys known here: name, connect, via, target, threads, device_class, library, "
        "key_file, count, connect_secs, upload_secs, silence_secs, candidate_secs, probe_secs, oracle_secs",
    ]
    assert not (tmp_path / "fleet-tune-out").exists()


def test_a_served_device_says_when_it_is_ready_and_ends_on_sigterm() -> None:
    command = [sys.executable, "-m", "fleet_tune", "device", "serve", "--no-key", "--port", "0", "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        ready = server.stdout.readline()
        found = re.search(r"127\.0\.0\.1:(\d+) \(1 threads\)", ready)
        assert found, ready
        socket.create_connection(("127.0.0.1", int(found[1])), timeout=10).close()
        server.send_signal(signal.SIGTERM)
        _, err = server.communicate(timeout=60)
    assert server.returncode == 0
    assert "Traceback" not in err


def test_an_address_of_another_machine_cannot_be_served(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["device", "serve", "--host", "192.0.2.1", "--port", "9090"]) == 2
    assert capsys.readouterr().err.startswith("error: cannot listen on 192.0.2.1:9090")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["watch", "x", "--every", "0"], "from 0.1 to 3600"),
        (["frameworks", "n.onnx", "x", "--rounds", "0"], "from 1 to 1000"),
        (["store", "key", "x", "me", "--records", "-1"], "at least 0"),
    ],
)
def test_ranges_are_told_in_words(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    assert told in capsys.readouterr().err
    assert cli.main([*arguments[: 1 + (arguments[0] == "store")], "--help"]) == 0
    shown = capsys.readouterr().out
    assert "<=" not in shown
    assert "RANGE" not in shown


def test_the_version_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == fleet_tune.__version__
