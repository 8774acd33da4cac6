"""One network of the zoo in one form: exported, imported, described, compiled, run, and compared with PyTorch."""

from __future__ import annotations

import contextlib
import copy
import io
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
import torch

from devices.builds.executables import compile_host
from devices.networks.compiled.network_folder import schedule_kernels
from devices.networks.frontend import load_network
from devices.networks.network import Network
from devices.networks.tasks.lowering import LoweredNetwork, compare, import_network, tolerance
from devices.networks.torch.frontend import array_of
from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass
from fleet_tune.base.errors import NetworkError
from tests.zoo.catalogue import Example, lifeless, tensors, use_installed
from tests.zoo.scheduling import Descriptions
from tests.zoo.written_onnx import OnnxGraph

RIGHT, UNEXPORTED, REFUSED, WRONG, TRACEBACK, LIFELESS = (
    "right",
    "unexported",
    "refused",
    "wrong",
    "traceback",
    "lifeless",
)
KINDS = (RIGHT, UNEXPORTED, REFUSED, WRONG, TRACEBACK, LIFELESS)
FAULTS = (REFUSED, WRONG, TRACEBACK, LIFELESS)
TOLERANCE = 1e-4
"""Largest error of a right output relative to its largest value. Another formula (GELU by tanh) errs by more."""

OF_PYTORCHS, ENLARGED = 2.0, 1e-3
"""A network may enlarge what is rounded early until PyTorch's float32 itself is nearly ``TOLERANCE`` off its float64.
Ours is then right where it is no further from float64 than twice PyTorch's, and than ``ENLARGED``."""

_FAR = "relative error"


@dataclass(frozen=True)
class Result:
    """What became of one network in one form; ``kind`` is one of ``KINDS``.

    ``unexported``: torch itself cannot write the form. ``lifeless``: the network's outputs hardly depend on its inputs,
    so that a comparison would say little. ``tasks``: those that have a sketch. ``import_secs`` and ``describe_secs``:
    seconds of this process's processor time, which other work on the machine does not lengthen; ``wall_secs``: both by
    the clock. ``error``: the largest, relative to the output's largest value. ``left_out``: what the plan would name.
    """

    name: str
    family: str
    form: str
    kind: str
    line: str = ""
    exporter: str = ""
    tasks: int = 0
    import_secs: float = 0.0
    describe_secs: float = 0.0
    wall_secs: float = 0.0
    error: float = float("nan")
    left_out: tuple[str, ...] = ()


def tried(name: str, family: str, form: str, example: Example, descriptions: Descriptions | None) -> Result:
    """Tries ``example`` as ``form`` in this process, untuned, or with the candidates of ``descriptions``; without any,
    its tasks are not described. Never raises an Exception."""
    result = Result(name, family, form, TRACEBACK)
    module, inputs = example
    try:
        reason = lifeless(module, inputs)
        if reason:
            return replace(result, kind=LIFELESS, line=reason)
        with torch.no_grad():
            expected = tuple(array_of(value) for value in tensors(module(*inputs)))
        with tempfile.TemporaryDirectory() as folder:
            try:
                source, exporter = _exported(module, inputs, form, Path(folder))
            except Exception as error:
                return replace(result, kind=UNEXPORTED, line=_place(error))
            result = replace(result, exporter=exporter)
            wall, processor = time.monotonic(), time.process_time()
            network = load_network(source)
            lowered = import_network(network, DeviceClass("cpu", resolve_target("native", 2)))
            result = replace(
                result,
                import_secs=time.process_time() - processor,
                wall_secs=time.monotonic() - wall,
                left_out=tuple(f"without {step}: {reason}" for step, reason in lowered.left_out),
            )
            traces: dict[str, str | None] = {}
            if descriptions is not None:
                result, traces = _described(result, lowered, descriptions)
            outputs = compile_host(schedule_kernels(lowered, traces))(*_arrays(inputs))
            if lowered.quantized:
                # Values between two steps become the one or the other, and a deep network of random weights enlarges
                # that: right is what is within the limit of a run, or as near as the framework's two ways are.
                spread = network.framework.spread()
                limit = tolerance(replace(lowered, framework_spread=spread))
                return _compared(result, outputs, expected, max(limit, OF_PYTORCHS * spread))
            compared = _compared(result, outputs, expected)
            if compared.line.startswith(_FAR):
                compared = _against_float64(compared, outputs, expected, example)
            if compared.kind == WRONG and form == "onnx":
                compared = _against_the_file(compared, outputs, load_network(source).given(_arrays(inputs), ""))
            return compared
    except NetworkError as error:
        several_lines = "\n" in str(error)
        return replace(result, kind=TRACEBACK if several_lines else REFUSED, line=" ".join(error.problem.split()))
    except Exception as error:
        return replace(result, line=_place(error))


