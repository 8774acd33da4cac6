"""Connection to a device's server: one session at a time, opened when it is needed, reopened after a loss."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from devices.client.session import (
    GpuUnusableError,
    RpcSession,
    ServerKey,
    SessionLostError,
    SessionRefusedError,
    SessionTimeoutError,
    SessionUnreachedError,
)
from devices.client.workbench import Workbench
from devices.error_text import last_line
from devices.rpc.tracker import TrackerError, request_server
from devices.targets import NATIVE, TargetError, device_kind, library_of, resolve_target, with_library
from fleet_tune.base.config.fleet_file import DeviceConfig

T = TypeVar("T")

# Seconds for a server to ask its machine for its CPU, on a slow link.
_ASK_TIMEOUT_SECS = 60.0
# Lifetime of a session on a plain TVM server, which gets rid of a hanging kernel only when the session expires. The
# client opens a new session after half of this time.
_PLAIN_SESSION_SECS = 300.0
# Seconds to wait for the server that the tracker gave us last, before the tracker is asked again.
_HELD_SECS = 5.0


class Connection:
    """Connects to the server of one device; see :class:`devices.client.rpc_device.RpcDevice` for the arguments.

    A caller that notices that the session is lost closes it. The next session is opened when it is needed. Raises
    TargetError for an unknown target.
    """

    def __init__(
        self,
        config: DeviceConfig,
        host: str,
        port: int,
        *,
        tracker_key: str | None,
        timeout_secs: float,
        cache_bytes: int,
        server_key: ServerKey,
    ) -> None:
        self._config = config
        #: Canonical target. If ``config`` asks for the device's own CPU, it is empty until the first session.
        self.target = "" if config.target == NATIVE else self._target_of(config.target)
        #: True once a session was opened.
        self.has_worked = False
        #: Workbench of the open session; ``None`` if no session is open. The session may be lost without anybody having
        #: noticed.
        self.bench: Workbench | None = None
        #: Address of our own server that the tracker gave us last.
        self.held: tuple[str, int] | None = None
        self.timeout_secs = timeout_secs
        self._host = host
        self._port = port
        self._tracker_key = tracker_key
        self._cache_bytes = cache_bytes
        self._server_key = server_key
        # Our own servers know this client by this name from one session to the next.
        self._name = secrets.token_hex(8)

    def workbench(self) -> Workbench:
        """Return the workbench of the open session. Open a session if there is none.

        Raises SessionLostError past ``timeout_secs``, GpuUnusableError (a SessionLostError) if the target is a GPU and
        the server can use none, TargetError if the server cannot tell its own CPU for which ``config`` asks, or cannot
        load the device's library.
        """
        session = self.bench.session if self.bench is not None else None
        if session is not None and not session.ours and session.age_secs > _PLAIN_SESSION_SECS / 2:
            self.close()
        if self.bench is None:
            self.bench = self._opened()
        return self.bench

    def once_more_on_loss(self, action: Callable[[Workbench], T]) -> T:
        """Run ``action``; if the session turns out to be lost, run it again in a fresh one (servers restart)."""
        try:
            return action(self.workbench())
        except (SessionTimeoutError, SessionUnreachedError):
            raise
        except SessionLostError:
            self.close()
        return action(self.workbench())

    def last_exit(self) -> str | None:
        """Return how this client's previous session ended, empty if it ended in order; ``None`` for a plain TVM server.

        Raises SessionLostError.
        """
        session = self.workbench().session
        with session.deadline(self.timeout_secs):
            return str(session.function("fleet_tune.last_exit")()) if session.ours else None

    def close(self) -> None:
        """End the session, if there is one."""
        bench, self.bench = self.bench, None
        if bench is not None:
            bench.session.close()

    def _opened(self) -> Workbench:
        session = self._patient_session()
        try:
            if not self.target:
                self.target = self._native_target(session)
            kind = device_kind(self.target)
            with session.deadline(self.timeout_secs):
                bench = Workbench(session, kind, self._cache_bytes, self._config.timeouts)
                problem = _gpu_problem(bench) if kind == "cuda" else ""
                self._load_library(session)
            if problem:
                raise GpuUnusableError(f"its server can use no GPU ({problem})")
            self.has_worked = True
            return bench
        except BaseException:
            session.close()
            raise

    def _native_target(self, session: RpcSession) -> str:
        """Return the device's own CPU as a target."""
        if not session.ours:
            raise TargetError(
                f"device {self._config.name}: a plain TVM RPC server cannot say which CPU it runs on",
                "name the device's target in the fleet file, or run `fleet-tune device serve` on it",
            )
        with session.deadline(_ASK_TIMEOUT_SECS):
            text = str(session.function("fleet_tune.native_target")())
        return self._target_of(text)

    def _load_library(self, session: RpcSession) -> None:
        """Load the device's library into a session's process. Raises TargetError if the server cannot load it."""
        library = library_of(self.target)
        if not library:
            return
        try:
            load = session.function("fleet_tune.load_library")
        except Exception as error:
            raise TargetError(
                f"device {self._config.name}: its server (TVM's own, or an older one) cannot load {library}",
                "run `fleet-tune device serve` of this version there, or leave the library out",
            ) from error
        problem, _, next_step = str(load(library)).partition("; ")
        if problem:
            raise TargetError(f"device {self._config.name}: {problem}", f"on its host: {next_step}")

    def _target_of(self, spec: str | Mapping[str, object]) -> str:
        """Return the canonical target of the device, with its library."""
        return with_library(resolve_target(spec, self._config.threads), self._config.library or "")

    def _patient_session(self) -> RpcSession:
        """Open a session. A server that is being restarted refuses connections for a moment."""
        deadline = time.monotonic() + self.timeout_secs
        pause_secs = 0.05
        while True:
            remaining = deadline - time.monotonic()
            try:
                return self._new_session(max(0.1, remaining))
            except (SessionTimeoutError, SessionRefusedError):
                raise
            except SessionLostError as error:
                if remaining <= pause_secs:
                    raise SessionUnreachedError(str(error)) from error
            time.sleep(pause_secs)
            pause_secs = min(1.0, 2 * pause_secs)

    def _new_session(self, timeout_secs: float) -> RpcSession:
        """Open a session. With a tracker, try the server that the tracker gave us last, then ask the tracker for
        another one.

        Our own server ends hanging kernels itself. A plain TVM server is asked for a session that expires.
        """
        if self._tracker_key is None:
            return self._session(self._host, self._port, timeout_secs, plain_secs=_PLAIN_SESSION_SECS)
        deadline = time.monotonic() + timeout_secs
        if self.held is not None:
            try:
                return self._session(*self.held, min(_HELD_SECS, timeout_secs))
            except SessionLostError:
                self.held = None
        try:
            server = request_server(self._host, self._port, self._tracker_key, max(0.1, deadline - time.monotonic()))
        except TrackerError as error:
            raise SessionLostError(str(error)) from error
        remaining = max(1.0, deadline - time.monotonic())
        session = self._session(
            server.host, server.port, remaining, key=server.match_key, plain_secs=_PLAIN_SESSION_SECS
        )
        if session.ours:  # a plain server serves only clients that the tracker sends
            self.held = (server.host, server.port)
        return session

    def _session(
        self, host: str, port: int, timeout_secs: float, key: str = "", plain_secs: float | None = None
    ) -> RpcSession:
        return RpcSession(
            host,
            port,
            key=key,
            timeout_secs=timeout_secs,
            plain_secs=plain_secs,
            name=self._name,
            server_key=self._server_key,
            silence_secs=self._config.timeouts.silence_secs,
        )


def _gpu_problem(bench: Workbench) -> str:
    """Return why a server cannot use a GPU, in one line; empty if it can."""
    try:
        ask = bench.session.function("fleet_tune.gpu_problem")
    except Exception:  # a plain server, or one of ours of an older version
        ask = None
    if ask is not None:
        return str(ask())
    try:
        return "" if bench.device.exist else "CUDA finds none"
    except Exception as error:
        if "is not enabled" not in str(error):
            raise
        return last_line(error)
