"""A compiled network, loaded and ready to run."""

from __future__ import annotations

import functools
import json
import os
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from devices.builds.executables import Array
from devices.cuda.runtime import prepare_cuda
from devices.error_text import last_line
from devices.host.limits.pool import ThreadPools
from devices.instruction_sets import missing_here
from devices.networks.array_conversion import (
    InputSignature,
    can_pass_directly,
    flat,
    input_signature,
    is_torch,
    shares_memory,
    to_caller,
    to_tvm,
)
from devices.networks.tensor_file import file_digest
from devices.networks.tensor_file import read as read_tensors
from devices.protocol import TensorSpec
from devices.rpc.remote_linking import linked
from devices.targets import device_kind, is_native
from devices.timing.in_network import InNetworkTimes, timed_in_place
from fleet_tune.base.config.values import shown
from fleet_tune.base.errors import OutputFolderError, UserError

_SCHEMA = 1
_LONG_SECS = 0.5
_SEVERAL = (list, tuple, tvm_ffi.Array)
_POOLS = ThreadPools()
_AGAIN = "compile it again with 'fleet-tune compile'"


class NetworkInputError(UserError, ValueError):
    """The inputs of a call do not fit the network: pass others."""


class CompiledNetwork:
    """A callable: ``network(*inputs)`` takes numpy arrays or torch tensors, one for each input, and returns the outputs
    in the same kind: one array or tensor, or a tuple where the network has several outputs.

    ``manifest``: what is known of it (see :mod:`devices.networks.compiled`). Calls from several threads take turns."""

    def __init__(
        self,
        module: Any,
        parameters: Sequence[Array],
        inputs: Sequence[tuple[str, TensorSpec]],
        kind: str,
        threads: int,
        manifest: Mapping[str, Any],
    ) -> None:
        self.manifest = manifest
        self.threads = threads
        self._inputs = tuple((name, spec.shape, spec.dtype) for name, spec in inputs)
        self._device = tvm.cuda(0) if kind == "cuda" else tvm.cpu()
        self._module = module
        self._machine = relax.VirtualMachine(module, self._device)
        self._main = self._machine["main"]
        self._parameters = [tvm.runtime.tensor(array, self._device) for array in parameters]
        self._shared: list[bool] | None = (
            None  # of each output, whether it is in the memory of another, an input or a weight
        )
        # Where the only output is on this CPU, and its memory its own: the inputs that need no more than a look. Known
        # once torch tensors were given.
        self._as_before: InputSignature | None = None
        self._lock = threading.Lock()
        _POOLS.announce(threads)

    @classmethod
    def read(cls, folder: Path) -> CompiledNetwork:
        """Loads a folder written by :func:`devices.networks.compiled.compile_network`."""
        manifest = _read_manifest(folder)
        target = json.dumps(manifest["target"])
        try:
            native = is_native(target)
        except Exception as error:  # of TVM, for what is no target
            raise OutputFolderError(
                f"{folder}/manifest.json is damaged (target: {last_line(error)})", _AGAIN
            ) from error
        if not native:
            raise OutputFolderError(
                f"{folder} was compiled for another kind of processor ({manifest['device_class']})",
                "load it on a device of that class",
            )
        if missing := missing_here(target):
            raise OutputFolderError(
                f"{folder} was compiled for {manifest['device_class']}, with instructions that this processor lacks: "
                + ", ".join(missing),
                "load it on a device of that class, or tune it for this one",
            )
        library, parameters = (_read_checked(folder, name, manifest) for name in ("network.so", "params.safetensors"))
        try:
            arrays = _arrays(parameters, manifest)
            kind = device_kind(target)
            if kind == "cuda":
                prepare_cuda()
            # From the file, not from its bytes: the loader maps it.
            with linked(library) as shared_object:
                module = tvm.runtime.load_module(str(shared_object))
            inputs = [(i["name"], TensorSpec(tuple(i["shape"]), i["dtype"])) for i in manifest["inputs"]]
        except (ValueError, KeyError, TypeError, RuntimeError, OSError) as error:
            built_with = manifest.get("versions", {}).get("tvm")
            raise OutputFolderError(
                f"{folder} cannot be loaded with TVM {tvm.__version__} (it was compiled with {built_with}): {error}",
                _AGAIN,
            ) from error
        cores = manifest["target"].get("num-cores")
        threads = int(manifest.get("threads") or (cores if _is_size(cores) else 0) or len(os.sched_getaffinity(0)))
        return cls(module, arrays, inputs, kind, threads, manifest)

    def __call__(self, *inputs: Any) -> Any:
        if self._as_before is not None and can_pass_directly(inputs, self._as_before):
            with self._lock:
                if _POOLS.threads != self.threads:
                    self._start_threads()
                return self._main(*inputs, *self._parameters)
        self._check(inputs)
        tensors = [to_tvm(value, self._device) for value in inputs]
        with self._lock:
            self._start_threads()
            result = self._main(*tensors, *self._parameters)
            returned = flat(result)
            if self._shared is None:  # which ones are is decided by the network, not by its inputs
                given = [*tensors, *self._parameters]
                self._shared = [shares_memory(each, [*given, *returned[:at]]) for at, each in enumerate(returned)]
            alone = self._shared == [False] and not isinstance(result, _SEVERAL)
            if self._as_before is None and alone and self._device.type == "cpu":
                self._as_before = input_signature(inputs)
        as_torch = bool(inputs) and is_torch(inputs[0])
        outputs = [to_caller(each, as_torch, copied) for each, copied in zip(returned, self._shared, strict=True)]
        return tuple(outputs) if isinstance(result, _SEVERAL) else outputs[0]

    def measure_secs(self, inputs: Sequence[Any], repeats: int = 20, warmups: int = 3) -> float:
        """Median seconds of a run on ``inputs`` (a tuple, or the only input), converted once, outside of the time."""
        single = isinstance(inputs, np.ndarray) or is_torch(inputs)
        tensors = self._converted((inputs,) if single else tuple(inputs))
        times = []
        with self._lock:
            self._start_threads()
            for at in range(warmups + repeats):
                start = time.perf_counter()
                self._main(*tensors, *self._parameters)
                self._device.sync()
                if at >= warmups:
                    times.append(time.perf_counter() - start)
        return statistics.median(times)

    def measure_within(self, inputs: Sequence[Any], budget_secs: float, repeats: int = 50) -> float:
        """Median seconds of a run, of at most ``repeats`` runs that take about ``budget_secs``, of one at least."""
        first_secs = self.measure_secs(inputs, repeats=1, warmups=0)
        # What takes long is warm after the first run: more of these would be most of the time.
        is_long = first_secs >= _LONG_SECS
        affordable = min(repeats, int((budget_secs - first_secs * is_long) / first_secs))
        return (
            self.measure_secs(inputs, affordable, 0 if is_long else min(3, affordable))
            if affordable > 0
            else first_secs
        )

    def in_place(self, inputs: Sequence[Any], budget_secs: float) -> InNetworkTimes:
        """The time of each kernel in a run on ``inputs``, of runs that take about ``budget_secs``."""
        tensors = self._converted(tuple(inputs))
        with self._lock:
            self._start_threads()
            arguments = [*tensors, *self._parameters]
            return timed_in_place(self._machine, self._module, self._device, arguments, budget_secs)

    def _converted(self, inputs: tuple[Any, ...]) -> list[Any]:
        """The inputs as TVM tensors, checked."""
        self._check(inputs)
        return [to_tvm(value, self._device) for value in inputs]

    def _check(self, inputs: tuple[Any, ...]) -> None:
        if len(inputs) != len(self._inputs):
            names = ", ".join(name for name, _, _ in self._inputs)
            raise NetworkInputError(
                f"{len(inputs)} inputs given, the network takes {len(self._inputs)}", f"pass {names}"
            )
        for value, (name, shape, dtype) in zip(inputs, self._inputs, strict=True):
            if not (isinstance(value, np.ndarray) or is_torch(value)):
                raise NetworkInputError(
                    f"input {name!r} is a {type(value).__name__}", "pass a numpy array or a torch tensor"
                )
            given = _name_of(value.dtype)
            if value.shape != shape or given != dtype:
                raise NetworkInputError(
                    f"input {name!r} is {given}{list(value.shape)}",
                    f"pass {dtype}{list(shape)}",
                )

    def _start_threads(self) -> None:
        """Gives the calling thread's pool the number of threads that the network was tuned for."""
        if _POOLS.threads == self.threads:
            return
        used = _POOLS.use(self.threads)
        if used < self.threads:
            warnings.warn(
                f"this network runs with {used} threads, slower than with the {self.threads} that it was tuned for: "
                + (
                    f"this process may use {used} CPUs"
                    if used == len(os.sched_getaffinity(0))
                    else "load it before this thread runs another network, or run it in a thread of its own"
                ),
                stacklevel=3,
            )


