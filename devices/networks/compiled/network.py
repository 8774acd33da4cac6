"""A compiled network, loaded and ready to run."""

from __future__ import annotations

import json
import os
import statistics
import time
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from devices.builds import libraries
from devices.builds.executables import Array
from devices.builds.libraries.onednn import LibraryMissingError
from devices.builds.tensors import array_of, tensor_of
from devices.cuda.runtime import gpu_problem, prepare_cuda
from devices.error_text import last_line
from devices.host.limits.forks import ForkError, ForkLocks
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
from devices.networks.caches.cache_buffers import NO_STEP, CacheBuffers, GrowingCache, filled
from devices.networks.caches.donation import Donations
from devices.networks.compiled.entry_point import NetworkEntryPoint
from devices.networks.compiled.manifest import (
    COMPILE_AGAIN,
    LIBRARY,
    MANIFEST,
    PARAMETERS,
    PUBLISHING,
    STAGE,
    checked_file,
    is_size,
    read_manifest,
    read_parameters,
)
from devices.networks.compiled.output_memory import OutputMemory
from devices.networks.input_shapes import InputShapes
from devices.rpc.remote_linking import linked
from devices.targets import device_kind, is_native
from devices.timing.in_network import InNetworkTimes, time_in_network
from devices.timing.run_series import calm_secs
from fleet_tune.base.cpus import usable_cpus
from fleet_tune.base.errors import OutputFolderError

_LONG_SECS = 0.5
# A folder in which another network is published meanwhile is read again, at most so often. The files of the other
# network are moved one after another, within the seconds given here.
_TRIES = 3
_PUBLISH_SECS = 0.2
_SEVERAL = (list, tuple, tvm_ffi.Array)
_POOLS = ThreadPools()
_FORK_LOCKS = ForkLocks(before=_POOLS.before_fork, in_child=_POOLS.in_child)


