"""ONNX's own tests of single operators, run through our import: which are right, which refused, which at fault.

``python -m tests.zoo.onnx_nodes [--every N] [--kept FILE] [--json FILE] [--write DOCUMENT]`` runs them, with TVM's
default lowering and no tuning, in a child process that may die, prints what is at fault, and writes
docs/generated/operators.md (see operators_document.py). The exit code is 1 where a case ended in a traceback, or
computed something wrong that the check against the framework did not refuse.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import io
import json
import os
import re
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.zoo.children import answers
from tests.zoo.kept import Kept, left
from tests.zoo.operators_document import DISAGREES, FAULTS, KINDS, REFUSED, RIGHT, TRACEBACK, WRONG, Outcome, document

CASE_SECS = 60
"""A case that takes more processor time counts as a traceback: the largest takes two seconds."""

_ROUNDING = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 1.6e-2}
"""Error relative to an output's largest value that rounding leaves beyond ONNX's tolerances, which are for float32."""

_CORNERS = "its expected corners do not align: it divides by the size before rounding; right is as ONNX Runtime"
OTHERWISE = {
    "test_resize_downsample_scales_cubic_align_corners": _CORNERS,
    "test_resize_downsample_scales_linear_align_corners": _CORNERS,
}
"""Cases whose expected values contradict the operator's definition, and why: their values are to be those of ONNX
Runtime."""


@functools.cache
def cases() -> list[Any]:
    """All node tests of the installed onnx, in its order."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # their expected values overflow on purpose
        return list(load_model_tests(kind="node"))


def outcome_of(case: Any) -> Outcome:
    """Imports, compiles and runs ``case`` on this machine, in this process.

    The tests feed everything as inputs of the network, axes, shapes and factors too. A network of a user has those as
    constants: where a case is refused as it is, it is tried with them fixed.
    """
    outcome = _outcome(case)
    if outcome.kind == REFUSED:
        names, fixed = _with_parameters_fixed(case)
        if names:
            again = _outcome(fixed)
            return replace(again, fixed=names)
    return outcome


def _with_parameters_fixed(case: Any) -> tuple[tuple[str, ...], Any]:
    """``case`` with its inputs of one dimension or none as constants, the first apart: that is the data.

    The shapes of the others are those of the arrays, as a user fixes them."""
    import numpy as np
    import onnx
    from onnx import numpy_helper

    (inputs, expected), *_ = case.data_sets
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    arrays = [numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value for value in inputs]
    if not all(isinstance(array, np.ndarray | np.generic) for array in arrays):
        return (), case
    del model.graph.input[:]
    names, left = [], []
    for at, (value, array) in enumerate(zip(case.model.graph.input, arrays, strict=True)):
        if at and np.ndim(array) <= 1:
            names.append(value.name)
            tensor = inputs[at] if isinstance(inputs[at], onnx.TensorProto) else numpy_helper.from_array(array)
            weight = model.graph.initializer.add()
            weight.CopyFrom(tensor)
            weight.name = value.name
        else:
            left.append(inputs[at])
            model.graph.input.append(value)
    return tuple(names), replace(case, model=model, data_sets=[(left, expected)])


def _outcome(case: Any) -> Outcome:
    from fleet_tune.base.errors import NetworkError

    next_step = ""
    try:
        kind, line = _tried(case)
    except NetworkError as error:
        next_step = error.next_step
        several_lines = "\n" in str(error)
        kind = TRACEBACK if several_lines else DISAGREES if "disagrees" in error.problem else REFUSED
        line = error.problem
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        kind, line = (
            TRACEBACK,
            f"{type(error).__name__}: {str(error)[:300]} ({Path(place.filename).name}:{place.lineno})",
        )
    return Outcome(case.name, operator_of(case), kind, " ".join(line.split()), next_step)


def operator_of(case: Any) -> str:
    """The operator that a case tests. One that is written out as a function has the name of the case that is not."""
    operators = {node.op_type for node in case.model.graph.node}
    whole = _whole_cases().get(re.sub(r"_expanded.*", "", case.name)) if len(operators) > 1 else None
    return whole or (operators.pop() if len(operators) == 1 else case.model.graph.node[-1].op_type)


@functools.cache
def _whole_cases() -> dict[str, str]:
    """The operator of each case of one operator, by the case's name."""
    kinds = ((case.name, {node.op_type for node in case.model.graph.node}) for case in cases())
    return {name: operators.pop() for name, operators in kinds if len(operators) == 1}


def _tried(case: Any) -> tuple[str, str]:
    import onnx
    from onnx import numpy_helper

    from devices.builds.executables import compile_host
    from devices.networks.frontend import load_network
    from devices.networks.tasks.lowering import check_network, import_network
    from devices.targets import resolve_target
    from fleet_tune.base.domain import DeviceClass

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "node.onnx"
        onnx.save(case.model, str(file))
        network = load_network(file)
        lowered = import_network(network, DeviceClass("cpu", resolve_target("native", 2)))
        run = compile_host(lowered.module)
        for inputs, expected in case.data_sets:
            arrays = [numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x for x in inputs]
            wanted = [numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x for x in expected]
            if case.name in OTHERWISE:
                wanted = list(network.given(tuple(arrays), "").framework_outputs())
            difference = _difference(run(*arrays), wanted, case.rtol, case.atol)
            if difference:
                check_network(lowered, network)
                return WRONG, difference
    return RIGHT, OTHERWISE.get(case.name, "")


