"""``python -m bench gpu-first``: the first half hour on a machine with a GPU, in pieces that go on where they ended.

Each piece is a command of its own and leaves two files in the folder: ``NAME.log``, and ``NAME.json`` once it has ended
well. The same command skips pieces that have their result, so that the work can be split over several short sessions.
What tuning commands measured before they were cut is in their records, and counts when they go on.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import click

from bench.devices.gpu import fleet_file
from bench.machine import machine
from bench.processes import end_group, last_json, start_logged
from bench.result import BenchError
from fleet_tune.base.records.files.atomic_file import write_atomically

_GRACE_SECS = 20.0
"""Time between the interrupt at a piece's limit and its end by force: records are written, actors end."""
_LEAST_SECS = 20.0
"""A piece is not begun with less time than this."""
_BUDGET_SECS = 120.0
_OPERATORS = "bench/networks/gpu_kernels.py:operators"


@dataclass(frozen=True)
class Piece:
    """One command. ``{fleet}``, ``{work}`` and ``{budget}`` in its arguments are the fleet file, a folder of its own
    and the seconds of tuning."""

    name: str
    about: str
    args: tuple[str, ...]
    limit_secs: float


_ON_THE_GPU = ("--time-budget", "{budget}s", "--fleet", "{fleet}", "--out", "{work}", "--json")


def _tuned(network: str, *options: str) -> tuple[str, ...]:
    return ("-m", "fleet_tune", "tune", network, *_ON_THE_GPU, *options)


def _collected(*options: str) -> tuple[str, ...]:
    return ("-m", "fleet_tune", "dataset", "collect", _OPERATORS, "--per-task", "64", *_ON_THE_GPU, *options)


def _in_torch(network: str, *sides: str) -> tuple[str, ...]:
    return ("-m", "bench.peers.torch_gpu", "--model", network, *(part for side in sides for part in ("--side", side)))


_CALLED, _COMPILED = ("eager", "graph", "graph-tf32", "graph-fp16"), ("compile", "compile-fp16")
_PUBLIC = "bench/networks/public_networks.py"
_RESNET, _BERT = f"{_PUBLIC}:resnet18", f"{_PUBLIC}:bert_two_layers"
PIECES = (
    Piece("probe", "the device's probes", ("-m", "fleet_tune", "device", "check", "{fleet}", "--json"), 60),
    Piece("float32", "random candidates of every operator; each new best is checked", _collected(), 180),
    Piece("float16", "the same on tensor cores", _collected("--precision", "fp16"), 180),
    Piece("resnet18", "a convolutional network", _tuned(_RESNET), 300),
    Piece("resnet18-fp16", "the same on tensor cores", _tuned(_RESNET, "--precision", "fp16"), 300),
    Piece("resnet18-torch", "the same in PyTorch", _in_torch(_RESNET, *_CALLED), 120),
    Piece("resnet18-compile", "the same by torch.compile", _in_torch(_RESNET, *_COMPILED), 300),
    Piece("bert", "two layers of BERT", _tuned(_BERT), 300),
    Piece("bert-fp16", "the same on tensor cores", _tuned(_BERT, "--precision", "fp16"), 300),
    Piece("bert-torch", "the same in PyTorch", _in_torch(_BERT, *_CALLED), 120),
    Piece("bert-compile", "the same by torch.compile", _in_torch(_BERT, *_COMPILED), 300),
    Piece("kernels", "kernels beside MetaSchedule's", ("-m", "bench", "gpu", "--trials", "64", "--json"), 420),
)


def run(
    pieces: Sequence[Piece], out: Path, secs: float, fleet: Path, budget_secs: float = _BUDGET_SECS
) -> dict[str, str]:
    """Run the pieces that have no result in ``out``, for ``secs`` altogether. Returns what became of each: ``done``,
    ``there already``, ``failed: ...`` or ``no time left``."""
    deadline = time.monotonic() + secs
    states = {}
    for piece in pieces:
        result = out / f"{piece.name}.json"
        left = deadline - time.monotonic()
        if result.exists():
            states[piece.name] = "there already"
        elif left < _LEAST_SECS:
            states[piece.name] = "no time left"
        else:
            click.echo(f"{piece.name}: {piece.about}", err=True)
            try:
                found = _result(piece, out, min(piece.limit_secs, left), fleet, budget_secs)
                _write(result, found)
                states[piece.name] = "done"
            except BenchError as error:
                states[piece.name] = f"failed: {error}"
        click.echo(f"{piece.name}: {states[piece.name]}", err=True)
    return states


def _result(piece: Piece, out: Path, limit_secs: float, fleet: Path, budget_secs: float) -> dict[str, Any]:
    """Run a piece and return the JSON object on its last line. Raises BenchError where it fails or has not ended in
    time; its output is in the log either way."""
    log = out / f"{piece.name}.log"
    values = {"{fleet}": fleet, "{work}": out / "work" / piece.name, "{budget}": f"{budget_secs:g}"}
    args = [reduce(lambda text, name: text.replace(name, str(values[name])), values, each) for each in piece.args]
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
    return last_json(text, piece.name)


def _write(path: Path, found: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(found).encode() + b"\n")


def _fleet(out: Path, target: dict[str, Any]) -> Path:
    path = out / "fleet.toml"
    path.write_text(fleet_file(target))
    return path


def command() -> click.Command:
    """The command ``gpu-first``."""

    def call(out: Path, secs: float, budget_secs: float, only: tuple[str, ...]) -> None:
        from bench.devices.gpu_probe import probe_in_child

        out.mkdir(parents=True, exist_ok=True)
        gpu = probe_in_child()
        if gpu["reason"]:
            raise BenchError(f"nothing to run: {gpu['reason']}")
        smi = shutil.which("nvidia-smi")
        driver = subprocess.run([smi, "-q"], capture_output=True, text=True, timeout=60).stdout if smi else ""
        _write(out / "machine.json", {"gpu": gpu, "machine": machine(), "driver": driver[:4000]})
        chosen = [piece for piece in PIECES if not only or piece.name in only]
        states = run(chosen, out, secs, _fleet(out, gpu["target"]), budget_secs)
        click.echo(json.dumps(states))

    options = [
        click.Option(["--out"], type=click.Path(path_type=Path), required=True, help="Folder of the results."),
        click.Option(["--secs"], type=float, default=1500.0, show_default=True, help="Time of this call."),
        click.Option(
            ["--budget-secs"], type=float, default=_BUDGET_SECS, show_default=True, help="Tuning time of each piece."
        ),
        click.Option(["--only"], multiple=True, type=click.Choice([piece.name for piece in PIECES])),
    ]
    text = "The first half hour on a machine with a GPU, in pieces; the same command goes on where it ended."
    return click.Command("gpu-first", params=list(options), callback=call, help=text)
