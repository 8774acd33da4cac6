"""The network that all sides of a benchmark run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.processes import ROOT
from bench.result import BenchError
from devices.networks.frameworks.runners import NetworkSource

Outputs = list[np.ndarray]


@dataclass(frozen=True)
class Example:
    """A network (a torch module or an ONNX file) with the inputs that every side gets."""

    module: torch.nn.Module | None
    """None for an ONNX file."""
    file: Path | None
    """The ONNX file; None for a module."""
    inputs: tuple[torch.Tensor, ...]

    @property
    def source(self) -> NetworkSource:
        """The network as the frameworks take it. PyTorch cannot run an ONNX file."""
        return NetworkSource(self.module, self.file, self.inputs)

    @cached_property
    def expected(self) -> Outputs:
        """The reference outputs: PyTorch's for a module, for an ONNX file those of ONNX Runtime without graph
        optimizations."""
        if self.module is not None:
            with torch.inference_mode():
                return as_arrays(self.module(*self.inputs))
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = ort.InferenceSession(str(self.file), options, providers=["CPUExecutionProvider"])
        return as_arrays(session.run(None, feed(session.get_inputs(), self.inputs)))


def as_arrays(value: Any) -> Outputs:
    """Return the outputs of a side as arrays, whatever form it returns them in."""
    values = [value] if hasattr(value, "shape") else list(value)
    return [item.numpy() if hasattr(item, "numpy") else np.asarray(item) for item in values]


def feed(slots: Sequence[Any], inputs: Sequence[torch.Tensor]) -> dict[str, np.ndarray]:
    """Return the inputs as arrays by name; ``slots``: the inputs of an ONNX Runtime session."""
    return {slot.name: tensor.numpy() for slot, tensor in zip(slots, inputs, strict=True)}


def load(spec: str) -> Example:
    """Return the network of ``file.py:function`` or of an ONNX file, whose inputs are in the ``.npz`` file beside it
    (see :mod:`bench.networks.quantise`). Paths are relative to the repository.

    Raises :class:`BenchError` if a file is missing, or ``spec`` has neither form.
    """
    if not spec.endswith(".onnx"):
        module, inputs = load_example(spec)
        return Example(module, None, inputs)
    path = ROOT / spec
    arrays = path.with_suffix(".npz")
    if not path.is_file() or not arrays.is_file():
        raise BenchError(f"{path} and {arrays.name} beside it are needed: python -m bench.networks.quantise makes both")
    with np.load(arrays) as stored:
        return Example(None, path, tuple(torch.from_numpy(stored[name]) for name in stored.files))


def load_example(spec: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """Return the torch module and the example inputs of ``file.py:function``, with the path relative to the repository.

    Raises :class:`BenchError` for another form.
    """
    path, _, function = spec.partition(":")
    module_spec = spec_from_file_location("bench_model", ROOT / path)
    if module_spec is None or module_spec.loader is None or not function:
        raise BenchError(f"{spec}: not of the form file.py:function")
    module = module_from_spec(module_spec)
    sys.modules["bench_model"] = module
    module_spec.loader.exec_module(module)
    model, inputs = getattr(module, function)()
    return model.eval(), inputs
