"""A device behind a TVM RPC server: keeps one session open, measures candidates, checks their results."""

from __future__ import annotations

import dataclasses
import json
import secrets
import statistics
import time
from collections.abc import Callable
from typing import Any, TypeVar

from devices.client import fingerprint as fingerprints
from devices.client.session import RpcSession, SessionLostError, SessionTimeoutError
from devices.client.workbench import Workbench
from devices.failures import last_line
from devices.protocol import Artifact, MeasureRequest
from devices.targets import NATIVE, TargetError, default_device_class_name, device_kind, resolve_target
from devices.timing.arguments import Array, all_finite, disagreement
from devices.timing.evaluator import (
    Evaluation,
    batch_timer,
    confirmed,
    decode_evaluation,
    encode_request,
    evaluate,
    load_decide,
)
from devices.wire.tracker import TrackerError, request_server
from fleet_tune.config.fleet_file import DeviceConfig
from fleet_tune.domain import DeviceClass, Fingerprint, Measurement, Outcome, StopRule
from fleet_tune.errors import DeviceUnreachableError, ProbeError, UserError

T = TypeVar("T")

# Allocating, uploading, loading, packing: what precedes a measurement, on a slow link.
PREPARE_TIMEOUT_SECS = 60.0
# An unscheduled convolution takes a second on a server's core and a minute on a small board.
ORACLE_TIMEOUT_SECS = 150.0
# A plain TVM server frees itself of a hanging kernel only when its session expires; renewed at half of this.
PLAIN_SESSION_SECS = 300.0
# How long a server that a tracker once gave us is waited for, before the tracker is asked again.
HELD_SECS = 5.0
# Not by the kernel it ran: by somebody, or because the memory of the whole device was short.
_KILLED = "SIGKILL"
# How a session's process ends by the fault of the kernel it ran.
_CRASHES = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", _KILLED, "SIGTRAP", "SIGSYS")

# Those that damage done to the process earlier can cause.
_DAMAGE = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGABRT")


