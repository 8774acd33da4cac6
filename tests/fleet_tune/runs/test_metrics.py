from __future__ import annotations

import dataclasses
import json
import math
import re
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import fleet_tune
from fleet_tune.base.domain import Measurement, Outcome, Record
from fleet_tune.base.errors import UserError
from fleet_tune.base.processes import pid_namespace
from fleet_tune.base.results import NetworkResult, Progress, TaskProgress
from fleet_tune.base.stages import DurationCounter, StageProgress
from fleet_tune.runs.callbacks.run_metrics import RunMetrics
from fleet_tune.runs.metrics import PHASES, TEXT_FILE, Metrics, RunInfo, _reached_at
from tests.helpers.prometheus import scraping
from tests.helpers.records import make_record
from tests.helpers.tasks import make_candidate

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"


def _record(uid: str, measurement: Measurement) -> Record:
    return make_record(make_candidate("w@zen5", 1), measurement, uid)


def _task(name: str, best_secs: float, trials: int = 3) -> TaskProgress:
    return TaskProgress(f"{name}@zen5", name, "zen5", 2, 1e9, 1, trials, best_secs)


def _progress(*tasks: TaskProgress, devices: dict[str, str], queues: dict[str, int]) -> Progress:
    return Progress("tuning", 60.0, 300.0, None, 6, 6, {"ok": 6}, 2.5, queues, devices, tasks)


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    served = Metrics(0, run=RunInfo("net.onnx", "r1", "fleet", "7"))
    yield served
    served.close()


def _text(metrics: Metrics) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def _samples(metrics: Metrics) -> dict[tuple[str, tuple[str, ...]], float]:
    """Value by sample name and label values (in alphabetical order of the labels)."""
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(_text(metrics))
        for sample in family.samples
    }


def _fill(metrics: Metrics) -> None:
    metrics.observe(_record("a", Measurement(Outcome.OK, (1e-3,), build_secs=0.25, measure_secs=0.04)))
    metrics.observe(_record("b", Measurement(Outcome.OK, (2e-3,), build_secs=0.35, measure_secs=0.06)))
    metrics.observe(_record("c", Measurement(Outcome.BUILD_ERROR, build_secs=0.1)))
    metrics.update(
        _progress(
            _task("conv", 2e-3),
            _task('dense "quoted"\\', 5e-4),
            devices={"a": "good", "b": "good", "c": "suspect"},
            queues={"build": 4, "measure": 1},
        )
    )


def test_records_become_counters_and_histograms(metrics: Metrics) -> None:
    before = _samples(metrics)
    assert {outcome.value for outcome in Outcome} == {k[1][0] for k in before if k[0] == "fleet_tune_trials_total"}
    _fill(metrics)
    samples = _samples(metrics)
    assert samples["fleet_tune_trials_total", ("ok",)] == 2
    assert samples["fleet_tune_trials_total", ("build_error",)] == 1
    assert samples["fleet_tune_trials_total", ("run_error",)] == 0
    assert samples["fleet_tune_build_seconds_count", ()] == 3
    assert samples["fleet_tune_build_seconds_sum", ()] == pytest.approx(0.7)
    assert samples["fleet_tune_build_seconds_bucket", ("0.2",)] == 1
    assert samples["fleet_tune_measure_seconds_count", ()] == 2, "a failed build was not measured"
    assert samples["fleet_tune_measure_seconds_bucket", ("0.05",)] == 1


def test_snapshots_become_gauges(metrics: Metrics) -> None:
    _fill(metrics)
    samples = _samples(metrics)
    assert samples["fleet_tune_trials_per_second", ()] == 2.5
    assert samples["fleet_tune_devices", ("good",)] == 2
    assert samples["fleet_tune_devices", ("suspect",)] == 1
    assert samples["fleet_tune_queue_length", ("build",)] == 4
    assert samples["fleet_tune_task_trials", ("zen5", "conv")] == 3
    assert samples["fleet_tune_task_best_seconds", ("zen5", "conv")] == 2e-3
    assert samples["fleet_tune_network_best_seconds", ("zen5",)] == pytest.approx(2 * 2e-3 + 2 * 5e-4)
    assert samples["fleet_tune_run_info", ("fleet", "net.onnx", "r1", "7", fleet_tune.__version__)] == 1


