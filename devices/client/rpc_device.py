"""A device behind a TVM RPC server: measures candidates there, and checks those that would be the new incumbent."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from devices.client import fingerprint as fingerprints
from devices.client.connection import Connection
from devices.client.measuring import LoadedCandidate
from devices.client.network import LoadedNetwork
from devices.client.output_check import Oracle, OracleFailedError, OracleTimeoutError, sent_bytes
from devices.client.probe import Probe
from devices.client.session import (
    NO_KEY,
    ContextLostError,
    GpuUnusableError,
    ServerKey,
    SessionLostError,
    SessionRefusedError,
    SessionTimeoutError,
    SessionUnreachedError,
)
from devices.client.session_loss import DAMAGE, ILLEGAL, loss_measurement
from devices.client.shared_memory import NoRoomError
from devices.client.workbench import Workbench
from devices.cuda.errors import context_lost_by, said
from devices.error_text import last_line
from devices.host.children.exit_causes import ended_from_outside
from devices.host.limits.shortage import is_shortage
from devices.protocol import Artifact, MeasureRequest, OracleOutputs, measurable, oracle_task
from devices.targets import TargetError, default_device_class_name, library_of
from devices.timing.arguments import Array
from devices.timing.evaluator import confirmed, load_decide
from devices.timing.kernel_round import RoundArguments, encode_round
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.device_state import HOT
from fleet_tune.base.domain import DeviceAbstraction, DeviceClass, Fingerprint, Measurement, Outcome, StopRule
from fleet_tune.base.errors import DeviceKeyError, DeviceUnreachableError, ProbeError, UncheckedError, UserError

_LOG = logging.getLogger(__name__)


class RpcDevice:
    """A device behind the server at ``host:port`` (see :class:`devices.protocol.Device`).

    Connects when it is first needed, and again after a lost session. Raises TargetError for an unknown target.

    Args:
        config: the device, as the fleet file describes it.
        host: address of the server, or of a tracker.
        port: port there.
        decide: ``"module:function"`` of the stopping rule, used with a plain TVM RPC server; our own server has its own
            rule.
        connect_timeout_secs: time to wait for an unreachable or busy server before the device counts as lost; ``None``
            for the time in ``config``.
        cache_bytes: size of the tensors kept on the device between candidates.
        tracker_key: key to ask for, if ``host:port`` is a TVM RPC tracker. The server that the tracker gives is kept as
            long as it works, and tried first when its session is lost.
        server_key: the key that the server is expected to have.
    """

    def __init__(
        self,
        config: DeviceConfig,
        host: str,
        port: int,
        *,
        decide: str | None = None,
        connect_timeout_secs: float | None = None,
        cache_bytes: int = 512 << 20,
        tracker_key: str | None = None,
        server_key: ServerKey = NO_KEY,
    ) -> None:
        self._config = config
        wait_secs = config.timeouts.connect_secs if connect_timeout_secs is None else connect_timeout_secs
        self._connection = Connection(
            config,
            host,
            port,
            tracker_key=tracker_key,
            timeout_secs=wait_secs,
            cache_bytes=cache_bytes,
            server_key=server_key,
        )
        self._cache_bytes = cache_bytes
        self._decide = load_decide(decide)
        self._oracles: dict[str, Oracle] = {}
        self._probe: Probe | None = None
        self._abstraction: DeviceAbstraction | None = None  # once it was probed
        self._server: tuple[int, str] | None = None  # threads and version of TVM, once probed

    @property
    def device_id(self) -> str:
        return self._config.name

    def fingerprint(self) -> Fingerprint:
        """Probe the device: run the probes, read its properties.

        Raises DeviceUnreachableError, TargetError if the server cannot tell its own CPU for which the fleet file asks,
        or if the device cannot run code for its target, DeviceKeyError if the server has another key than ours,
        VersionsDifferError if it has another version of TVM.
        """
        with self._reached():
            try:
                bench = self._connection.workbench()
            except SessionRefusedError as error:
                problem, _, next_step = str(error).partition("; ")
                raise DeviceKeyError(problem, next_step) from error
            except GpuUnusableError as error:
                if self._connection.has_worked:  # the GPU is lost
                    raise
                raise TargetError(
                    f"device {self.device_id}: {error}",
                    "install NVIDIA's driver and CUDA's runtime library there (cluster/devices.md), let the server's "
                    "user open the GPU's device files, or name a CPU as the target",
                ) from error
            target = self._connection.target
            device_class = DeviceClass(self._class_name(target), target)
            try:
                found = fingerprints.probe(bench, device_class, self._config.threads)
                self._abstraction = found.abstraction
                self._server = found.threads, found.tvm_version
                if self.vitals().get(HOT):
                    _LOG.warning("device %s is hot: its highest speeds were found at a lower clock", self.device_id)
                return found
            except SessionTimeoutError:
                raise
            except SessionLostError as error:
                end = self._lost_exit()
                if end is not None and ILLEGAL in end:
                    cpu = json.loads(target).get("mcpu") or device_class.name
                    raise TargetError(
                        f"the processor lacks instructions of {cpu} (the process that ran the probe: {end})",
                        'name an older CPU as its target\'s mcpu, or "native" on its own machine',
                    ) from error
                raise SessionLostError(f"{error}{'; ' + end if end else ''}") from error

    def _class_name(self, target: str) -> str:
        """Return the name of the device's class. Devices whose kernels may call a library are in a class of their own:
        their candidates differ from those of other devices."""
        given, library = self._config.device_class, library_of(target)
        return f"{given}-{library}" if given and library else given or default_device_class_name(target)

    def ping(self) -> float:
        with self._reached():
            bench = self._connection.once_more_on_loss(_answering)
            started = time.monotonic()
            _answering(bench)
            return time.monotonic() - started

    def probe_secs(self) -> float:
        with self._reached():
            try:
                return self._connection.once_more_on_loss(self._run_probe)
            except (SessionLostError, UserError, ProbeError):
                raise
            except Exception as error:
                raise ProbeError(self.device_id, said(error)) from error

    def power(self) -> str:
        with self._reached():
            return self._connection.once_more_on_loss(fingerprints.power_now)

    def vitals(self) -> dict[str, float]:
        bench = self._connection.bench
        if bench is None or not bench.session.ours:
            return {}
        try:
            with self._reached(), bench.session.deadline(self._connection.timeout_secs):
                vitals: dict[str, float] = json.loads(bench.session.function("fleet_tune.vitals")(bench.kind))
        except Exception:  # the session is lost, or a server of an older version does not tell
            return {}
        return vitals

    def add_oracle(self, artifact: Artifact) -> None:
        self._oracles[oracle_task(artifact)] = Oracle(artifact, self._abstraction, self._config.timeouts)

    def run_oracle(self, task_id: str) -> str:
        oracle = self._oracles[task_id]
        unreached: DeviceUnreachableError | None = None
        if not oracle.has_run and not oracle.is_given_up:
            # Any other error occurs again when the first candidate is checked, and is handled there.
            with contextlib.suppress(Exception):
                try:
                    oracle.runs(self._connection.once_more_on_loss(_answering))
                except OracleTimeoutError:
                    self._lost_exit()
                except SessionUnreachedError as error:
                    unreached = DeviceUnreachableError(self.device_id, str(error))
                except ContextLostError as error:
                    self._lost_exit()
                    oracle.ended_session(str(error))
                except SessionLostError:
                    end = self._lost_exit()
                    if end and not ended_from_outside(end):
                        oracle.ended_session(end)
        if unreached is not None:
            raise unreached
        return oracle.problem

    def use_oracle_outputs(self, task_id: str, outputs: OracleOutputs) -> None:
        self._oracles[task_id].use(outputs)

    def measure(self, request: MeasureRequest) -> Measurement:
        artifact = request.artifact
        measurable(artifact, self._oracles)
        started = time.monotonic()
        fresh = self._connection.bench is None
        measurement = self._measure_once(request, fresh)
        damaged = any(name in measurement.detail for name in DAMAGE)
        if not fresh and (damaged or context_lost_by(measurement.detail) is not None):
            # An earlier candidate of the same session may have damaged it: measure again in a fresh session.
            self._connection.close()
            measurement = self._measure_once(request, fresh=True)
        if measurement.outcome is Outcome.KILLED:
            self._connection.close()
            measurement = self._measure_once(request, fresh=True)
        return dataclasses.replace(measurement, build_secs=artifact.build_secs, measure_secs=time.monotonic() - started)

    def extra_secs(self, artifacts: Sequence[Artifact], budget_secs: float) -> float | None:
        if sum(map(sent_bytes, artifacts)) > self._cache_bytes:  # all kernels are there at a time
            return None
        try:
            return self._extra_secs(self._connection.workbench(), artifacts, time.monotonic() + budget_secs)
        except SessionLostError:
            self._connection.close()
        except Exception:  # the result only informs people, and nothing depends on it
            _LOG.debug("kernels did not run in a round", exc_info=True)
        return None

    def load_network(self, library: bytes, arguments: Sequence[Array]) -> LoadedNetwork:
        """Load a compiled network on the device, with its inputs and parameters. The network is lost with its session,
        which the next failed measurement may end.

        Raises UncheckedError if the device cannot be reached or cannot load it.
        """
        try:
            return self._connection.once_more_on_loss(
                lambda bench: LoadedNetwork(bench, library, arguments, self._lost_exit, self._config.timeouts)
            )
        except SessionLostError as error:
            self._connection.close()
            raise UncheckedError(f"device {self.device_id} did not answer: {error}") from error
        except Exception as error:
            raise UncheckedError(f"device {self.device_id} cannot load it: {last_line(error)}") from error

    def close(self) -> None:
        self._connection.close()

    def _extra_secs(self, bench: Workbench, artifacts: Sequence[Artifact], deadline: float) -> float | None:
        if not bench.session.ours or bench.kind != "cpu":
            return None
        measure = bench.session.function("fleet_tune.extra_secs")  # which a server of an older version lacks
        loaded: list[Any] = []
        arguments: list[RoundArguments] = []
        for artifact in artifacts:
            oracle = self._oracles[artifact.task_id]
            if time.monotonic() >= deadline:
                return None
            # Past the deadline the session would be cut, and all its tensors would be lost.
            with bench.session.deadline(self._connection.timeout_secs):
                module = bench.load(artifact.library)
                loaded += [module, *bench.arguments(artifact, module, oracle.positive)]
            arguments.append(RoundArguments.of(artifact, not (oracle.positive or oracle.plan.rounds)))
        timeout_secs = self._config.timeouts.candidate_secs
        # The server ends a round that takes too long. This deadline is for a lost network.
        with bench.session.deadline(2 * timeout_secs + 10.0):
            secs = float(measure(encode_round(arguments), timeout_secs, *loaded))
        return secs if math.isfinite(secs) else None

    def _measure_once(self, request: MeasureRequest, fresh: bool) -> Measurement:
        """``fresh``: true if no other candidate has run in the session."""
        oracle = self._oracles[request.artifact.task_id]
        try:
            candidate = self._connection.once_more_on_loss(
                lambda bench: LoadedCandidate(bench, request, oracle.positive, self._decide, self._config.timeouts)
            )
        except Exception as error:
            return self._failed(error)
        try:
            evaluation = confirmed(candidate.evaluate, candidate.evaluate_placed_anew, request)
        except Exception as error:
            return self._failed(error, request.rule)
        measured = Measurement(
            Outcome.OK,
            evaluation.run_secs,
            stopped=evaluation.stopped,
            throttled=evaluation.throttled,
            slowed_by=evaluation.slowed_by,
        )
        if not measured.cost_secs < request.incumbent_secs:
            return measured
        # It would be the new incumbent.
        if oracle.is_given_up:
            return measured
        try:
            oracle.runs(candidate.bench)
        except OracleTimeoutError as error:  # neither the candidate nor the device is at fault
            try:
                self._lost_exit()
            except SessionLostError as lost:
                self._connection.close()
                return Measurement(Outcome.DEVICE_LOST, detail=f"while running the oracle: {error}; then {lost}")
            return measured
        except OracleFailedError:
            return measured
        except SessionLostError as error:  # not the candidate's fault
            lost_error = SessionLostError(f"while running the oracle: {error}")
            try:
                end = self._lost_exit()
            except SessionLostError as lost:
                return Measurement(Outcome.DEVICE_LOST, detail=f"{lost_error}; then {lost}")
            if isinstance(error, ContextLostError) and fresh:
                oracle.ended_session(str(error))
                return measured
            # A fault of the GPU may also be an earlier candidate's: `measure` tries again in a fresh session.
            if isinstance(error, ContextLostError) or not end or ended_from_outside(end):
                return loss_measurement(lost_error, end, None)
            oracle.ended_session(end)
            return measured
        try:
            difference = candidate.disagreement(oracle)
        except Exception as error:
            return self._failed(error, request.rule)
        if difference:
            return Measurement(Outcome.WRONG_OUTPUT, detail=difference)
        return dataclasses.replace(measured, verified=True)

    def _failed(self, error: Exception, rule: StopRule | None = None) -> Measurement:
        """Return the measurement of a candidate that ended with ``error``. ``rule``: rule by which its kernel ran;
        ``None`` if it did not run.

        If the session was lost, the server is asked how it ended.
        """
        if not isinstance(error, SessionLostError):
            # Without memory for the task's own tensors no candidate of it can run now.
            outcome = Outcome.KILLED if is_shortage(error) or isinstance(error, NoRoomError) else Outcome.RUN_ERROR
            return Measurement(outcome, detail=said(error))
        if self._connection.bench is None:  # no session could be opened
            return Measurement(Outcome.DEVICE_LOST, detail=str(error))
        try:
            end = self._lost_exit()
        except SessionLostError as lost:
            self._connection.close()
            return Measurement(Outcome.DEVICE_LOST, detail=f"{error}; then {lost}")
        return loss_measurement(error, end, rule)

    def _lost_exit(self) -> str | None:
        """Return how the session that was just lost ended, as its server tells. Raises SessionLostError."""
        self._connection.close()
        return self._connection.last_exit()

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Turn the loss of a session into DeviceUnreachableError, for calls whose answer is no measurement."""
        try:
            yield
        except SessionLostError as error:
            self._connection.close()
            raise DeviceUnreachableError(self.device_id, str(error)) from error

    def _run_probe(self, bench: Workbench) -> float:
        if self._probe is None or self._probe.bench is not bench:  # its kernel is lost with its session
            self._check_unchanged(bench)
            self._probe = Probe(bench, self._connection.target)
        return self._probe.secs()

    def _check_unchanged(self, bench: Workbench) -> None:
        """Raise ProbeError if the server has come back with another number of threads or version of TVM than the
        fingerprint has. The probe does not show such a change, and times would not be comparable."""
        if self._server is None:
            return
        with bench.session.deadline(self._config.timeouts.probe_secs):
            now = _server_of(fingerprints.describe(bench))
        if now != self._server:
            came, was = (f"TVM {version} on {threads} CPUs" for threads, version in (now, self._server))
            reason = f"its server has come back with {came}, and this run began with {was}"
            raise ProbeError(self.device_id, f"{reason}: start it as it was, or end the run and begin it again")


def _server_of(says: Mapping[str, Any]) -> tuple[int, str]:
    """Return the number of threads and the version of TVM of a server. ``says``: result of
    :func:`devices.client.fingerprint.describe`."""
    return int(says["threads"]), str(says["tvm_version"])


def _answering(bench: Workbench) -> Workbench:
    """Return ``bench``, if its session still answers. Raises SessionLostError."""
    if not bench.session.alive():
        raise SessionLostError("the session ended")
    return bench