def read_for_elsewhere(folder: Path) -> tuple[bytes, list[Array]]:
    """The library in ``folder`` and the network's parameters, to be run on another machine. Raises
    :class:`OutputFolderError`."""
    manifest = _read_manifest(folder)
    library, parameters = (_read_checked(folder, name, manifest) for name in ("network.so", "params.safetensors"))
    return library.read_bytes(), _arrays(parameters, manifest)


def _arrays(parameters: Path, manifest: Mapping[str, Any]) -> list[Array]:
    tensors = read_tensors(parameters)
    return [tensors[key] for key in manifest["parameters"]]


def _read_manifest(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise OutputFolderError(f"no such folder: {folder}", "give a folder that 'fleet-tune tune' wrote")
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        schema = manifest["schema"]
    except FileNotFoundError:
        raise OutputFolderError(
            f"{folder} holds no compiled network (no manifest.json)", "give a folder that 'fleet-tune tune' finished"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise OutputFolderError(f"{folder}/manifest.json is damaged ({error})", _AGAIN) from error
    if schema != _SCHEMA:
        raise OutputFolderError(
            f"{folder} has the manifest schema {shown(schema)}, this version reads {_SCHEMA}", _AGAIN
        )
    missing = {"target", "device_class", "files", "parameters", "inputs"} - manifest.keys()
    if missing:
        raise OutputFolderError(f"{folder}/manifest.json is damaged (no {', '.join(sorted(missing))})", _AGAIN)
    wrong = [name for name, has_form in _FORMS.items() if name in manifest and not has_form(manifest[name])]
    if wrong:
        raise OutputFolderError(f"{folder}/manifest.json is damaged ({', '.join(wrong)})", _AGAIN)
    return dict(manifest)


@functools.cache
def _name_of(dtype: Any) -> str:
    """Of a numpy or torch type. Kept: numpy takes two microseconds for it, as long as the kernel of a small network."""
    return str(dtype).removeprefix("torch.")


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _is_input(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(name), str) for name in ("name", "dtype"))
        and isinstance(value.get("shape"), list)
        and all(_is_size(extent) for extent in value["shape"])
    )


# What the parts of a manifest that are read here must be.
_FORMS: dict[str, Callable[[Any], bool]] = {
    "target": lambda value: isinstance(value, dict) and isinstance(value.get("kind"), str),
    "device_class": lambda value: isinstance(value, str),
    "files": lambda value: isinstance(value, dict),
    "parameters": lambda value: isinstance(value, list) and all(isinstance(key, str) for key in value),
    "inputs": lambda value: isinstance(value, list) and all(_is_input(each) for each in value),
    "versions": lambda value: isinstance(value, dict),
    "threads": lambda value: value is None or (_is_size(value) and value <= 4096),
}


def _read_checked(folder: Path, name: str, manifest: Mapping[str, Any]) -> Path:
    path = folder / name
    try:
        digest = file_digest(path)
    except OSError as error:
        raise OutputFolderError(f"{path} cannot be read ({error.strerror})", _AGAIN) from error
    if digest != manifest["files"].get(name):
        raise OutputFolderError(f"{path} is damaged: it is not the file that the manifest describes", _AGAIN)
    return path