def test_what_bounds_a_run_is_a_metric(metrics: Metrics) -> None:
    waiting = replace(_progress(devices={}, queues={}), device_time={"zen5": {"measure": 0.6, "build": 0.4}})
    metrics.update(waiting)
    samples = _samples(metrics)
    assert samples["fleet_tune_device_time_ratio", ("zen5", "build")] == 0.4
    assert samples["fleet_tune_device_time_ratio", ("zen5", "search")] == 0.0
    assert samples["fleet_tune_limited_by", ("zen5", "build")] == 1
    metrics.update(replace(waiting, device_time={"zen5": {"measure": 1.0}}))
    samples = _samples(metrics)
    assert samples["fleet_tune_device_time_ratio", ("zen5", "build")] == 0.0
    bounds = {labels[1] for (name, labels), value in samples.items() if name == "fleet_tune_limited_by" and value}
    assert bounds == {"measure"}


def test_what_devices_tell_of_their_hardware(metrics: Metrics) -> None:
    _fill(metrics)
    assert not [name for name, _ in _samples(metrics) if "celsius" in name or "hertz" in name]
    told = {"hot": {"temperature_celsius": 81.5, "clock_hertz": 1.2e9, "speed": 1.4}, "shy": {"speed": 1.0}}
    metrics.update(replace(_progress(devices={}, queues={}), vitals=told))
    samples = _samples(metrics)
    assert samples["fleet_tune_device_temperature_celsius", ("hot",)] == 81.5
    assert samples["fleet_tune_device_clock_hertz", ("hot",)] == 1.2e9
    assert samples["fleet_tune_device_speed", ("hot",)] == 1.4
    assert samples["fleet_tune_device_speed", ("shy",)] == 1.0
    assert ("fleet_tune_device_temperature_celsius", ("shy",)) not in samples


def test_a_revision_is_no_trial(metrics: Metrics) -> None:
    metrics.observe(replace(_record("a", Measurement(Outcome.OK, (1e-3,), build_secs=0.25)), revision=1))
    samples = _samples(metrics)
    assert samples["fleet_tune_trials_total", ("ok",)] == 0
    assert samples["fleet_tune_build_seconds_count", ()] == 0


def test_restarts_of_processes_are_counted_by_role(metrics: Metrics) -> None:
    last = _progress(devices={}, queues={})
    assert _samples(metrics)["fleet_tune_process_restarts_total", ("recorder",)] == 0
    for restarts in ({"recorder": 1}, {"recorder": 1}, {"recorder": 3, "searcher": 1}):
        metrics.update(dataclasses.replace(last, restarts=restarts))
    samples = _samples(metrics)
    counted = [samples["fleet_tune_process_restarts_total", (each,)] for each in ("recorder", "searcher", "device")]
    assert counted == [3, 1, 0]


def test_a_state_or_queue_that_is_gone_drops_to_zero(metrics: Metrics) -> None:
    _fill(metrics)
    metrics.update(_progress(_task("conv", 2e-3), devices={"a": "good", "b": "lost", "c": "lost"}, queues={"build": 1}))
    samples = _samples(metrics)
    assert [samples["fleet_tune_devices", (state,)] for state in ("good", "suspect", "lost")] == [1, 0, 2]
    assert samples["fleet_tune_queue_length", ("measure",)] == 0


def test_no_latency_is_shown_before_there_is_one(metrics: Metrics) -> None:
    metrics.update(_progress(_task("conv", math.inf), _task("dense", 1e-3), devices={}, queues={}))
    samples = _samples(metrics)
    assert samples["fleet_tune_task_best_seconds", ("zen5", "dense")] == 1e-3
    assert ("fleet_tune_task_best_seconds", ("zen5", "conv")) not in samples
    assert ("fleet_tune_network_best_seconds", ("zen5",)) not in samples


