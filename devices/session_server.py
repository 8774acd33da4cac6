"""The child process of :class:`devices.server.DeviceServer`: accepts TVM RPC clients and forks one process for each.

Run as ``python -m devices.session_server``. It speaks the handshake of TVM's RPC server and hands the connection to
TVM's own server loop, in a forked session process. TVM's Python server, which does the same, ends for good when a
session process dies of a crashing kernel, and waits for ever on a client that connects and says nothing; this one
notes how the session ended and takes the next client at once.

On top of TVM's functions a session has, for our own clients:

- ``fleet_tune.evaluate(module, entry, request, *tensors)``: the adaptive evaluator (:mod:`devices.evaluator`);
- ``fleet_tune.describe()``: JSON text about the machine (:func:`devices.machine.describe`);
- ``fleet_tune.native_target()``: canonical JSON text of the machine's CPU as a target;
- ``fleet_tune.last_exit()``: how the session before this one ended, empty if it ended in order.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import os
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from devices.child import describe_exit, die_with_parent, parent_channel, read_in_background, without_torch
from devices.evaluator import (
    Decide,
    batch_timer,
    decode_request,
    encode_evaluation,
    evaluate,
    killed_after,
    load_decide,
)
from devices.machine import describe, native_target

HANDSHAKE_TIMEOUT_SECS = 2.0
SILENCE_TIMEOUT_SECS = 30.0
_INT = struct.Struct("<i")
# A batch may take a little longer than the rule's timeout before the kernel ends the process.
_TIMEOUT_SLACK = 1.05


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=int, required=True, help="descriptor of the listening socket")
    parser.add_argument("--key", required=True)
    parser.add_argument("--folder", type=Path, required=True, help="private folder for uploads")
    parser.add_argument("--decide", help="module:function of the stopping rule")
    options = parser.parse_args()
    channel = parent_channel()
    read_in_background(channel, lambda _message: None, lambda: _remove(options.folder))
    without_torch()
    decide = load_decide(options.decide)
    listener = SessionServer(socket.socket(fileno=options.socket), options.key, options.folder, decide)
    channel.send({"ready": True})
    listener.run()


def _remove(folder: Path) -> None:
    """Remove the folder of uploads for an owner that was killed. A session that still runs may put a file into it while
    it is emptied: then once more."""
    for _ in range(10):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return


class SessionServer:
    """Accepts clients on a listening socket, one session at a time, until the process is killed."""

    def __init__(self, listening: socket.socket, key: str, folder: Path, decide: Decide | None) -> None:
        import tvm.rpc.server as tvm_server

        _load_cuda_runtime()
        for left in folder.glob("session-*"):  # of a process before this one that was killed
            shutil.rmtree(left, ignore_errors=True)
        tvm_server.logger.setLevel(logging.WARNING)  # it notes every loaded kernel
        self._tvm_server = tvm_server
        self._listening = listening
        self._key = key
        self._folder = folder
        self._last_exit = ""
        self._silent: dict[socket.socket, float] = {}
        _register(decide, lambda: self._last_exit)

    def run(self) -> None:
        while True:
            connection = self._next_client()
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                try:
                    timeout_secs = self._handshake(connection)
                except (OSError, struct.error, UnicodeDecodeError, ValueError):
                    continue  # not a TVM client, or one that does not know our key
                self._serve(connection, timeout_secs)

    def _next_client(self) -> socket.socket:
        """The first connection that says something; those that say nothing for a while are closed."""
        while True:
            oldest = min(self._silent.values(), default=math.inf)
            wait_secs = None if oldest == math.inf else max(0.0, oldest + SILENCE_TIMEOUT_SECS - time.monotonic())
            readable, _, _ = select.select([self._listening, *self._silent], [], [], wait_secs)
            for connection in readable:
                if connection is self._listening:
                    accepted, _ = self._listening.accept()
                    self._silent[accepted] = time.monotonic()
                else:
                    del self._silent[connection]
                    return connection
            for connection, since in list(self._silent.items()):
                if time.monotonic() - since > SILENCE_TIMEOUT_SECS:
                    del self._silent[connection]
                    connection.close()

    def _handshake(self, connection: socket.socket) -> float | None:
        """The session timeout that the client asks for, if any. Raises ValueError for a client that is not for us."""
        base = self._tvm_server.base
        connection.settimeout(HANDSHAKE_TIMEOUT_SECS)
        if _INT.unpack(base.recvall(connection, _INT.size))[0] != base.RPC_MAGIC:
            raise ValueError("not a TVM RPC client")
        (length,) = _INT.unpack(base.recvall(connection, _INT.size))
        if not 0 < length < 4096:
            raise ValueError("not a TVM RPC client")
        words = base.recvall(connection, length).decode().split()
        if not words or words[0] != f"client:{self._key}":
            connection.sendall(_INT.pack(base.RPC_CODE_MISMATCH))
            raise ValueError("the client asks for another key")
        answer = f"server:{self._key}".encode()
        connection.sendall(_INT.pack(base.RPC_CODE_SUCCESS) + _INT.pack(len(answer)) + answer)
        connection.settimeout(None)
        timeouts = [word.removeprefix("-timeout=") for word in words[1:] if word.startswith("-timeout=")]
        return float(timeouts[-1]) if timeouts else None

    def _serve(self, connection: socket.socket, timeout_secs: float | None) -> None:
        """Fork the session's process, wait until it ends and note how."""
        folder = Path(tempfile.mkdtemp(prefix="session-", dir=self._folder))
        own_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                die_with_parent(own_pid)
                for other in (self._listening, *self._silent):
                    other.close()
                self._session(connection, folder, timeout_secs)
            except BaseException as error:
                print(f"session: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        connection.close()
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        self._last_exit = describe_exit(code) if code else ""
        shutil.rmtree(folder, ignore_errors=True)

    def _session(self, connection: socket.socket, folder: Path, timeout_secs: float | None) -> None:
        """In the forked process: TVM's server loop over the connection, until the client closes it."""
        os.chdir(folder)
        _end_with_client(connection, timeout_secs)
        work_folder = self._tvm_server.utils.tempdir(custom_path=str(folder / "files"))
        self._tvm_server._server_env(None, work_folder)
        self._tvm_server._ffi_api.ServerLoop(connection.fileno())


def _end_with_client(connection: socket.socket, timeout_secs: float | None) -> None:
    """End this process once the client is gone or its session has expired, even while a kernel hangs."""

    def watch() -> None:
        poller = select.poll()
        poller.register(connection.fileno(), select.POLLRDHUP | select.POLLHUP | select.POLLERR)
        poller.poll(None if timeout_secs is None else timeout_secs * 1000)
        # The server loop sees an orderly end too, and cleans up: give it a moment.
        threading.Event().wait(1.0)
        os._exit(0)

    threading.Thread(target=watch, name="client", daemon=True).start()


def _load_cuda_runtime() -> None:
    """TVM with its runtime library alone leaves CUDA's part out; without a driver on this machine it does not load."""
    from tvm.base import _LOADED_LIBS
    from tvm_ffi.libinfo import load_lib_ctypes

    folder = Path(_LOADED_LIBS["tvm_runtime"]._name).resolve().parent
    with contextlib.suppress(OSError, RuntimeError):
        load_lib_ctypes("tvm", "tvm_runtime_cuda", "RTLD_LOCAL", extra_lib_paths=[folder])


def _register(decide: Decide | None, last_exit: Callable[[], str]) -> None:
    """Make our functions known to TVM; the sessions' processes, forked later, serve them."""
    import tvm

    def run(module: Any, entry: str, request: str, *tensors: Any) -> str:
        rule, incumbent_secs, kind = decode_request(request)
        run_batch = batch_timer(module, entry, tvm.device(kind, 0), tensors)

        def guarded(runs: int) -> float:
            with killed_after(rule.timeout_secs * _TIMEOUT_SLACK):
                return run_batch(runs)

        return encode_evaluation(evaluate(guarded, rule, incumbent_secs, decide))

    functions = {
        "evaluate": run,
        "describe": lambda: json.dumps(describe()),
        "native_target": native_target,
        "last_exit": last_exit,
    }
    for name, function in functions.items():
        tvm.register_global_func(f"fleet_tune.{name}", function, override=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main()
