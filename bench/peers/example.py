"""The network that all sides of a benchmark run."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location

import torch

from bench.processes import ROOT
from bench.result import BenchError


def load_example(spec: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """The torch module and example inputs of ``file.py:function``, the path relative to the repository."""
    path, _, function = spec.partition(":")
    module_spec = spec_from_file_location("bench_model", ROOT / path)
    if module_spec is None or module_spec.loader is None or not function:
        raise BenchError(f"{spec}: not of the form file.py:function")
    module = module_from_spec(module_spec)
    sys.modules["bench_model"] = module
    module_spec.loader.exec_module(module)
    model, inputs = getattr(module, function)()
    return model.eval(), inputs