def test_every_metric_is_documented_and_every_documented_metric_exists(metrics: Metrics) -> None:
    _fill(metrics)
    metrics.update(replace(_progress(devices={}, queues={}), model_unix_secs=1.7e9))
    metrics.publish([NetworkResult("zen5", Path("out"), 2e-3, 0.5, 4e-3, 1e-6, 2e-6)])
    metrics.end()
    served = set(re.findall(r"^# TYPE (fleet_tune_\S+)", _text(metrics), re.MULTILINE))
    documented = set(re.findall(r"^\| `(\w+)`", DOCS.read_text(), re.MULTILINE))
    assert served == {name for name in documented if not name.startswith("fleet_tune_retune_")}


def test_what_was_measured_of_the_network_is_the_last_word(tmp_path: Path) -> None:
    run = RunMetrics(None, "127.0.0.1", None, RunInfo("a.onnx", "r1"), tmp_path)
    run.before()
    run.on_phase("compiling")
    run.on_published([NetworkResult("zen5", tmp_path, 2e-3, 0.5, None, 1e-6, 2e-6)])
    run.close()
    families = {each.name: each for each in text_string_to_metric_families((tmp_path / TEXT_FILE).read_text())}
    latency = {each.labels["variant"]: each.value for each in families["fleet_tune_network_latency_seconds"].samples}
    assert latency == {"published": 2e-3, "tuned": 2e-3, "untuned": 0.5}
    phases = {each.labels["phase"] for each in families["fleet_tune_phase"].samples if each.value}
    assert phases == {"ended"}
    assert families["fleet_tune_end_timestamp_seconds"].samples[0].value > 0
    assert not [name for name in families if name.startswith("process_")]
    assert {
        (each.labels["network"], each.labels["run"]) for family in families.values() for each in family.samples
    } == {("a.onnx", "r1")}


