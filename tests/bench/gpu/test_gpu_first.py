"""The jobs of the first half hour on a GPU: each keeps what it found, and the same call goes on where it ended."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench.gpu.first import claim, run
from bench.gpu.jobs import ON_A_GPU, REHEARSAL, Job, jobs
from bench.gpu.kept_lines import KeptLines
from bench.gpu.page import page
from bench.networks import gpu_kernels
from bench.peers.example import load_example
from bench.processes import ROOT
from bench.result import BenchError


def job(name: str, code: str, limit_secs: float = 60) -> Job:
    return Job(name, "a test", ("-c", code, "{fleet}", "{work}"), limit_secs)


def run_bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", "gpu-first", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800)


def test_a_job_leaves_its_result_and_its_log(tmp_path: Path) -> None:
    says = "import sys, json; print('on the way'); print(json.dumps({'fleet': sys.argv[1], 'work': sys.argv[2]}))"
    assert run([job("one", says)], tmp_path, 60, Path("a.toml")) == {"one": "done"}
    assert json.loads((tmp_path / "one.json").read_text()) == {"fleet": "a.toml", "work": f"{tmp_path}/work/one"}
    assert "on the way" in (tmp_path / "one.log").read_text()


def test_what_has_a_result_is_not_run_again_and_what_failed_is(tmp_path: Path) -> None:
    fails = job("bad", "raise SystemExit('no device')")
    states = run([job("good", "print('{}')"), fails], tmp_path, 60, Path("a.toml"))
    assert states["good"] == "done"
    assert "no device" in states["bad"]
    again = run([job("good", "raise SystemExit(1)"), job("bad", "print('{}')")], tmp_path, 60, Path("a.toml"))
    assert again == {"good": "there already", "bad": "done"}


def test_a_job_that_takes_too_long_is_interrupted_and_has_no_result(tmp_path: Path) -> None:
    code = (
        "import signal, sys, pathlib\n"
        "signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path(sys.argv[2] + '.stopped').touch(), sys.exit(143)))\n"
        "pathlib.Path(sys.argv[2] + '.began').parent.mkdir(parents=True, exist_ok=True)\n"
        "signal.pause()"
    )
    states = run([job("slow", code, limit_secs=3)], tmp_path, 60, Path("a.toml"))
    assert states["slow"].startswith("failed: not done after 3 s")
    assert (tmp_path / "work" / "slow.stopped").exists()
    assert not (tmp_path / "slow.json").exists()


def test_results_of_other_settings_are_refused(tmp_path: Path) -> None:
    settings = {"rehearse": False, "budget_secs": 120.0, "gpu": "H200"}
    claim(tmp_path, settings)
    claim(tmp_path, settings)
    for other in ({"rehearse": True}, {"budget_secs": 60.0}, {"gpu": "H100"}):
        with pytest.raises(BenchError, match=r"has results of .* name another folder with --out"):
            claim(tmp_path, {**settings, **other})
    (tmp_path / "settings.json").unlink()
    (tmp_path / "machine.json").touch()  # of a call that kept none
    with pytest.raises(BenchError, match="whose settings are not known"):
        claim(tmp_path, settings)


def test_a_rehearsal_goes_on_with_the_same_budget_alone(tmp_path: Path) -> None:
    arguments = ("--rehearse", "--out", str(tmp_path), "--secs", "1", "--only", "probe")
    assert run_bench(*arguments).returncode == 0
    again = run_bench(*arguments, "--budget-secs", "7")
    assert again.returncode != 0
    assert "name another folder with --out" in again.stderr


def test_no_job_is_begun_without_time(tmp_path: Path) -> None:
    assert run([job("one", "print('{}')")], tmp_path, 1, Path("a.toml")) == {"one": "no time left"}


def test_output_that_is_no_result_is_a_failure(tmp_path: Path) -> None:
    assert run([job("one", "print('hello')")], tmp_path, 60, Path("a.toml"))["one"].startswith("failed: one: its last")


@pytest.mark.parametrize("job", [*jobs(ON_A_GPU), *jobs(REHEARSAL)], ids=lambda each: each.name)
def test_a_job_names_networks_that_exist_and_takes_less_than_eight_minutes(job: Job) -> None:
    for each in job.args:
        file, _, function = each.partition(":")
        if file.endswith(".py"):
            assert f"def {function}() -> Example:" in Path(file).read_text()
    assert job.limit_secs < 480


def test_the_rehearsal_has_the_same_jobs() -> None:
    real, rehearsed = jobs(ON_A_GPU), jobs(REHEARSAL)
    assert [job.name for job in real] == [job.name for job in rehearsed]
    assert len({job.name for job in real}) == len(real)
    assert [job.args[:2] for job in real] == [job.args[:2] for job in rehearsed]


def test_the_operators_are_one_network() -> None:
    network, inputs = load_example("bench/networks/gpu_kernels.py:operators")
    outputs = network(*inputs)
    assert len(outputs) > 20


def test_there_are_twenty_kernels_and_eight_are_recorded() -> None:
    assert len(gpu_kernels.KERNELS) == 20
    assert len(gpu_kernels.RECORDED) == len(set(gpu_kernels.RECORDED) & set(gpu_kernels.KERNELS)) == 8


def test_a_kernel_alone_computes_what_it_does_among_the_others() -> None:
    network, inputs = load_example("bench/networks/gpu_kernels.py:tiny")
    product, image = network(*inputs)
    (_, first), (convolution, second) = network.examples(inputs).values()  # type: ignore[operator]
    plain, (of_plain,) = convolution.plain(*second)
    assert torch.equal(product, first[0] @ first[1])
    assert of_plain.shape == (1, 16, 8, 8)
    assert torch.allclose(plain(of_plain).permute(0, 2, 3, 1), image, atol=1e-6)


def test_a_machine_without_a_gpu_is_told_so(tmp_path: Path) -> None:
    done = run_bench("--out", str(tmp_path))
    if done.returncode == 0:
        pytest.skip("this machine has a GPU")
    assert "bench: nothing to run: " in done.stderr


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_rehearsal_leaves_a_card(tmp_path: Path) -> None:
    """Every kind of job but those that need transformers and PyTorch's compiler, on this machine's CPU; one network."""
    names = [job.name for job in jobs(REHEARSAL)]
    left_out = ("llama", "bert", "compile", "bfloat16", "int8", "fp16", "float16")
    chosen = [name for name in names if not any(part in name for part in left_out)]
    assert {"probe", "rules-float32", "kernels-float32", "kernels-metaschedule-float32", "dataset-float32"} < {*chosen}
    options = [part for name in chosen for part in ("--only", name)]
    done = run_bench("--rehearse", "--out", str(tmp_path), "--secs", "1700", "--budget-secs", "4", *options)
    states = json.loads(done.stdout.splitlines()[-1])
    logs = {name: (tmp_path / f"{name}.log").read_text()[-1500:] for name in chosen if states[name] != "done"}
    assert not logs, logs
    card = json.loads((tmp_path / "card.json").read_text())
    assert {"probe", "rules", "kernels", "networks", "datasets"} <= set(card)
    assert all(kernel["secs"]["ours"] for kernel in card["kernels"]["float32"]["kernels"].values())
    theirs = json.loads((tmp_path / "kernels-metaschedule-float32.json").read_text())
    kept = KeptLines(tmp_path / "work/kernels-metaschedule-float32/batches.jsonl").found.values()
    assert theirs["valid"] > 0
    assert theirs["trials"] == sum(each["trials"] for each in kept)
    (tmp_path / "cards").mkdir()
    (tmp_path / "cards" / "rehearsal.json").write_text(json.dumps(card))
    assert "### Kernels, float32" in page(tmp_path / "cards")