class CompiledNetwork:
    """A compiled network as a callable.

    ``network(*inputs)`` takes numpy arrays or torch tensors, one for each input, and returns the outputs as the same
    kind: one array or tensor, or a tuple if the network has several outputs. With ``donate=names`` it overwrites the
    inputs of these names (see :attr:`donatable`) and returns them. Calls from several threads take turns. A fork of the
    process waits for the calls of its other threads, and its child may call the network. A pickled network is the name
    of its folder, from which another process loads it, unless the folder holds another network by then.

    Args:
        module: TVM's runtime module.
        parameters: the weights, in the order of the arguments of ``main`` after the inputs.
        manifest: the description of the network (see :mod:`devices.networks.compiled.network_folder`).
        folder: the folder that it was loaded from.
    """

    def __init__(self, module: Any, parameters: Sequence[Array], manifest: Mapping[str, Any], folder: Path) -> None:
        self._folder = folder.absolute()
        self.manifest = manifest
        self.threads = _threads_of(manifest)
        self._inputs = InputShapes(manifest)
        self.caches = GrowingCache.of(manifest)
        self._buffers = CacheBuffers(self.caches)
        self._output_memory = OutputMemory()
        self._donations = Donations(manifest)
        self._static = {each.input: each for each in self._donations.caches}
        self._device = tvm.cuda(0) if device_kind(json.dumps(manifest["target"])) == "cuda" else tvm.cpu()
        self._module = module
        self._machine = relax.VirtualMachine(module, self._device)
        self._main = self._machine["main"]
        self._parameters = [tvm.runtime.tensor(array, self._device) for array in parameters]
        # For each output, true if it shares memory with another output, an input or a weight. None before the first
        # call. It depends on the network, not on the inputs.
        self._aliased: list[bool] | None = None
        # Signature of inputs that need no conversion. It is set if a call passed torch tensors to a network whose only
        # output is on this CPU, in memory of its own.
        self._direct_inputs: InputSignature | None = None
        self._lock = _FORK_LOCKS.make()
        self._loaded_by = os.getpid()
        _POOLS.announce(self.threads)

    @classmethod
    def read(cls, folder: Path) -> CompiledNetwork:
        """Load a folder written by :func:`devices.networks.compiled.network_folder.compile_network`.

        Raises :class:`OutputFolderError` if it is missing, incomplete, damaged, or for another machine.
        """
        folder = folder.resolve()  # all files are of one version, also while a link to it changes
        for _ in range(_TRIES - 1):
            version = _version(folder)
            try:
                network = cls._read(folder)
            except OutputFolderError:
                if (folder / STAGE / PUBLISHING).exists():
                    time.sleep(_PUBLISH_SECS)
                elif _version(folder) == version:
                    raise
            else:
                if _version(folder) == version:
                    return network
        return cls._read(folder)

    @classmethod
    def _read(cls, folder: Path) -> CompiledNetwork:
        manifest = read_manifest(folder)
        _check_processor(folder, manifest)
        _check_tvm(folder, manifest)
        library, parameters = (checked_file(folder, name, manifest) for name in (LIBRARY, PARAMETERS))
        called = {name: checked_file(folder, name, manifest) for name in libraries.FILES if name in manifest["files"]}
        unusable = gpu_problem(prepare_cuda()) if device_kind(json.dumps(manifest["target"])) == "cuda" else ""
        if unusable:
            raise OutputFolderError(
                f"{folder} is compiled for a GPU, and this process can use none ({unusable})",
                "install NVIDIA's driver and CUDA's runtime library here, or load the network where its GPU is",
            )
        try:
            arrays = read_parameters(parameters, manifest)
            # Loaded from the file, not from its bytes: the loader maps the file.
            with _FORK_LOCKS.make(), linked(library) as shared_object:
                libraries.load(called)
                module = tvm.runtime.load_module(str(shared_object))
        except LibraryMissingError as error:
            raise OutputFolderError(f"{folder}: {error.problem}", error.next_step) from error
        except (ValueError, KeyError, TypeError, RuntimeError, OSError) as error:
            built_with = manifest.get("versions", {}).get("tvm")
            raise OutputFolderError(
                f"{folder} cannot be loaded with TVM {tvm.__version__} (it was compiled with {built_with}): {error}",
                COMPILE_AGAIN,
            ) from error
        return cls(module, arrays, manifest, folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self._folder, self.manifest["files"])

    @property
    def donatable(self) -> tuple[str, ...]:
        """Names of the inputs that may be donated: static caches, which the network returns with some rows replaced."""
        return self._donations.names

    def __call__(self, *inputs: Any, donate: Collection[str] = ()) -> Any:
        is_ready = _POOLS.threads == self.threads
        if not is_ready and _POOLS.is_lost:
            return _POOLS.in_substitute(self, *inputs, donate=donate)
        if self._direct_inputs is not None and not donate and can_pass_directly(inputs, self._direct_inputs):
            with self._lock:
                if not is_ready:
                    self._start_threads()
                return self._main(*inputs, *self._parameters)
        self._check(inputs)
        with self._lock:
            self._start_threads()
            step = self._buffers.step(inputs, self._inputs.extents_of(inputs)) if self.caches else NO_STEP
            donated = self._donations.tensors(inputs, donate) if donate else {}
            own = {**step.kept, **donated}
            tensors = [own[at] if at in own else self._argument(at, value) for at, value in enumerate(inputs)]
            given = [*tensors, *step.arguments, *self._parameters]
            result = self._main(*given)
            returned = flat(result)
            if self._inputs.is_dynamic:
                self._output_memory.returned(returned)
            aliased = self._aliased
            if aliased is None and any(0 in each.shape for each in (*given, *returned)):
                aliased = [True] * len(returned)  # empty tensors do not show what is shared
            elif aliased is None:
                aliased = [shares_memory(each, [*given, *returned[:at]]) for at, each in enumerate(returned)]
                for cache in self._static.values():
                    aliased[cache.output] = False  # its memory is the caller's in any case
                self._aliased = aliased
            alone = self._aliased == [False] and not (isinstance(result, _SEVERAL) or self.caches or self._static)
            is_new = self._direct_inputs is None or self._inputs.is_dynamic
            if is_new and alone and self._device.type == "cpu":
                self._direct_inputs = input_signature(inputs)
            as_torch = bool(inputs) and is_torch(inputs[0])
            in_place = {at: self._buffers.returned(step, at, as_torch) for at in step.grown}
            in_place |= {self._static[at].output: inputs[at] for at in donated}
        outputs = [
            to_caller(each, as_torch, copied) if at not in in_place else in_place[at]
            for at, (each, copied) in enumerate(zip(returned, aliased, strict=True))
        ]
        return tuple(outputs) if isinstance(result, _SEVERAL) else outputs[0]

    def entry_point(self, name: str) -> NetworkEntryPoint:
        """Return an entry point of the network (``--shapes "...; step: tokens=1"``). Raises
        :class:`devices.networks.input_shapes.NetworkInputError` if it has none of this name."""
        return NetworkEntryPoint(self, self._inputs, name)

    def in_buffers(self, *inputs: Any) -> list[Any]:
        """Return the inputs with their caches copied: growing caches to buffers in which they can grow, static caches
        to memory that may be donated."""
        self._check(inputs)
        given = list(inputs)
        with self._lock:
            for cache in self.caches:
                rows = array_of(to_tvm(inputs[cache.input], self._device))
                given[cache.input] = self._buffers.placed(cache, rows, is_torch(inputs[cache.input]))
        for at in self._static:
            given[at] = to_caller(self._argument(at, inputs[at]), is_torch(inputs[at]), copied=False)
        return given

    def measure_secs(self, inputs: Sequence[Any], repeats: int = 20, warmups: int = 3) -> float:
        """Return the median seconds of a run on ``inputs`` (a tuple, or the only input), without the time of converting
        them."""
        if _POOLS.is_lost:
            return _POOLS.in_substitute(self.measure_secs, inputs, repeats, warmups)
        single = isinstance(inputs, np.ndarray) or is_torch(inputs)
        arguments = self._arguments((inputs,) if single else tuple(inputs))
        return statistics.median(self._timed(arguments, warmups + repeats)[warmups:])

    def measure_within(self, inputs: Sequence[Any], budget_secs: float) -> float:
        """Return the seconds of an undisturbed run (:func:`devices.timing.run_series.calm_secs`), over runs that take
        about ``budget_secs``."""
        if _POOLS.is_lost:
            return _POOLS.in_substitute(self.measure_within, inputs, budget_secs)
        arguments = self._arguments(tuple(inputs))
        (first_secs,) = self._timed(arguments, 1)
        if first_secs > budget_secs / 2:
            return first_secs
        # A long run is warm after the first one: further warm-ups would take most of the time.
        if first_secs < _LONG_SECS:
            first_secs = self._timed(arguments, min(3, int(budget_secs / first_secs)))[-1]
        return calm_secs(lambda runs: self._timed(arguments, runs), first_secs, budget_secs)

    def kernel_times(self, inputs: Sequence[Any], budget_secs: float) -> InNetworkTimes:
        """Return the time of each kernel in a run on ``inputs``, over runs that take about ``budget_secs``."""
        if _POOLS.is_lost:
            return _POOLS.in_substitute(self.kernel_times, inputs, budget_secs)
        arguments = self._arguments(tuple(inputs))
        with self._lock:
            self._start_threads()
            return time_in_network(self._machine, self._module, self._device, arguments, budget_secs)

    def _timed(self, arguments: Sequence[Any], runs: int) -> list[float]:
        """Return the seconds of each of several runs."""
        times = []
        with self._lock:
            self._start_threads()
            for _ in range(runs):
                start = time.perf_counter()
                self._main(*arguments)
                self._device.sync()
                times.append(time.perf_counter() - start)
        return times

    def _arguments(self, inputs: tuple[Any, ...]) -> list[Any]:
        """Check the inputs and return the arguments of ``main`` for runs that are timed."""
        self._check(inputs)
        tensors = [self._argument(at, value) for at, value in enumerate(inputs)]
        arrays = [array_of(each) for each in tensors] if self.caches else []
        return [*tensors, *(tensor_of(each) for each in filled(self.caches, arrays)), *self._parameters]

    def _argument(self, at: int, value: Any) -> Any:
        """Return the tensor of an input: a copy if the network writes into it."""
        return to_tvm(value, self._device, copied=at in self._static)

    def _check(self, inputs: tuple[Any, ...]) -> None:
        if self._device.type != "cpu" and os.getpid() != self._loaded_by:
            raise ForkError(
                "this process was forked from the one that has loaded the network, and a GPU does not serve it",
                'start it with multiprocessing.get_context("spawn"), and load the network there',
            )
        self._inputs.check(inputs)

    def _start_threads(self) -> None:
        """Give the calling thread's pool the number of threads that the network was tuned for."""
        if _POOLS.threads == self.threads:
            return
        used = _POOLS.use(self.threads)
        if used < self.threads:
            warnings.warn(
                f"this network runs with {used} threads, slower than with the {self.threads} that it was tuned for: "
                + (
                    f"this process may use {used} CPUs"
                    if used == usable_cpus()
                    else "load it before this thread runs another network, or run it in a thread of its own"
                ),
                stacklevel=3,
            )


