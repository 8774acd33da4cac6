"""Runners of a network in other frameworks, as their users would run it: PyTorch eager, torch.compile with freezing,
ONNX Runtime and OpenVINO, each on this machine's CPU and in the precision of the network."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from devices.networks.network import Array
from fleet_tune.base.shapes.extent_sums import ExtentSum

Run = Callable[[], Any]
"""Runs the network once, and returns its outputs in the framework's own form."""
Loaded = Callable[[Sequence[torch.Tensor]], Run]
"""A network that a framework has loaded. It takes inputs and returns a runner on them."""


@dataclass(frozen=True)
class NetworkSource:
    """A network in the user's form, with its inputs."""

    module: torch.nn.Module | None
    """None for an ONNX file."""
    file: Path | None
    """The ONNX file; None for a module."""
    inputs: tuple[torch.Tensor, ...]
    shapes: tuple[tuple[int | str, ...], ...] = ()
    """Shapes of the inputs, with names for dynamic extents. Empty for fixed shapes."""

    @property
    def dynamic_axes(self) -> list[dict[int, str]]:
        """Names of the dynamic extents of each input, by axis. Empty for fixed shapes."""
        named = [{at: each for at, each in enumerate(shape) if isinstance(each, str)} for shape in self.shapes]
        return named if any(named) else []

    def torch_module(self) -> torch.nn.Module:
        """Return the module. Raises TypeError for an ONNX file."""
        if self.module is None:
            raise TypeError(f"{self.file} is no torch module: PyTorch cannot run it")
        return self.module

    def onnx_file(self, folder: Path) -> Path:
        """Return the network as an ONNX file. A module is exported into ``folder``."""
        if self.file is not None:
            return self.file
        module, path = self.torch_module(), folder / "model.onnx"
        axes = self.dynamic_axes
        names = [f"input_{at}" for at in range(len(axes))] or None
        named = dict(zip(names or (), axes, strict=True)) or None
        with _stdout_on_stderr():
            try:
                torch.onnx.export(module, self.inputs, str(path), dynamo=False, input_names=names, dynamic_axes=named)
            except Exception:  # the older exporter traces, and fails on masks of newer transformers
                dims = tuple({at: _dimension(name) for at, name in each.items()} for each in axes) or None
                torch.onnx.export(module, self.inputs, str(path), dynamo=True, dynamic_shapes=dims)
        return path


def eager(source: NetworkSource) -> Loaded:
    """PyTorch eager."""
    module = source.torch_module()
    return lambda inputs: lambda: module(*inputs)


def compiled(source: NetworkSource) -> Loaded:
    """torch.compile with freezing: weights become constants and are packed. It needs a C++ compiler."""
    import torch._inductor.config as inductor

    inductor.freezing = True  # type: ignore[attr-defined,unused-ignore]
    dynamic = True if source.dynamic_axes else None
    frozen: Callable[..., Any] = torch.compile(source.torch_module(), dynamic=dynamic)
    return lambda inputs: lambda: frozen(*inputs)


def onnx_runtime(source: NetworkSource) -> Loaded:
    """ONNX Runtime with all of its optimizations."""
    import onnxruntime as ort

    with tempfile.TemporaryDirectory(prefix="fleet-tune-onnx-") as folder:
        options = ort.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        path = str(source.onnx_file(Path(folder)))
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    slots = session.get_inputs()

    def on(inputs: Sequence[torch.Tensor]) -> Run:
        arrays = {slot.name: tensor.numpy() for slot, tensor in zip(slots, inputs, strict=True)}
        return lambda: session.run(None, arrays)

    return on


def openvino(source: NetworkSource, **settings: Any) -> Loaded:
    """OpenVINO with its hint for latency: one stream, with as many threads as torch has."""
    import openvino as ov

    settings |= {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    with tempfile.TemporaryDirectory(prefix="fleet-tune-onnx-") as folder:
        network = ov.Core().compile_model(source.onnx_file(Path(folder)), "CPU", settings)

    def on(inputs: Sequence[torch.Tensor]) -> Run:
        request = network.create_infer_request()
        for slot, tensor in enumerate(inputs):
            request.set_input_tensor(slot, ov.Tensor(tensor.numpy(), shared_memory=True))

        def run() -> list[Array]:
            request.infer()
            return [request.get_output_tensor(slot).data for slot in range(len(network.outputs))]

        return run

    return on


def _dimension(text: str) -> Any:
    """Return a dynamic extent in the form that torch.export takes. torch.export itself finds out the terms of a sum."""
    return torch.export.Dim(text) if ExtentSum.parse(text).is_name else torch.export.Dim.DYNAMIC


_OF_TORCH: Mapping[str, tuple[str, Callable[[NetworkSource], Loaded]]] = {
    "PyTorch": ("torch", eager),
    "torch.compile": ("torch", compiled),
}
_OF_ANY: Mapping[str, tuple[str, Callable[[NetworkSource], Loaded]]] = {
    "ONNX Runtime": ("onnxruntime", onnx_runtime),
    # OpenVINO would compute float32 networks in bfloat16 if the CPU supports it.
    "OpenVINO": ("openvino", partial(openvino, INFERENCE_PRECISION_HINT="f32")),
}


def installed(is_torch: bool) -> tuple[str, ...]:
    """Return the names of the frameworks that can run a network and are installed. ``is_torch``: the network is a torch
    module."""
    known = {**_OF_TORCH, **_OF_ANY} if is_torch else _OF_ANY
    return tuple(name for name, (package, _) in known.items() if find_spec(package) is not None)


def loaded(name: str, source: NetworkSource) -> Loaded:
    """Load a network in a framework. Raises whatever the framework raises."""
    return {**_OF_TORCH, **_OF_ANY}[name][1](source)


def as_arrays(outputs: Any) -> tuple[Array, ...]:
    """Return outputs in a framework's own form as arrays."""
    values = [outputs] if hasattr(outputs, "shape") else list(outputs)
    return tuple(value.detach().numpy() if hasattr(value, "detach") else np.asarray(value) for value in values)


@contextlib.contextmanager
def _stdout_on_stderr() -> Iterator[None]:
    """Redirect stdout to stderr during the block, for native code too."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
