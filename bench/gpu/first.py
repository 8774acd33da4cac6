"""``python -m bench gpu-first``: the first half hour on a machine with a GPU, in jobs that can be resumed.

Each job (:mod:`bench.gpu.jobs`) leaves two files in the folder: ``NAME.log``, and ``NAME.json`` if it succeeded.
Running the same command again skips the jobs that have a result, so the work can be split over several short sessions.
An interrupted job keeps its partial results in ``work/NAME`` and resumes from them. ``card.json`` is the summary.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import click

from bench.gpu.card import make_card
from bench.gpu.jobs import BUDGET_SECS, KERNELS_SHARE, ON_A_GPU, REHEARSAL, Job, jobs
from bench.gpu.kernels import fleet_file
from bench.machine import machine
from bench.processes import end_group, last_json, start_logged
from bench.result import BenchError
from fleet_tune.base.records.files.atomic_file import write_atomically

_GRACE_SECS = 20.0
"""Time between SIGTERM at a job's time limit and SIGKILL: the job writes its records and ends its actors."""
_LEAST_SECS = 20.0
"""A job is not started with less time than this."""


def run(chosen: Sequence[Job], out: Path, secs: float, fleet: Path, budget_secs: float = BUDGET_SECS) -> dict[str, str]:
    """Run the jobs that have no result in ``out``, for ``secs`` in total. Return the state of each job by name:
    ``done``, ``there already``, ``failed: ...`` or ``no time left``.

    ``fleet``: the fleet file. ``budget_secs``: tuning time of each network.
    """
    deadline = time.monotonic() + secs
    states = {}
    for job in chosen:
        result = out / f"{job.name}.json"
        left = deadline - time.monotonic()
        if result.exists():
            states[job.name] = "there already"
        elif left < _LEAST_SECS:
            states[job.name] = "no time left"
        else:
            click.echo(f"{job.name}: {job.about}", err=True)
            try:
                found = _result(job, out, min(job.limit_secs, left), fleet, budget_secs)
                _write(result, found)
                states[job.name] = "done"
            except BenchError as error:
                states[job.name] = f"failed: {error}"
        click.echo(f"{job.name}: {states[job.name]}", err=True)
    return states


def _result(job: Job, out: Path, limit_secs: float, fleet: Path, budget_secs: float) -> dict[str, Any]:
    """Run a job and return the JSON object on its last line of output. Raise BenchError if the job fails or exceeds
    ``limit_secs``. The log has its output in any case."""
    log = out / f"{job.name}.log"
    values = {"{fleet}": fleet, "{work}": out / "work" / job.name, "{budget}": f"{budget_secs:g}"}
    values["{kernels_budget}"] = f"{KERNELS_SHARE * budget_secs:g}"
    args = [reduce(lambda text, name: text.replace(name, str(values[name])), values, each) for each in job.args]
    with log.open("w") as output:
        child = start_logged(args, output)
        try:
            child.wait(limit_secs)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_GRACE_SECS)
            raise BenchError(f"not done after {limit_secs:.0f} s; it goes on from there ({log})") from None
        finally:
            end_group(child)
    text = log.read_text(errors="replace")
    if child.returncode != 0:
        raise BenchError(f"exit code {child.returncode} ({log}): {text.strip().splitlines()[-1:]}")
    return last_json(text, job.name)


def claim(out: Path, settings: Mapping[str, Any]) -> None:
    """Store the settings of the results in ``out``. Raise BenchError if ``out`` has results with other or unknown
    settings: this call would take them for its own."""
    file = out / "settings.json"
    if not file.exists():
        if (out / "machine.json").exists():
            raise BenchError(f"{out} has results whose settings are not known: name another folder with --out")
        _write(file, dict(settings))
        return
    before = json.loads(file.read_text())
    if before != settings:
        raise BenchError(f"{out} has results of {before}, not of {dict(settings)}: name another folder with --out")


def _write(path: Path, found: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(found).encode() + b"\n")


def command() -> click.Command:
    """Return the command ``gpu-first``."""
    names = [job.name for job in jobs(ON_A_GPU)]

    def call(out: Path, secs: float, budget_secs: float, only: tuple[str, ...], rehearse: bool) -> None:
        from bench.gpu.probe import probe_in_child

        out = out.absolute()
        out.mkdir(parents=True, exist_ok=True)
        gpu: dict[str, Any] = {"name": "no GPU: a rehearsal", "target": {}} if rehearse else probe_in_child()
        if gpu.get("reason"):
            raise BenchError(f"nothing to run: {gpu['reason']}")
        claim(out, {"rehearse": rehearse, "budget_secs": budget_secs, "gpu": gpu["name"]})
        smi = shutil.which("nvidia-smi")
        driver = subprocess.run([smi, "-q"], capture_output=True, text=True, timeout=60).stdout if smi else ""
        _write(out / "machine.json", {"gpu": gpu, "machine": machine(), "driver": driver[:4000]})
        fleet = out / "fleet.toml"
        fleet.write_text('[[device]]\nname = "cpu"\n' if rehearse else fleet_file(gpu["target"]))
        chosen = [job for job in jobs(REHEARSAL if rehearse else ON_A_GPU) if not only or job.name in only]
        states = run(chosen, out, secs, fleet, budget_secs)
        _write(out / "card.json", make_card(out))
        click.echo(json.dumps(states))

    options = [
        click.Option(["--out"], type=click.Path(path_type=Path), required=True, help="Folder of the results."),
        click.Option(["--secs"], type=float, default=1500.0, show_default=True, help="Time of this call."),
        click.Option(
            ["--budget-secs"],
            type=float,
            default=BUDGET_SECS,
            show_default=True,
            help="Tuning time of each network; the kernels get twice as much.",
        ),
        click.Option(["--only"], multiple=True, type=click.Choice(names), help="Of all, these jobs."),
        click.Option(["--rehearse"], is_flag=True, help="Run the jobs with small networks on this machine's CPU."),
    ]
    text = "The first half hour on a machine with a GPU, in jobs; the same command goes on where it ended."
    return click.Command("gpu-first", params=list(options), callback=call, help=text)
