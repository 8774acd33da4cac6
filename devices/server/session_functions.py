"""Functions that a session of our device server offers beyond TVM's own server, and TVM's upload with a limit.

- ``fleet_tune.evaluate(module, entry, request, *tensors)``: the adaptive evaluator (:mod:`devices.timing.evaluator`);
- ``fleet_tune.make_inputs(request, *tensors)``: fills the tensors of a kernel's arguments
  (:class:`devices.timing.input_request.InputRequest`); returns false to a client of another version;
- ``fleet_tune.time_in_place(module, kind, budget_secs, *tensors)``: JSON text of the times of a network's kernels
  (:mod:`devices.timing.in_network`);
- ``fleet_tune.extra_secs(arguments, timeout_secs, *modules and tensors)``: seconds that kernels take longer in a round
  than alone, NaN if the measurement takes too long (:mod:`devices.timing.kernel_round`);
- ``fleet_tune.describe()``: JSON text about the machine (:func:`devices.host.machine.describe`);
- ``fleet_tune.native_target()``: canonical JSON text of the machine's CPU as a target;
- ``fleet_tune.vitals(kind)``: JSON text about temperature and clock (:mod:`devices.host.vitals`);
- ``fleet_tune.power(kind)``: the power mode of a board (:func:`devices.host.power_mode.power_mode`);
- ``fleet_tune.free_bytes()``: memory of the host that a GPU on the chip may allocate, -1 for any other GPU
  (:func:`devices.host.board.shared_free_bytes`);
- ``fleet_tune.gpu_problem()``: why no GPU can be used, empty if one can (:func:`devices.cuda.runtime.gpu_problem`);
- ``fleet_tune.last_exit()``: how this client's previous session ended, empty if it ended in order;
- ``fleet_tune.load_library(name)``: loads a library that kernels call
  (:func:`devices.builds.libraries.load_installed`); returns what went wrong;
- ``fleet_tune.link(archive, library)``: links uploaded object files (:mod:`devices.rpc.remote_linking`); returns what
  went wrong.

CUDA kernels that carry their machine code are loaded without a compiler (:mod:`devices.cuda.compiler`).
"""

from __future__ import annotations

import json
import logging
import math
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from devices.builds.libraries import load_installed
from devices.cuda.runtime import gpu_problem, prepare_cuda
from devices.host.board import shared_free_bytes
from devices.host.clock_watch import ClockWatch
from devices.host.limits.pool import bind_pool
from devices.host.limits.priority import RealtimePriority, pin_beside_pool
from devices.host.machine import describe, last_caches_bytes, native_target
from devices.host.power_mode import power_mode
from devices.host.vitals import read_vitals
from devices.rpc.remote_linking import link_archive
from devices.timing.cold_weights import WeightCopies
from devices.timing.evaluator import (
    Decide,
    EvaluationRequest,
    batch_timer,
    encode_evaluation,
    evaluate,
    kill_after,
)
from devices.timing.in_network import time_in_network
from devices.timing.input_request import InputRequest, made_by
from devices.timing.kernel_round import (
    ROUNDS_SECS,
    KernelsAlone,
    decode_round,
    extra_secs,
    loaded_kernels,
    most_round_secs,
    one_round,
)
from fleet_tune.base.cpus import QuotaGroups

# Factor on the rule's timeout after which the kernel ends the process of a batch.
_TIMEOUT_SLACK = 1.05