def _arrays(inputs: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    return tuple(array_of(value) for value in inputs)


def _place(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text} ({Path(frame.filename).name}:{frame.lineno})"


def _exported(module: torch.nn.Module, inputs: tuple[Any, ...], form: str, folder: Path) -> tuple[Any, str]:
    """What :func:`load_network` takes, and which exporter wrote it. Raises what torch raises."""
    if form == "torch":
        return (module, inputs), ""
    file = folder / f"network.{form}"
    if isinstance(module, OnnxGraph):
        onnx.save(module.model, str(file))
        return file, ""
    with _silent():
        if form == "pt2":
            torch.export.save(torch.export.export(module, inputs), str(file))
            return file, "torch.export"
        use_installed()  # onnxscript, without which torch has the older exporter alone
        try:
            torch.onnx.export(module, inputs, str(file), dynamo=True, verbose=False)
            return file, "torch.export"
        except Exception:
            torch.onnx.export(module, inputs, str(file), dynamo=False)
            return file, "TorchScript"


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


def _described(
    result: Result, lowered: LoweredNetwork, descriptions: Descriptions
) -> tuple[Result, dict[str, str | None]]:
    """``result`` with what describing the tasks took, and the candidates that were asked for, by task."""
    described = {task.id: descriptions.of(task) for task in lowered.tasks}
    secs = sum(each.secs for each in described.values())
    result = replace(
        result,
        tasks=sum(each.sketches > 0 for each in described.values()),
        describe_secs=secs,
        wall_secs=result.wall_secs + sum(each.wall_secs for each in described.values()),
        left_out=result.left_out + tuple(line for each in described.values() for line in each.left_out),
    )
    return result, {task: each.trace for task, each in described.items()}


def _compared(result: Result, outputs: Sequence[Any], expected: Sequence[Any], limit: float = TOLERANCE) -> Result:
    wrong = replace(result, kind=WRONG)
    if len(outputs) != len(expected):
        return replace(wrong, line=f"{len(outputs)} outputs instead of {len(expected)}")
    for at, (ours, theirs) in enumerate(zip(outputs, expected, strict=True)):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return replace(
                wrong, line=f"output {at} is {ours.dtype}{ours.shape} instead of {theirs.dtype}{theirs.shape}"
            )
    error = compare(tuple(outputs), tuple(expected))[1]
    kind = RIGHT if error <= limit else WRONG
    return replace(result, kind=kind, error=error, line="" if kind == RIGHT else f"{_FAR} {error:.2g}")


def _against_float64(compared: Result, outputs: Sequence[Any], expected: Sequence[Any], example: Example) -> Result:
    """``compared``, too far from what PyTorch gives, judged by what PyTorch gives in float64."""
    module, inputs = example
    try:
        wide = copy.deepcopy(module).double()
        with torch.no_grad():
            given = (value.double() if value.is_floating_point() else value for value in inputs)
            exact = tuple(array_of(value) for value in tensors(wide(*given)))
    except Exception:  # a module that is made for float32
        return compared
    ours, theirs = (
        compare(tuple(value.astype(e.dtype) for value, e in zip(values, exact, strict=True)), exact)[1]
        for values in (outputs, expected)
    )
    line = f"{compared.line}; of float64 {ours:.2g}, PyTorch's {theirs:.2g}"
    return replace(compared, kind=RIGHT if ours <= min(OF_PYTORCHS * theirs, ENLARGED) else WRONG, line=line)


def _against_the_file(compared: Result, outputs: Sequence[Any], network: Network) -> Result:
    """``compared``, unless what torch wrote into the ONNX file is another network than the module: ONNX Runtime then
    gives what we give."""
    of_file = _compared(compared, outputs, network.framework.run())
    if of_file.kind != RIGHT:
        return compared
    line = f"torch writes another network: {compared.line}, and {of_file.error:.2g} of what ONNX Runtime gives"
    return replace(compared, kind=UNEXPORTED, line=line)