class RpcDevice:
    """The device of ``config`` behind the server at ``host:port`` (see :class:`devices.protocol.Device`).

    ``tracker_key``: ``host:port`` is a TVM RPC tracker's, which is asked for a server of this key. Such a server is
    held as long as it works, and first sought where it was when its session is lost.
    ``decide``: ``"module:function"`` of the stopping rule, used against a plain TVM RPC server; our own server has its
    own. ``connect_timeout_secs``: how long an unreachable or busy server is waited for before the device counts as
    lost. ``cache_bytes``: tensors kept on the device between candidates.

    Connects when it is first needed, and again after a lost session. Raises TargetError for a target that nobody knows.
    """

    def __init__(
        self,
        config: DeviceConfig,
        host: str,
        port: int,
        decide: str | None = None,
        key: str = "",
        connect_timeout_secs: float = 15.0,
        cache_bytes: int = 512 << 20,
        tracker_key: str | None = None,
    ) -> None:
        self._config = config
        self._host = host
        self._port = port
        self._key = key
        self._tracker_key = tracker_key
        # Under which name our own servers know this client from one session to the next.
        self._name = secrets.token_hex(8)
        self._held: tuple[str, int] | None = None
        self._decide = load_decide(decide)
        self._connect_timeout_secs = connect_timeout_secs
        self._cache_bytes = cache_bytes
        self._target = "" if config.target == NATIVE else resolve_target(config.target, config.threads)
        self._oracles: dict[str, Artifact] = {}
        self._expected: dict[str, _Expected] = {}
        self._bench: Workbench | None = None

    @property
    def device_id(self) -> str:
        return self._config.name

    def fingerprint(self) -> Fingerprint:
        """Probe the device: run the probes, read its properties.

        Raises DeviceUnreachableError, TargetError if the device's own CPU was asked for and its server cannot tell.
        """
        try:
            bench = self._connected()
            target = self._resolved_target(bench.session)
            name = self._config.device_class or default_device_class_name(target)
            with bench.session.deadline(fingerprints.TIMEOUT_SECS):
                return fingerprints.probe(bench, DeviceClass(name, target), self._config.threads)
        except SessionLostError as error:
            self._disconnect()
            raise DeviceUnreachableError(self.device_id, str(error)) from error

    def ping(self) -> float:
        try:
            session = self._fresh_on_loss(self._answering).session
            started = time.monotonic()
            if not session.alive():
                raise SessionLostError("the session ended")
            return time.monotonic() - started
        except SessionLostError as error:
            self._disconnect()
            raise DeviceUnreachableError(self.device_id, str(error)) from error

    def probe_secs(self) -> float:
        try:
            return self._fresh_on_loss(self._run_probe)
        except SessionLostError as error:
            self._disconnect()
            raise DeviceUnreachableError(self.device_id, str(error)) from error
        except UserError:
            raise
        except Exception as error:
            raise ProbeError(self.device_id, last_line(error)) from error

    def vitals(self) -> dict[str, float]:
        bench = self._bench
        if bench is None or not bench.session.ours:
            return {}
        try:
            with bench.session.deadline(self._connect_timeout_secs):
                vitals: dict[str, float] = json.loads(bench.session.function("fleet_tune.vitals")(bench.kind))
        except SessionLostError:
            self._disconnect()
            return {}
        except Exception:  # a server of an older version does not tell
            return {}
        return vitals

    def _answering(self, bench: Workbench) -> Workbench:
        """``bench``, if its session still answers."""
        if not bench.session.alive():
            raise SessionLostError("the session ended")
        return bench

    def _run_probe(self, bench: Workbench) -> float:
        target = self._resolved_target(bench.session)
        with bench.session.deadline(fingerprints.TIMEOUT_SECS):
            return fingerprints.probe_secs(bench, target)

    def add_oracle(self, artifact: Artifact) -> None:
        if artifact.candidate is not None:
            raise ValueError("an oracle is the unscheduled program: its artifact has no candidate")
        self._oracles[artifact.task_id] = artifact
        self._expected.pop(artifact.task_id, None)

    def measure(self, request: MeasureRequest) -> Measurement:
        artifact = request.artifact
        if artifact.candidate is None:
            raise ValueError("the artifact to measure has no candidate")
        if artifact.task_id not in self._oracles:
            raise ValueError(f"the oracle of task {artifact.task_id} was not added")
        started = time.monotonic()
        fresh = self._bench is None
        measurement = self._measure(request)
        if not fresh and any(name in measurement.detail for name in _DAMAGE):
            # An earlier candidate of the same session may have left it damaged: what counts is a session of its own.
            self._disconnect()
            measurement = self._measure(request)
        if _KILLED in measurement.detail:
            # Whoever did that need not have meant this candidate; one that it happens to twice is blamed.
            self._disconnect()
            measurement = self._measure(request)
        return dataclasses.replace(measurement, build_secs=artifact.build_secs, measure_secs=time.monotonic() - started)

    def close(self) -> None:
        self._disconnect()

    def _measure(self, request: MeasureRequest) -> Measurement:
        try:
            bench, module, arguments = self._fresh_on_loss(lambda bench: self._prepare(bench, request))
        except SessionLostError as error:
            return Measurement(Outcome.DEVICE_LOST, detail=str(error))
        except Exception as error:
            return Measurement(Outcome.RUN_ERROR, detail=last_line(error))
        try:
            evaluation = self._evaluate(bench, module, arguments, request)
        except SessionLostError as error:
            return self._lost_while_running(error, request.rule)
        except Exception as error:
            return Measurement(Outcome.RUN_ERROR, detail=last_line(error))
        if not statistics.median(evaluation.run_secs) < request.incumbent_secs:
            return Measurement(Outcome.OK, evaluation.run_secs, stopped=evaluation.stopped)
        return self._verify(bench, module, request, evaluation)

    def _prepare(self, bench: Workbench, request: MeasureRequest) -> tuple[Workbench, Any, list[Any]]:
        artifact = request.artifact
        with bench.session.deadline(PREPARE_TIMEOUT_SECS):
            module = bench.load(artifact.library)
            place = bench.place_anew if request.placed_anew else bench.arguments
            return bench, module, place(artifact, module, self._positive(artifact.task_id))

    def _evaluate(self, bench: Workbench, module: Any, arguments: list[Any], request: MeasureRequest) -> Evaluation:
        def beside_the_kernel(rule: StopRule, incumbent_secs: float) -> Evaluation:
            # The server ends a batch that takes too long, and begins none when time is up: this is for a dead network.
            with bench.session.deadline(2.2 * rule.timeout_secs + 10.0):
                text = encode_request(rule, incumbent_secs, bench.kind)
                answer = bench.session.function("fleet_tune.evaluate")(module, "main", text, *arguments)
                return decode_evaluation(answer)

        def from_here(rule: StopRule, incumbent_secs: float) -> Evaluation:
            run_batch = batch_timer(module, "main", bench.device, arguments, rule.flush_bytes)

            def guarded(runs: int) -> float:
                with bench.session.deadline(rule.timeout_secs + 1.0):
                    return run_batch(runs)

            return evaluate(guarded, rule, incumbent_secs, self._decide)

        measure = beside_the_kernel if bench.session.ours else from_here

        def placed_anew(rule: StopRule, incumbent_secs: float) -> Evaluation:
            """In other memory than before: where the tensors lie may have been what made the candidate fast."""
            nonlocal arguments
            with bench.session.deadline(PREPARE_TIMEOUT_SECS):
                artifact = request.artifact
                arguments = bench.place_anew(artifact, module, self._positive(artifact.task_id))
            return measure(rule, incumbent_secs)

        return confirmed(measure, placed_anew, request)

    def _verify(self, bench: Workbench, module: Any, request: MeasureRequest, evaluation: Evaluation) -> Measurement:
        """The measurement of a candidate that would be the new incumbent, checked against the oracle."""
        artifact = request.artifact
        try:
            # On inputs as they were made: those on the device may have been written to, by a candidate out of bounds.
            bench.forget(artifact.task_id)
            expected = self._expected_of(bench, artifact.task_id)
        except SessionLostError as error:
            # The oracle is not the candidate's fault.
            self._disconnect()
            return Measurement(Outcome.DEVICE_LOST, detail=f"while running the oracle: {error}")
        try:
            with bench.session.deadline(PREPARE_TIMEOUT_SECS + request.rule.timeout_secs):
                arguments = bench.arguments(artifact, module, expected.positive)
                difference = disagreement(expected.outputs, bench.outputs(artifact, module, arguments))
        except SessionLostError as error:
            return self._lost_while_running(error, request.rule)
        except Exception as error:
            return Measurement(Outcome.RUN_ERROR, detail=last_line(error))
        if difference:
            return Measurement(Outcome.WRONG_OUTPUT, detail=difference)
        return Measurement(Outcome.OK, evaluation.run_secs, stopped=evaluation.stopped, verified=True)

    def _expected_of(self, bench: Workbench, task_id: str) -> _Expected:
        """Outputs of the task's unscheduled program on this device, from the cache or by running it.

        On inputs of both signs; if some output is then not finite, on positive ones.
        """
        if task_id not in self._expected:
            oracle = self._oracles[task_id]
            with bench.session.deadline(ORACLE_TIMEOUT_SECS):
                module = bench.load(oracle.library)
                for positive in (False, True):
                    arguments = bench.arguments(oracle, module, positive)
                    outputs = bench.outputs(oracle, module, arguments)
                    if all_finite(outputs):
                        break
                self._expected[task_id] = _Expected(positive, outputs)
        return self._expected[task_id]

    def _positive(self, task_id: str) -> bool:
        expected = self._expected.get(task_id)
        return expected is not None and expected.positive

    def _lost_while_running(self, error: SessionLostError, rule: StopRule) -> Measurement:
        """What to make of a session that was lost while a candidate ran: ask the server, if it is still there."""
        self._disconnect()
        try:
            session = self._connected().session
            with session.deadline(self._connect_timeout_secs):
                end = str(session.function("fleet_tune.last_exit")()) if session.ours else None
        except SessionLostError as lost:
            self._disconnect()
            return Measurement(Outcome.DEVICE_LOST, detail=f"{error}; then {lost}")
        if isinstance(error, SessionTimeoutError) or (end is not None and "SIGALRM" in end):
            return Measurement(Outcome.RUN_TIMEOUT, detail=f"no result within {rule.timeout_secs:g} s")
        if end is None:
            return Measurement(Outcome.RUN_ERROR, detail=f"the session ended while the kernel ran: {error}")
        if any(name in end for name in _CRASHES) or end.startswith("exited with"):
            return Measurement(Outcome.RUN_ERROR, detail=f"the process that ran the kernel: {end}")
        return Measurement(Outcome.DEVICE_LOST, detail=f"{error}{'; ' + end if end else ''}")

    def _fresh_on_loss(self, action: Callable[[Workbench], T]) -> T:
        """Run ``action``; if the session turns out to be lost, once more in a fresh one (servers restart)."""
        try:
            return action(self._connected())
        except SessionTimeoutError:
            self._disconnect()
            raise
        except SessionLostError:
            self._disconnect()
        try:
            return action(self._connected())
        except SessionLostError:
            self._disconnect()
            raise

    def _connected(self) -> Workbench:
        """The open session's workbench; connects if there is none, until the deadline. Raises SessionLostError."""
        bench = self._bench
        if bench is not None and not bench.session.ours and bench.session.age_secs > PLAIN_SESSION_SECS / 2:
            self._disconnect()
            bench = None
        if bench is None:
            session = self._connect()
            try:
                kind = device_kind(self._resolved_target(session))
                with session.deadline(self._connect_timeout_secs):
                    bench = Workbench(session, kind, self._cache_bytes)
            except BaseException:
                session.close()
                raise
            self._bench = bench
        return bench

    def _connect(self) -> RpcSession:
        """A new session. A server that is just being restarted refuses connections for a moment."""
        deadline = time.monotonic() + self._connect_timeout_secs
        pause_secs = 0.05
        while True:
            remaining = deadline - time.monotonic()
            try:
                return self._open(max(0.1, remaining))
            except SessionTimeoutError:
                raise
            except SessionLostError:
                if remaining <= pause_secs:
                    raise
            time.sleep(pause_secs)
            pause_secs = min(1.0, 2 * pause_secs)

    def _open(self, timeout_secs: float) -> RpcSession:
        """Our own server ends hanging kernels itself; a plain one is asked for a session that expires."""
        if self._tracker_key is None:
            return RpcSession(self._host, self._port, self._key, timeout_secs, PLAIN_SESSION_SECS, self._name)
        deadline = time.monotonic() + timeout_secs
        if self._held is not None:
            try:
                return RpcSession(*self._held, timeout_secs=min(HELD_SECS, timeout_secs), name=self._name)
            except SessionLostError:
                self._held = None
        try:
            server = request_server(self._host, self._port, self._tracker_key, max(0.1, deadline - time.monotonic()))
        except TrackerError as error:
            raise SessionLostError(str(error)) from error
        remaining = max(1.0, deadline - time.monotonic())
        session = RpcSession(server.host, server.port, server.match_key, remaining, PLAIN_SESSION_SECS, self._name)
        if session.ours:  # a plain one serves whom the tracker sends, and nobody else
            self._held = (server.host, server.port)
        return session

    def _disconnect(self) -> None:
        bench, self._bench = self._bench, None
        if bench is not None:
            bench.session.close()

    def _resolved_target(self, session: RpcSession) -> str:
        """The canonical target; the device's own CPU is asked for once."""
        if not self._target:
            if session.ours:
                with session.deadline(PREPARE_TIMEOUT_SECS):
                    text = str(session.function("fleet_tune.native_target")())
                self._target = resolve_target(text, self._config.threads)
            else:
                raise TargetError(
                    f"device {self.device_id}: a plain TVM RPC server cannot say which CPU it runs on",
                    "name the device's target in the fleet file, or run `fleet-tune device serve` on it",
                )
        return self._target


@dataclasses.dataclass(frozen=True)
class _Expected:
    """Outputs of a task's oracle, and on which kind of inputs (see :func:`devices.timing.arguments.make_inputs`)."""

    positive: bool
    outputs: list[Array]
