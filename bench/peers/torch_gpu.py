"""Seconds that PyTorch itself takes for a network on the GPU.

``python -m bench.peers.torch_gpu --model examples/networks.py:resnet18`` prints one line of JSON. ``sides`` has the
median seconds for which a call of each side keeps the GPU busy, by CUDA events. ``calls`` has the median seconds that a
caller waits for a call, by the host's clock, as our networks are timed. ``reasons`` says why a side failed.
``best_secs`` is the value of ``graph`` in ``sides``.

A side is a way to call the network (the first three), and options that may follow it:

==================  =======================================================================================
``eager``           single calls
``graph``           the same calls as one CUDA graph
``compile``         ``torch.compile(mode="max-autotune")``
``-tf32``           products in TF32, which has only ten bits of mantissa. By default TF32 is off
``-fp16``           the network converted to float16. By default it is float32
``-channels-last``  images and filters with their channels last in memory, as in our kernels
==================  =======================================================================================

``--side`` selects sides: the compiler takes minutes. With ``--each`` the network consists of independent kernels
(:class:`bench.networks.gpu_kernels.SideBySide`), and each kernel is timed by itself. ``kernels`` then has the figures
of each kernel. They are written to ``--kept FILE`` as soon as they are known, so that the same command resumes after an
interruption. Only with ``--each``, ``--calls 20`` puts 20 calls into a graph and divides the graph's seconds by 20: our
kernels are also timed in back-to-back calls.
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
    """Return the figures of a network on each of ``sides`` (see the module's docstring). A side that fails has None
    and its reason. ``calls``: number of calls in a graph."""
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
            except Exception as error:  # PyTorch may raise anything; the other sides go on
                found[side], reasons[side] = None, f"{type(error).__name__}: {error}"[:300]
            finally:
                _use_tf32(False)
    about = {"torch": torch.__version__, "gpu": on.name}
    return {"best_secs": found.get("graph"), "sides": found, "calls": waited, "reasons": reasons, **about}


def measure_each(
    on: Accelerator, kernels: Example, sides: Sequence[str], calls: int, kept: KeptLines
) -> dict[str, Mapping[str, Any]]:
    """Return :func:`measure` of each kernel of a network of independent kernels, by name. Figures that ``kept`` has are
    not measured again, and new ones are added to it.

    Raises :class:`BenchError` for another network.
    """
    network, inputs = kernels
    if not hasattr(network, "examples"):  # isinstance fails: the file is loaded under another module name
        raise BenchError("--each is for kernels side by side (bench/networks/gpu_kernels.py)")
    examples: dict[str, Example] = network.examples(inputs)  # type: ignore[operator]
    for name, (part, own) in examples.items():
        if name not in kept.found:
            example = part.plain(*own) if hasattr(part, "plain") else (part, own)  # type: ignore[operator]
            kept.add(name, measure(on, example, sides, calls))
    return {name: kept.found[name] for name in examples}


def _read(side: str) -> tuple[str, frozenset[str]]:
    """Return the way that a side calls the network, and its options. Raises :class:`BenchError` for an unknown one."""
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
    if way == "graph":  # it keeps the kernels that it was captured with
        return on.graph(lambda: network(*inputs), calls)
    return lambda: network(*inputs)


def _converted(network: nn.Module, inputs: tuple[Tensor, ...], options: Collection[str]) -> Example:
    """Return the network and its inputs, converted as the options say. The given network is not changed."""
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
    """Print the figures as one line of JSON, the last line of output."""
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
