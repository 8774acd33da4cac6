"""Seconds that PyTorch takes on the GPU for a network, by its own means.

``python -m bench.peers.torch_gpu --model examples/networks.py:resnet18`` prints one line of JSON: ``sides`` has the
median seconds that a call of each side takes the GPU, by its events; ``calls`` those that a caller waits for it, by the
host's clock, as our networks are timed; ``reasons`` why a side has none. ``best_secs`` is that of ``graph`` on the GPU.

A side is a way of calling, and what may follow it:

==================  =======================================================================================
``eager``           single calls
``graph``           the same calls as one CUDA graph
``compile``         ``torch.compile(mode="max-autotune")``
``-tf32``           products in TF32, which is not float32: ten bits of mantissa. Else TF32 is off
``-fp16``           the network converted to float16. Else it is float32
``-channels-last``  images and filters with their channels last in memory, as our kernels have them
==================  =======================================================================================

``--side`` takes some of them only: the compiler takes minutes. With ``--each`` the network is one of kernels side by
side (:class:`bench.networks.gpu_kernels.SideBySide`), and each is timed by itself: ``kernels`` has the figures of each,
which ``--kept FILE`` keeps at once, so that the same command goes on where it was cut. ``--calls 20`` puts so many
calls into a graph, and its seconds are divided by them: our kernels are timed one after the other too.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor, nn

from bench.gpu.kept_lines import KeptLines
from bench.peers.accelerators import Accelerator, Call, Cuda, Host
from bench.peers.example import load_example
from bench.processes import die_with_parent
from bench.result import BenchError

Example = tuple[nn.Module, tuple[Tensor, ...]]

SIDES = ("eager", "graph", "graph-tf32", "graph-fp16", "compile", "compile-fp16")
_SIDE = re.compile(r"(eager|graph|compile)(-tf32|-fp16)?(-channels-last)?")


def measure(on: Accelerator, example: Example, sides: Sequence[str] = SIDES, calls: int = 1) -> dict[str, Any]:
    """Run a network on each of ``sides``; ``calls``: how many calls a graph has."""
    network, inputs = example
    network, inputs = network.to(on.device), tuple(tensor.to(on.device) for tensor in inputs)
    found: dict[str, float | None] = {}
    waited: dict[str, float] = {}
    reasons = {}
    with torch.inference_mode():
        for side in sides:
            way, options = _read(side)
            count = calls if way == "graph" else 1
            try:
                _use_tf32("-tf32" in options)
                call = _prepared(on, way, _converted(network, inputs, options), count)
                found[side], waited[side] = on.busy_secs(call) / count, on.wait_secs(call) / count
            except Exception as error:  # whatever a compiler or a kernel of PyTorch raises: the other sides count
                found[side], reasons[side] = None, f"{type(error).__name__}: {error}"[:300]
            finally:
                _use_tf32(False)
    about = {"torch": torch.__version__, "gpu": on.name}
    return {"best_secs": found.get("graph"), "sides": found, "calls": waited, "reasons": reasons, **about}


def measure_each(
    on: Accelerator, kernels: Example, sides: Sequence[str], calls: int, kept: KeptLines
) -> dict[str, Mapping[str, Any]]:
    """Run each of some kernels side by side on each of ``sides``; those that are kept are not run again."""
    network, inputs = kernels
    if not hasattr(network, "examples"):  # its file is loaded under another name: the class is another one
        raise BenchError("--each is for kernels side by side (bench/networks/gpu_kernels.py)")
    examples: dict[str, Example] = network.examples(inputs)  # type: ignore[operator]
    for name, (part, own) in examples.items():
        if name not in kept.found:
            example = part.plain(*own) if hasattr(part, "plain") else (part, own)  # type: ignore[operator]
            kept.add(name, measure(on, example, sides, calls))
    return {name: kept.found[name] for name in examples}


def _read(side: str) -> tuple[str, frozenset[str]]:
    """Return the way of a side, and its options."""
    parts = _SIDE.fullmatch(side)
    if parts is None:
        raise BenchError(f"{side} is no side: see the help of this module")
    way, *options = parts.groups()
    return str(way), frozenset(option for option in options if option)


def _prepared(on: Accelerator, way: str, example: Example, calls: int) -> Call:
    network, inputs = example
    if way == "compile":
        compiled = torch.compile(network, mode="max-autotune")
        return lambda: compiled(*inputs)
    if way == "graph":  # which keeps the kernels that it was captured with
        return on.graph(lambda: network(*inputs), calls)
    return lambda: network(*inputs)


def _converted(network: nn.Module, inputs: tuple[Tensor, ...], options: Collection[str]) -> Example:
    """Return a copy of the network that has the options, and its inputs."""
    if "-fp16" in options:
        network = copy.deepcopy(network).half()
        inputs = tuple(tensor.half() if tensor.is_floating_point() else tensor for tensor in inputs)
    if "-channels-last" in options:
        network = copy.deepcopy(network).to(memory_format=torch.channels_last)  # type: ignore[call-overload,unused-ignore]
        inputs = tuple(
            tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor for tensor in inputs
        )
    return network, inputs


def _use_tf32(on: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = on
    torch.backends.cudnn.allow_tf32 = on


@click.command()
@click.option("--model", required=True, help="file.py:function, relative to the repository.")
@click.option("--side", "sides", multiple=True, help="Default: " + ", ".join(SIDES) + ".")
@click.option("--each", is_flag=True, help="Run each kernel of a network of kernels side by side by itself.")
@click.option("--calls", type=click.IntRange(min=1), default=1, show_default=True, help="Calls in a graph.")
@click.option("--kept", type=click.Path(path_type=Path), help="File that keeps the figures of each kernel.")
@click.option("--on", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
def main(model: str, sides: tuple[str, ...], each: bool, calls: int, kept: Path | None, on: str) -> None:
    """Prints the figures as one line of JSON, the last line of output."""
    die_with_parent()
    if each != (kept is not None):
        raise BenchError("--each and --kept belong together")
    if on == "cuda" and not torch.cuda.is_available():
        raise BenchError(f"PyTorch {torch.__version__} cannot use a GPU here")
    processor: Accelerator = Cuda() if on == "cuda" else Host()
    chosen = sides or SIDES
    if kept is not None:
        figures = measure_each(processor, load_example(model), chosen, calls, KeptLines(kept))
        click.echo(json.dumps({"kernels": figures}))
        return
    click.echo(json.dumps(measure(processor, load_example(model), chosen)))


if __name__ == "__main__":
    main()
