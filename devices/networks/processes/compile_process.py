"""Compiles networks in a child process. LLVM may crash, hang or take all memory there; the parent process survives and
reports it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from devices.host.limits.confinement import memory_total_bytes
from devices.host.limits.memory import memory_lacked
from devices.host.warm_process import ChildLostError, WarmProcess
from devices.networks.processes.compile_worker import REFUSALS
from devices.networks.processes.exchange_folder import ExchangeFolder, writing
from devices.protocol import encode_task
from fleet_tune.base.errors import FleetTuneError, MemoryLackedError

if TYPE_CHECKING:
    from devices.networks.tasks.lowering import LoweredNetwork


class CompilationError(FleetTuneError):
    """A network could not be compiled: TVM failed, or its process ended. The message has one line."""


class CompileProcess:
    """Compiles lowered networks, one at a time, in a child that starts at once. Not thread-safe, except for
    :meth:`close`.

    Each network's module is passed once, in a file, from which the child maps the weights.

    Args:
        answer_secs: seconds for one network, after which the child counts as hung.
        module: module that the child runs (tests give their own).
    """

    def __init__(self, answer_secs: float, module: str = "devices.networks.processes.compile_worker") -> None:
        self._folder = ExchangeFolder("compiling")
        arguments = [f"--memory-limit={memory_total_bytes() * 3 // 4}", f"--files={self._folder.path}"]
        self._process = WarmProcess(module, "compiles networks", arguments, {}, answer_secs=answer_secs)
        self._process.start()
        self._written: list[LoweredNetwork] = []

    def compile_network(
        self,
        lowered: LoweredNetwork,
        best: Mapping[str, str | None],
        out: Path,
        manifest_extra: Mapping[str, Any] | None = None,
    ) -> Path:
        """Compile a network with :func:`devices.networks.compiled.network_folder.compile_network`. Raises its user
        errors; its other errors become :class:`CompilationError`.

        Raises :class:`MemoryLackedError` if the child was refused memory or was killed, and ChildStartError if there is
        no child. Neither is a fault of the network.
        """
        request = {
            "name": lowered.name,
            "fingerprint": lowered.fingerprint,
            "device_class": [lowered.device_class.name, lowered.device_class.target],
            "module": str(self._module_file(lowered)),
            "tasks": [encode_task(task) for task in lowered.tasks],
            "workloads": dict(lowered.workloads),
            "dynamic": {name: asdict(task) for name, task in lowered.dynamic.items()},
            "inputs": [[name, asdict(spec)] for name, spec in lowered.inputs],
            "outputs": [asdict(spec) for spec in lowered.outputs],
            "shapes": lowered.shapes and str(lowered.shapes),
            "left_out": [list(each) for each in lowered.left_out],
            "conversion": lowered.conversion and asdict(lowered.conversion),
            "best": dict(best),
            "out": str(out.absolute()),
            "extra": json.dumps(manifest_extra or {}),
        }
        try:
            answer = self._process.ask(request)
        except ChildLostError as error:
            raise self._failed(str(error)) from error
        if "refused" in answer:
            kind, problem, next_step = answer["refused"]
            raise REFUSALS[kind](problem, next_step)
        if "failed" in answer:
            raise self._failed(answer["failed"])
        return out

    def close(self) -> None:
        """End the child and remove its files."""
        self._process.close()
        self._folder.close()

    def _failed(self, reason: str) -> FleetTuneError:
        problem = f"the network cannot be compiled: {reason}"
        if not memory_lacked(reason):
            return CompilationError(problem)
        self._process.end()  # its own allocations may be the cause
        next_step = "free some memory, or take a machine with more, and run fleet-tune compile with its records"
        return MemoryLackedError(problem, next_step)

    def _module_file(self, lowered: LoweredNetwork) -> Path:
        from devices.networks.processes.module_file import write_module

        at = next((at for at, each in enumerate(self._written) if each is lowered), len(self._written))
        path = self._folder.file(f"lowered-{at}")
        if at == len(self._written):
            with writing("the network"):
                write_module(lowered.module, path)
            self._written.append(lowered)
        return path
