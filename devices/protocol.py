"""What every device offers, whatever stands behind it (a TVM RPC server, a dataset, a simulation), and what travels
between searcher, builder and device. Plain values, no TVM: actors hand them on without loading it."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any, Protocol

from fleet_tune.base.domain import (
    Candidate,
    Confirmation,
    DeviceClass,
    Fingerprint,
    Measurement,
    StopRule,
    Task,
    Workload,
)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype of one argument of a kernel."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class InputDraw:
    """How one input of a checked run is drawn, so that a wrong kernel shows (see :mod:`devices.builds.check_plan`).

    Integers are uniform in [``low``, ``high``). Of floats, of both signs, a share ``density`` is drawn, the others are
    ``rest``; of those at the first and last index of the axes ``ends`` half are drawn in any case. What is drawn is
    between ``low`` and ``high`` in magnitude: ``steps`` 0 for any value, 1 for ``high`` alone, else (``low`` 0)
    multiples of ``high / steps``.
    """

    low: float = 0.0
    high: float = 1.0
    steps: int = 0
    density: float = 1.0
    rest: float = 0.0
    ends: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """What has to be known of a workload to tell right kernels from wrong ones.

    ``precision``: the narrowest float type in which it computes, empty where it has none. ``exact``: on inputs as they
    are drawn no sum is rounded, whatever the order of its terms. ``sums``: it has sums of floats. ``rounds``: it makes
    integers of floats. ``draws``: one for each argument; empty where nothing is known.
    """

    precision: str = ""
    exact: bool = False
    sums: bool = True
    rounds: bool = False
    draws: tuple[InputDraw, ...] = ()


UNKNOWN = CheckPlan()


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """Build ``candidate`` of ``task``; ``candidate`` None asks for the unscheduled program (the oracle)."""

    task: Task
    candidate: Candidate | None
    timeout_secs: float = 60.0


@dataclass(frozen=True)
class Artifact:
    """A kernel compiled for a device.

    ``library``: bytes of a shared object with the function ``main`` over ``args`` (inputs and outputs in the order of
    the TensorIR function). ``packed``: indices of the constant-weight arguments that ``main`` expects re-laid out; for
    each the library has a function ``pack_<index>(original, packed)``. ``original_args``: the arguments before
    re-laying out. ``outputs``: indices of the arguments that the kernel writes. ``trace``: JSON text of the applied
    trace, empty for the oracle. ``check``: how candidates are checked against it; only an oracle has it.
    ``flop``: operations of one run, 0 where that is not known.
    """

    task_id: str
    candidate: Candidate | None
    library: bytes = field(repr=False)
    args: tuple[TensorSpec, ...]
    original_args: tuple[TensorSpec, ...]
    outputs: tuple[int, ...]
    packed: tuple[int, ...]
    trace: str = field(repr=False)
    build_secs: float
    check: CheckPlan = field(default=UNKNOWN, repr=False)
    flop: float = 0.0


@dataclass(frozen=True)
class BuildFailure:
    """A build that gave no artifact, as a value; ``measurement`` has the outcome BUILD_ERROR or BUILD_TIMEOUT."""

    task_id: str
    candidate: Candidate | None
    trace: str = field(repr=False)
    measurement: Measurement


BuildResult = Artifact | BuildFailure


@dataclass(frozen=True, slots=True)
class MeasureRequest:
    """Measure ``artifact``. ``incumbent_secs``: cost of the task's best verified candidate so far, infinite if none, 0
    for a measurement that nothing is to be compared with. ``confirm``: what a good result must stand, None for nothing.
    What is below ``incumbent_secs`` then is checked numerically before it is returned. ``placed_anew``: with
    tensors in other memory than the task's last measurement had; where they lie makes up to 10 or 20 % of the time."""

    artifact: Artifact
    incumbent_secs: float
    rule: StopRule = field(default_factory=StopRule)
    confirm: Confirmation | None = None
    placed_anew: bool = False


class Device(Protocol):
    """One device. Not thread-safe: one owner calls it. Every call returns within a deadline."""

    def fingerprint(self) -> Fingerprint:
        """Probe the device. Raises DeviceUnreachableError."""

    def ping(self) -> float:
        """Seconds of one round trip to the device's server. Raises DeviceUnreachableError."""

    def probe_secs(self) -> float:
        """Seconds of one run of the probe, the one of :attr:`Fingerprint.probe_secs`: some milliseconds of work, which
        tell how fast the device is now.

        Raises DeviceUnreachableError where the device does not answer, ProbeError where it answers and the
        kernel fails.
        """

    def vitals(self) -> dict[str, float]:
        """Temperature and clock as far as the device offers them (see :mod:`devices.host.vitals`); nothing where it
        does not answer."""

    def add_oracle(self, artifact: Artifact) -> None:
        """Keep the unscheduled program of a task (an artifact with no candidate) to check results against.

        Raises ValueError for an artifact with a candidate.
        """

    def measure(self, request: MeasureRequest) -> Measurement:
        """Measure one candidate; however that ends is a value.

        A result below ``request.incumbent_secs`` was compared with the oracle's output: it is ``verified``, or its
        outcome is WRONG_OUTPUT. ``build_secs`` is the artifact's.

        Raises ValueError for an artifact without a candidate, or of a task whose oracle was not added.
        """

    def close(self) -> None:
        """Let go of the device. May be called twice."""


def oracle_task(artifact: Artifact) -> str:
    """The task whose oracle an artifact is. Raises ValueError where it is none; see :meth:`Device.add_oracle`."""
    if artifact.candidate is not None:
        raise ValueError("an oracle is the unscheduled program: its artifact has no candidate")
    return artifact.task_id


def measurable(artifact: Artifact, oracles: Container[str]) -> Candidate:
    """The candidate of an artifact that a device shall measure; ``oracles``: the tasks whose oracle it has. Raises
    ValueError; see :meth:`Device.measure`."""
    if artifact.candidate is None:
        raise ValueError("the artifact to measure has no candidate")
    if artifact.task_id not in oracles:
        raise ValueError(f"the oracle of task {artifact.task_id} was not added")
    return artifact.candidate


def encode_task(task: Task) -> dict[str, Any]:
    """A task as a msgpack map."""
    workload, device_class = task.workload, task.device_class
    return {
        "workload": [workload.hash, workload.name, workload.flop, workload.module],
        "device_class": [device_class.name, device_class.target],
        "weight": task.weight,
        "imported": list(task.imported),
    }


def decode_task(message: dict[str, Any]) -> Task:
    workload, device_class = Workload(*message["workload"]), DeviceClass(*message["device_class"])
    return Task(workload, device_class, message["weight"], tuple(message["imported"]))