def _largest(values: Any) -> float:
    import numpy as np

    finite = np.abs(values[np.isfinite(values)])
    return float(finite.max()) if finite.size else 0.0


def _difference(outputs: Sequence[Any], expected: Sequence[Any], rtol: float, atol: float) -> str:
    """Empty where the outputs are as expected."""
    import numpy as np

    if len(outputs) != len(expected):
        return f"{len(outputs)} outputs instead of {len(expected)}"
    for at, (ours, theirs) in enumerate(zip(outputs, expected, strict=True)):
        wanted = np.asarray(theirs)
        if ours.shape != wanted.shape or ours.dtype != wanted.dtype:
            return f"output {at} is {ours.dtype}{ours.shape} instead of {wanted.dtype}{wanted.shape}"
        if wanted.dtype.kind in "OU":
            equal = bool(np.array_equal(ours, wanted))
        else:
            kind = np.complex128 if wanted.dtype.kind == "c" else np.float64
            left, right = ours.astype(kind), wanted.astype(kind)
            rounding = _ROUNDING.get(wanted.dtype.name, 0.0) * _largest(right)
            equal = bool(np.allclose(left, right, rtol=rtol, atol=max(atol, rounding), equal_nan=True))
        if not equal:
            return f"output {at} has other values"
    return ""


def outcomes(
    names: Sequence[str] | None = None, every: int = 1, processes: int = 1, kept: Path | None = None
) -> Iterator[Outcome]:
    """The outcome of each case of ``names`` (all, where None), of every ``every``-th, tried by ``processes`` children.

    A child that dies, hangs, or takes longer than ``CASE_SECS``, is a traceback of its case; another goes on. Those
    that the file ``kept`` has of an earlier call, which was interrupted, come first.
    """
    chosen = [case for case in cases() if names is None or case.name in names][::every]
    wanted = {case.name for case in chosen}
    store = Kept(kept)
    for name, fields in store.results.items():
        if name in wanted:
            yield Outcome(**{**fields, "fixed": tuple(fields["fixed"])})
    for case, answer in answers(left([[case] for case in chosen], store, _name), _serve, (), CASE_SECS, processes):
        outcome = (
            answer if isinstance(answer, Outcome) else Outcome(case.name, operator_of(case), TRACEBACK, str(answer))
        )
        store.keep(case.name, asdict(outcome))
        yield outcome
    store.finished()


def _name(case: Any) -> str:
    name: str = case.name
    return name


def _serve(pipe: Connection) -> None:
    """The child: outcomes of the cases that come, until the pipe closes. What native code prints goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    with contextlib.suppress(EOFError), contextlib.redirect_stderr(io.StringIO()):
        while True:
            pipe.send(outcome_of(pipe.recv()))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--every", type=int, default=1, help="take every N-th case only")
    parser.add_argument("--match", default="", help="take cases whose name contains this only")
    parser.add_argument(
        "--processes",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="cases that are tried at a time (as many as there are CPUs)",
    )
    parser.add_argument(
        "--kept", type=Path, help="keep outcomes in this file as they come; a run that was interrupted goes on from it"
    )
    parser.add_argument("--json", type=Path, help="write all outcomes to this file")
    parser.add_argument("--write", type=Path, help="write what passes and what is refused to this Markdown document")
    parser.add_argument("--read", type=Path, help="take the outcomes from a file that --json wrote: run nothing")
    options = parser.parse_args(arguments)
    if options.read:
        source = iter(
            Outcome(**{**entry, "fixed": tuple(entry["fixed"])}) for entry in json.loads(options.read.read_text())
        )
    else:
        names = [case.name for case in cases() if options.match in case.name]
        source = outcomes(names, options.every, options.processes, options.kept)
    results = []
    for outcome in source:
        results.append(outcome)
        if outcome.kind in (*FAULTS, DISAGREES):
            print(f"{outcome.kind:9}  {outcome.name}: {outcome.line}", flush=True)
    if not options.read:
        order = {case.name: at for at, case in enumerate(cases())}
        results.sort(key=lambda outcome: order[outcome.name])  # the document does not depend on who came first
    counts = collections.Counter(outcome.kind for outcome in results)
    print("  ".join(f"{kind}: {counts[kind]}" for kind in KINDS))
    if options.json:
        options.json.write_text(json.dumps([asdict(outcome) for outcome in results], indent=1) + "\n")
    if options.write:
        import onnx

        options.write.write_text(document(results, onnx.__version__))
    return 1 if any(counts[kind] for kind in FAULTS) else 0


if __name__ == "__main__":
    sys.exit(main())