def _check_processor(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Raise :class:`OutputFolderError` if this machine cannot run code for the network's target."""
    target = json.dumps(manifest["target"])
    try:
        native = is_native(target)
    except Exception as error:  # TVM raises errors of many types for an invalid target
        raise OutputFolderError(
            f"{folder}/manifest.json is damaged (target: {last_line(error)})", COMPILE_AGAIN
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


def _check_tvm(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Raise :class:`OutputFolderError` if another version of TVM compiled the network: the conventions of kernels may
    differ, and TVM does not check them."""
    built_with = manifest.get("versions", {}).get("tvm", tvm.__version__)
    if built_with != tvm.__version__:
        raise OutputFolderError(
            f"{folder} was compiled with TVM {built_with}, and this is TVM {tvm.__version__}",
            f"install apache-tvm {built_with} here, or compile the network again with 'fleet-tune compile'",
        )


def _version(folder: Path) -> tuple[tuple[int, int] | None, ...]:
    """Return what tells whether another network was published in ``folder``."""
    found: list[tuple[int, int] | None] = []
    for name in (MANIFEST, LIBRARY, PARAMETERS):
        try:
            told = (folder / name).stat()
        except OSError:
            found.append(None)
        else:
            found.append((told.st_ino, told.st_mtime_ns))
    return tuple(found)


def _unpickled(folder: Path, files: Mapping[str, str]) -> CompiledNetwork:
    """Load a pickled network. Raises :class:`OutputFolderError` if its folder holds another one by now."""
    network = CompiledNetwork.read(folder)
    if network.manifest["files"] != files:
        raise OutputFolderError(
            f"{folder} holds another network than the pickled one", "load the network anew in every process"
        )
    return network


def _threads_of(manifest: Mapping[str, Any]) -> int:
    cores = manifest["target"].get("num-cores")
    return int(manifest.get("threads") or (cores if is_size(cores) else 0) or usable_cpus())