@pytest.mark.parametrize(
    ("host", "address"),
    [("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "127.0.0.1"), ("::", "[::1]"), ("fe80::1", "[fe80::1]")],
)
def test_prometheus_gets_an_address_that_it_can_reach(host: str, address: str) -> None:
    assert _reached_at(host) == address


def test_times_are_time_stamps(metrics: Metrics) -> None:
    before = time.time()
    samples = _samples(metrics)
    assert before - 60 < samples["fleet_tune_start_timestamp_seconds", ()] <= before
    assert ("fleet_tune_last_record_timestamp_seconds", ()) not in samples
    _fill(metrics)
    assert before <= _samples(metrics)["fleet_tune_last_record_timestamp_seconds", ()] <= time.time()
    assert samples["process_resident_memory_bytes", ()] > 0


def test_a_run_is_in_one_phase(metrics: Metrics) -> None:
    for phase in PHASES:
        metrics.enter(phase)
        samples = _samples(metrics)
        assert {each: samples["fleet_tune_phase", (each,)] for each in PHASES} == {e: e == phase for e in PHASES}


def test_the_readings_of_a_device_end_with_it(metrics: Metrics) -> None:
    readings = {"a": {"clock_hertz": 2e9, "speed": 1.0}, "b": {"clock_hertz": 3e9}}
    metrics.update(replace(_progress(devices={}, queues={}), vitals=readings))
    assert _samples(metrics)["fleet_tune_device_clock_hertz", ("b",)] == 3e9
    metrics.update(replace(_progress(devices={}, queues={}), vitals={"a": readings["a"]}))
    samples = _samples(metrics)
    assert samples["fleet_tune_device_clock_hertz", ("a",)] == 2e9
    assert ("fleet_tune_device_clock_hertz", ("b",)) not in samples


def test_the_folder_tells_where_they_are_and_keeps_the_last(tmp_path: Path) -> None:
    targets = tmp_path / "targets"
    served = Metrics(0, run=RunInfo("net.onnx", "r1"), folder=tmp_path, targets=targets)
    [target] = targets.iterdir()
    assert json.loads(target.read_text()) == [
        {"targets": [f"127.0.0.1:{served.port}"], "labels": {"network": "net.onnx"}}
    ]
    _fill(served)
    assert not (tmp_path / TEXT_FILE).exists()
    served.close()
    assert not list(targets.iterdir())
    families = {each.name: each for each in text_string_to_metric_families((tmp_path / TEXT_FILE).read_text())}
    assert [sample.value for sample in families["fleet_tune_network_best_seconds"].samples] == [pytest.approx(5e-3)]


def test_files_of_processes_that_are_gone_are_removed_from_the_targets(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    namespace = pid_namespace().strip("pid:[]")
    (tmp_path / f"old.{gone.pid}.1.{namespace}.json").write_text("[]")
    (tmp_path / "by-hand.json").write_text("[]")
    served = Metrics(0, run=RunInfo("net.onnx", "r1"), targets=tmp_path)
    names = {path.name.partition(".")[0] for path in tmp_path.iterdir()}
    served.close()
    assert names == {"r1", "by-hand"}


def test_prometheus_takes_the_folder_of_the_targets(tmp_path: Path, prometheus_dir: Path) -> None:
    """As docs/metrics.md has it."""
    [text] = re.findall(r"```yaml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert "/metrics-targets/*.json" in text
    config = tmp_path / "prometheus.yml"
    served = Metrics(0, run=RunInfo("net.onnx", "r1"), targets=tmp_path / "metrics-targets")
    config.write_text(text.replace("/home/me/.local/share/fleet-tune", str(tmp_path)))
    checked = subprocess.run(
        [prometheus_dir / "promtool", "check", "config", config],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    served.close()
    assert checked.returncode == 0, checked.stderr
    assert "FAILED" not in checked.stdout + checked.stderr


def test_stages_become_counters_gauges_and_histograms(metrics: Metrics) -> None:
    durations, waits = DurationCounter(), DurationCounter()
    durations.add(0.3)
    waits.add(3e-6)
    waits.add(1e3)
    stage = StageProgress(9, 5, 1, 0, durations.histogram, waits.histogram)
    metrics.update(replace(_progress(devices={}, queues={}), stages={"build": stage}))
    samples = _samples(metrics)
    events = {labels[0]: value for (name, labels), value in samples.items() if name.endswith("stage_candidates_total")}
    assert events == {"begun": 9, "done": 5, "failed": 1, "returned": 0}
    assert samples["fleet_tune_stage_in_progress", ("build",)] == 3
    assert samples["fleet_tune_stage_seconds_bucket", ("0.2", "build")] == 0
    assert samples["fleet_tune_stage_seconds_bucket", ("0.5", "build")] == 1
    assert samples["fleet_tune_stage_seconds_sum", ("build",)] == pytest.approx(0.3)
    assert samples["fleet_tune_stage_wait_seconds_bucket", ("100.0", "build")] == 1
    assert samples["fleet_tune_stage_wait_seconds_bucket", ("+Inf", "build")] == 2


def test_the_runtime_says_how_it_is(tmp_path: Path) -> None:
    (tmp_path / "records.db").write_bytes(b"x" * 100)
    served = Metrics(0, folder=tmp_path)
    served.update(_progress(devices={}, queues={}))
    samples = _samples(served)
    assert samples["fleet_tune_store_bytes", ()] == 100
    assert samples["fleet_tune_scheduler_lag_seconds", ()] == 0
    assert ("fleet_tune_model_timestamp_seconds", ()) not in samples
    for number in range(8):
        candidate = replace(make_candidate("w@zen5", number), predicted_secs=2.0 + number)
        served.observe(make_record(candidate, Measurement(Outcome.OK, (1.0 + number,)), str(number)))
    served.update(replace(_progress(devices={}, queues={}), loop_lag_secs=0.25, model_unix_secs=1.7e9))
    samples = _samples(served)
    served.close()
    assert samples["fleet_tune_scheduler_lag_seconds", ()] == 0.25
    assert samples["fleet_tune_model_timestamp_seconds", ()] == 1.7e9
    assert samples["fleet_tune_prediction_rank_correlation", ("zen5",)] == pytest.approx(1.0)


def test_a_push_gateway_gets_the_metrics_of_the_network(tmp_path: Path) -> None:
    """A run without a port pushes alone."""
    pushed: list[tuple[str, str, bytes]] = []

    class Gateway(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            pushed.append((self.command, self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Gateway)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = f"127.0.0.1:{server.server_port}"
    run = RunMetrics(None, "127.0.0.1", address, RunInfo("nets/a.onnx", "r1"), tmp_path)
    run.before()
    run.on_record(_record("a", Measurement(Outcome.OK, (1e-3,))))
    run.close()
    server.shutdown()
    thread.join()
    server.server_close()
    [(command, path, body)] = pushed
    assert command == "PUT"
    assert path.startswith("/metrics/job/fleet-tune/network@base64/")
    assert 'fleet_tune_trials_total{outcome="ok"} 1.0' in body.decode()


def test_a_push_gateway_that_is_not_there_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    run = RunMetrics(None, "127.0.0.1", address, RunInfo("a.onnx", "r1"), tmp_path)
    run.before()
    run.close()
    assert f"the push gateway {address} does not take the metrics" in caplog.text
    assert (tmp_path / TEXT_FILE).is_file()


def test_what_is_no_push_gateway_is_a_warning_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 20)
                connection.sendall(b"SSH-2.0-OpenSSH\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        run = RunMetrics(0, "127.0.0.1", address, RunInfo("a.onnx", "r1"), tmp_path)
        run.before()
        run.close()
        thread.join()
    assert f"the push gateway {address} does not take the metrics" in caplog.text
    assert (tmp_path / TEXT_FILE).is_file()


def test_an_address_of_another_machine_is_a_user_error() -> None:
    with pytest.raises(UserError) as caught:
        Metrics(0, "192.0.2.1")
    assert caught.value.problem.startswith("cannot serve metrics on port 0 of 192.0.2.1: ")
    assert "--metrics-host" in caught.value.next_step


def test_a_taken_port_is_a_user_error(metrics: Metrics) -> None:
    with pytest.raises(UserError) as caught:
        Metrics(metrics.port)
    assert caught.value.problem == f"port {metrics.port} of 127.0.0.1 is taken by another program"
    assert "--metrics-port" in caught.value.next_step


def test_closing_frees_the_port() -> None:
    first = Metrics(0)
    first.close()
    second = Metrics(first.port)
    assert second.port == first.port
    second.close()


def test_promtool_finds_nothing_to_object_to(metrics: Metrics, prometheus_dir: Path) -> None:
    _fill(metrics)
    done = subprocess.run(
        [prometheus_dir / "promtool", "check", "metrics"],
        input=_text(metrics),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_real_prometheus_scrapes_the_run(
    metrics: Metrics, prometheus_dir: Path, free_port: int, tmp_path: Path
) -> None:
    _fill(metrics)
    with scraping(prometheus_dir, metrics.port, free_port, tmp_path) as query:

        def wait_for(expression: str, expected: float) -> None:
            deadline = time.monotonic() + 60
            while (values := query(expression)) != [expected]:
                assert time.monotonic() < deadline, f"{expression} is {values}, not {expected}"
                threading.Event().wait(0.05)

        wait_for('up{job="fleet-tune"}', 1)
        wait_for('fleet_tune_trials_total{outcome="ok"}', 2)
        wait_for("sum(fleet_tune_trials_total)", 3)
        wait_for('fleet_tune_network_best_seconds{device_class="zen5"}', 0.005)
        metrics.observe(_record("d", Measurement(Outcome.OK, (1e-3,))))
        wait_for('fleet_tune_trials_total{outcome="ok"}', 3)