class SessionFunctions:
    """Registers our functions with TVM. The processes of sessions are forked later, and serve them.

    Args:
        decide: rule that stops a measurement.
        upload_bytes: limit of the size of all files that a session has at a time.
        realtime: time kernels at real-time priority where that is allowed (see :mod:`devices.host.limits.priority`).
        root: folder with the system's files that describe the machine.
    """

    def __init__(self, decide: Decide | None, upload_bytes: int, realtime: bool = True, root: Path = Path("/")) -> None:
        import tvm
        import tvm.rpc.server as tvm_server

        unloaded = prepare_cuda()
        tvm_server.logger.setLevel(logging.WARNING)  # it logs every loaded kernel
        self._tvm_server = tvm_server
        self._decide = decide
        self._upload_bytes = upload_bytes
        self._realtime = realtime
        made_by()
        cpus = sorted(os.sched_getaffinity(0))
        used = cpus[: int(os.environ.get("TVM_NUM_THREADS", len(cpus)))]
        self._copies = WeightCopies(last_caches_bytes(used, root))
        self._watches = {kind: ClockWatch(root, kind) for kind in ("cpu", "cuda")}
        self._files = Path()
        self._last_exit = ""
        functions = {
            "fleet_tune.evaluate": self._evaluate,
            "fleet_tune.make_inputs": _make_inputs,
            "fleet_tune.time_in_place": _time_in_network,  # as clients of earlier versions call it
            "fleet_tune.extra_secs": self._extra_secs,
            "fleet_tune.describe": lambda: json.dumps(describe(root)),
            "fleet_tune.native_target": native_target,
            "fleet_tune.vitals": lambda kind: json.dumps(read_vitals(root, kind)),
            "fleet_tune.power": lambda kind: power_mode(root, kind),
            "fleet_tune.gpu_problem": lambda: gpu_problem(unloaded),
            "fleet_tune.free_bytes": lambda: _free_bytes(root),
            "fleet_tune.last_exit": lambda: self._last_exit,
            "fleet_tune.load_library": load_installed,
            "fleet_tune.link": self._link,
            "tvm.rpc.server.upload": self._upload,
        }
        for name, function in functions.items():
            tvm.register_global_func(name, function, override=True)

    def serve(self, connection: socket.socket, files: Path, last_exit: str) -> None:
        """Run TVM's server loop over ``connection``, until the client closes it. ``files``: folder for uploads."""
        self._files = files
        self._last_exit = last_exit
        # Only now, in the session's process: its rights may differ from those of the process that forked it.
        self._priority = RealtimePriority(self._realtime)
        self._quotas = QuotaGroups()
        threads, cpus = int(os.environ["TVM_NUM_THREADS"]), sorted(os.sched_getaffinity(0))
        if threads <= len(cpus):
            bind_pool(cpus[:threads])
        work_folder = self._tvm_server.utils.tempdir(custom_path=str(files))
        self._tvm_server._server_env(None, work_folder)
        self._tvm_server._ffi_api.ServerLoop(connection.fileno())

    def _evaluate(self, module: Any, entry: str, request: str, *tensors: Any) -> str:
        import tvm

        asked = EvaluationRequest.from_json(request)
        rule, device = asked.rule, tvm.device(asked.device_kind, 0)
        sets: list[Sequence[Any]] = [tensors]
        if asked.device_kind == "cpu":
            sets = self._copies.argument_sets(tensors, asked.weights, rule.weights_bytes)
        run_batch = batch_timer(module, entry, device, sets, rule.flush_bytes)

        def guarded(runs: int) -> float:
            with self._undisturbed(rule.timeout_secs * _TIMEOUT_SLACK):
                return run_batch(runs)

        watch = self._watches[asked.device_kind]
        before, causes = self._quotas.throttling(), watch.look()
        evaluation = evaluate(guarded, rule, asked.incumbent_secs, self._decide)
        throttled = self._quotas.throttling().since(before).share
        slowed_by = ", ".join(watch.look().since(causes))
        return encode_evaluation(replace(evaluation, throttled=throttled, slowed_by=slowed_by))

    def _extra_secs(self, arguments: str, timeout_secs: float, *objects: Any) -> float:
        kernels = loaded_kernels(decode_round(arguments), objects)
        alone = KernelsAlone(kernels, self._copies)
        with self._undisturbed(timeout_secs + ROUNDS_SECS):
            secs = extra_secs(one_round(kernels), alone.secs, most_round_secs(timeout_secs))
        return math.nan if secs is None else secs

    @contextmanager
    def _undisturbed(self, timeout_secs: float) -> Iterator[None]:
        """Run the block's kernels on cores of their own, as far as the host allows it. If they take longer than
        ``timeout_secs``, this process ends."""
        with kill_after(timeout_secs), self._priority.raised():
            yield
        pin_beside_pool()

    def _link(self, archive: str, library: str) -> str:
        """Link files of this session, given by their names."""
        return link_archive(self._files / Path(archive).name, self._files / Path(library).name)

    def _upload(self, name: str, content: bytes) -> None:
        """Store an upload in this session's folder, up to the limit. Raises ValueError."""
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"upload to {name!r} refused: it is outside of the session's folder")
        used = sum(entry.stat().st_size for entry in os.scandir(self._files) if entry.is_file())
        if used + len(content) > self._upload_bytes:
            raise ValueError(
                f"upload of {len(content)} bytes refused: a session may have {self._upload_bytes} (--max-upload)"
            )
        (self._files / name).write_bytes(content)


def _free_bytes(root: Path) -> int:
    free = shared_free_bytes(root)
    return -1 if free is None else free


def _make_inputs(text: str, *tensors: Any) -> bool:
    """Fill the tensors with the requested inputs. Return false if the client has to send them instead."""
    request = InputRequest.from_json(text)
    if request is None:
        return False
    try:
        for tensor, array in zip(tensors, request.arrays(), strict=True):
            tensor.copyfrom(array)
    except MemoryError:  # inputs that are sent need no memory beside the tensors
        return False
    return True


def _time_in_network(module: Any, kind: str, budget_secs: float, *tensors: Any) -> str:
    import tvm
    from tvm.runtime.vm import VirtualMachine

    device = tvm.cuda(0) if kind == "cuda" else tvm.cpu()
    found = time_in_network(VirtualMachine(module, device), module, device, tensors, budget_secs)
    return json.dumps(asdict(found))
