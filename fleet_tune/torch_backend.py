"""``torch.compile(module, backend="fleet_tune")``: regions of a module run by the kernels that a record store has for
them.

A region is replaced by the network that is compiled from its records, if this network is correct, and faster in this
process. Every other region stays as it is, and the reason is logged: the region is trained, its shapes vary, it cannot
be imported, or the store has no records of it. Weights are part of the compiled network. If they change, the original
region runs again. It also runs for a second module of the same class, for which TorchDynamo uses the region of the
first. Torch does not count changes through ``.data``, such as ``weight.data.copy_(other)``: compile again after them.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fleet_tune.base.errors import RequestError, UserError
from fleet_tune.base.records.sharing.shared import default_place
from fleet_tune.base.records.sharing.store_place import place_of

_LOG = logging.getLogger(__name__)
_ROUNDS = 7
_ROUND_SECS = 0.05
_OPTIONS = ("records",)

Region = Callable[..., Any]


class _WithoutWeights(torch.nn.Module):
    """A region as a module of its inputs alone.

    Args:
        region: takes its inputs and weights in one list.
        arguments: this list at the time of compiling.
        varying: positions of the inputs in it.
    """

    def __init__(self, region: torch.nn.Module, arguments: Sequence[Any], varying: Sequence[int]) -> None:
        super().__init__()
        self.region, self._varying = region, tuple(varying)
        self._arguments = list(arguments)
        for at in set(range(len(arguments))) - set(varying):
            self.register_buffer(f"weight_{at}", arguments[at].detach())
            self._arguments[at] = None

    def forward(self, *inputs: Any) -> Any:
        weights = (getattr(self, f"weight_{at}") for at in range(len(self._arguments)) if at not in self._varying)
        given = iter(inputs)
        return self.region(
            *(next(given) if at in self._varying else next(weights) for at in range(len(self._arguments)))
        )


def fleet_tune(
    region: torch.fx.GraphModule, arguments: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Region:
    """Return the function that runs instead of a region. This is the interface of a backend of ``torch.compile``.

    Args:
        region: graph that TorchDynamo captured.
        arguments: its inputs and weights.
        options: ``records``, a record store or the output folder of a run; the store of this user by default.

    Raises :class:`RequestError` for other options, and for a store that is missing.
    """
    records = _records(options or {})
    varying = [at for at, each in enumerate(arguments) if not _is_weight(each)]
    reason = _refusal(arguments, varying)
    if not reason and _changes_arguments(region, arguments):
        reason = "it changes its inputs or buffers in place"
    if reason:
        return _left(region, reason)
    folder = tempfile.TemporaryDirectory(prefix="fleet-tune-torch-")
    inputs = tuple(arguments[at] for at in varying)
    try:
        tuned = _compiled(_WithoutWeights(region, arguments, varying).eval(), inputs, records, Path(folder.name))
        run = _guarded(region, tuned, arguments, varying, folder)
        ours, original = _timed(run, region, arguments)
    except UserError as error:
        folder.cleanup()
        return _left(region, str(error))
    except Exception as error:  # a fault of fleet-tune must not end a program that runs without it
        folder.cleanup()
        return _left(region, f"a fault of fleet-tune: {type(error).__name__}: {error}")
    if ours >= original:
        return _left(region, f"it takes {ours * 1e3:.3g} ms, the original {original * 1e3:.3g} ms")
    _LOG.info("a region takes %.3g ms instead of %.3g ms", ours * 1e3, original * 1e3)
    return run


def _records(options: Mapping[str, Any]) -> Path:
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise RequestError(f"the backend has no option {unknown[0]!r}", f"options: {', '.join(_OPTIONS)}")
    named = options.get("records")
    place = default_place() if named is None else place_of(str(named))
    store = None if place is None else place.path
    if store is not None and store.is_dir():
        store /= "records.db"
    if store is None or not store.is_file():
        where = "this user has no record store" if named is None else f"there is no record store {store}"
        raise RequestError(where, "tune the module first, or name one: options={'records': PATH}")
    return store


def _is_weight(argument: Any) -> bool:
    """Return true for parameters and buffers: TorchDynamo gives them as arguments, and marks buffers."""
    return isinstance(argument, torch.nn.Parameter) or getattr(argument, "_dynamo_static_input_type", None) is not None


def _changes_arguments(region: torch.fx.GraphModule, arguments: Sequence[Any]) -> bool:
    """Return true if the region changes its arguments in place. A compiled network changes none, and timing such a
    region would change the tensors of the caller."""
    with torch.inference_mode(False), torch.no_grad():  # inference tensors count no changes
        given = [each.detach().clone() for each in arguments]
        before = [each._version for each in given]
        region(*given)
    return any(each._version != version for each, version in zip(given, before, strict=True))


def _refusal(arguments: Sequence[Any], varying: Sequence[int]) -> str:
    """Return why a region cannot be replaced; empty if it can."""
    if not varying:
        return "it has no input"
    if not all(isinstance(each, torch.Tensor) for each in arguments):
        return "its shapes vary: compile with dynamic=False"
    if torch.is_grad_enabled() and any(each.requires_grad for each in arguments):
        return "it is trained: run it in torch.no_grad()"
    if any(each.device.type != "cpu" for each in arguments):
        return "it is not on the CPU"
    if any(each.is_inference() for at, each in enumerate(arguments) if at not in varying):
        return "its weights were made in torch.inference_mode(), which does not count changes of them"
    return ""


def _compiled(module: torch.nn.Module, inputs: tuple[Any, ...], records: Path, folder: Path) -> Region:
    """Return the module compiled from the records. Raises UserError if no network is published."""
    from fleet_tune.api import compile_network, load

    [network] = compile_network((module, inputs), records=records, out=folder).networks
    if network.published == "nothing":
        raise RequestError(network.problem or "no network was published", "tune the module again")
    return load(folder)


def _guarded(
    region: Region,
    tuned: Region,
    arguments: Sequence[Any],
    varying: Sequence[int],
    folder: tempfile.TemporaryDirectory[str],
) -> Region:
    """Return a function that runs the tuned network while its weights are unchanged, else the original region."""
    weights = [(at, each, _state(each)) for at, each in enumerate(arguments) if at not in varying]

    def run(*given: Any) -> Any:
        if any(given[at] is not each or _state(each) != state for at, each, state in weights):
            return region(*given)
        outputs = tuned(*(given[at] for at in varying))
        return outputs if isinstance(outputs, tuple) else (outputs,)

    run.folder = folder  # type: ignore[attr-defined] # removed with the function
    return run


def _state(weight: torch.Tensor) -> tuple[int, int]:
    """Return what differs after a change of a weight: its memory, and torch's count of its changes."""
    return weight.data_ptr(), weight._version


def _timed(ours: Region, original: Region, arguments: Sequence[Any]) -> tuple[float, float]:
    """Return the median seconds of both regions, which run in turn in this process."""
    times: tuple[list[float], list[float]] = ([], [])
    with torch.no_grad():
        for _ in range(_ROUNDS):
            for run, found in zip((ours, original), times, strict=True):
                run(*arguments)
                begin = time.perf_counter()
                count = 0
                while not count or time.perf_counter() - begin < _ROUND_SECS:
                    run(*arguments)
                    count += 1
                found.append((time.perf_counter() - begin) / count)
    return statistics.median(times[0]), statistics.median(times[1])


def _left(region: Region, reason: str) -> Region:
    _LOG.warning("a region stays as it is: %s", reason)
    return region
