"""The interface of every device (a TVM RPC server, a dataset, a simulation), and the values that travel between
searcher, builder and device. No TVM: actors hand these values on without loading it."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fleet_tune.base.domain import (
    Candidate,
    Confirmation,
    DeviceClass,
    FewerRows,
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
    holds: str = ""
    """Type of the two floats that each element holds; empty if each element is one number."""

    @property
    def numbers(self) -> TensorSpec:
        """The tensor with an axis for the two numbers of an element; the tensor itself if each element is one
        number."""
        return TensorSpec((*self.shape, 2), self.holds) if self.holds else self


@dataclass(frozen=True, slots=True)
class InputDraw:
    """Distribution of one input of a checked run, chosen so that a wrong kernel is noticed (see
    :mod:`devices.builds.checks.check_plan`).

    Integers are in [``low``, ``high``): uniform, of all magnitudes, and at the ends. Floats have both signs and a
    magnitude between ``low`` and ``high``.
    """

    low: float = 0.0
    high: float = 1.0
    steps: int = 0
    """Number of distinct magnitudes: 0 for any value, 1 for ``high`` alone, else (with ``low`` 0) multiples of ``high /
    steps``."""
    density: float = 1.0
    """Share of the values that are drawn; the others are ``rest``."""
    rest: float = 0.0
    ends: tuple[int, ...] = ()
    """Axes whose first and last index matter more: with a ``density`` below 1, half of the values there are drawn; else
    the values there are twice as large as elsewhere, so that a maximum or minimum is often there."""
    selected: tuple[int, ...] = ()
    """Axes along which a maximum or minimum is taken: along them, in a quarter of the cases each, no value is negative,
    or none is positive."""
    signed: bool = True
    """False if no float is negative."""
    zero: bool = True
    """False if no integer is 0."""


@dataclass(frozen=True, slots=True)
class SpecialRows:
    """Rows along ``axes`` that are special as a whole."""

    axes: tuple[int, ...]
    exponential: bool
    """True if exponentials are summed: in a quarter of the rows one value is huge, often one at an end, and in another
    quarter all values are hugely negative. False: a quarter of the rows has small values."""


@dataclass(frozen=True, slots=True)
class SpecialDraw:
    """Values of one input in the second run of a check (see :mod:`devices.builds.checks.special_values`): special ones
    at random places among ordinary ones."""

    base: InputDraw
    """Distribution of the ordinary values."""
    nan: int = 0
    """Number of NaN."""
    infinite: int = 0
    """Number of infinities."""
    signed: bool = True
    """False for no negative values."""
    zeros: bool = False
    """True for zeros of both signs."""
    subnormal: bool = False
    """True for the smallest subnormal number, of both signs, among the zeros."""
    limit: float = 0.0
    """Largest of the numbers of all magnitudes; infinite for the largest number of the type. 0: there are no such
    numbers."""
    ties: bool = False
    """True for halves and whole numbers among the values."""
    rows: SpecialRows | None = None
    """Rows that are special as a whole."""
    scales: tuple[float, ...] = ()
    """Factors by which some of these halves and whole numbers are multiplied."""


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """Properties of a workload by which right kernels are told from wrong ones."""

    precision: str = ""
    """Narrowest float type in which it computes; empty if it has none."""
    exact: bool = False
    """True if no sum is rounded on these inputs, whatever the order of its terms."""
    sums: bool = True
    """True if it has sums of floats."""
    rounds: bool = False
    """True if it makes integers from floats, and right kernels need not agree to the last bit."""
    draws: tuple[InputDraw, ...] = ()
    """One for each argument; empty if nothing is known."""
    specials: tuple[SpecialDraw, ...] = ()
    """One for each argument; empty for no second run."""
    reproducible: bool = False
    """True if right kernels agree to the last bit."""
    compares_zeros: bool = False
    """True if right kernels agree on the signs of zeros too."""


UNKNOWN = CheckPlan()


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """Request to build one candidate."""

    task: Task
    candidate: Candidate | None
    """None asks for the unscheduled program (the oracle)."""
    timeout_secs: float = 60.0


@dataclass(frozen=True)
class Artifact:
    """A kernel compiled for a device."""

    task_id: str
    candidate: Candidate | None
    library: bytes = field(repr=False)
    """Bytes of a shared object with the function ``main`` over ``args``."""
    args: tuple[TensorSpec, ...]
    """Inputs and outputs in the order of the TensorIR function."""
    original_args: tuple[TensorSpec, ...]
    """Arguments before constant weights were laid out anew."""
    outputs: tuple[int, ...]
    """Indices of the arguments that the kernel writes."""
    packed: tuple[int, ...]
    """Indices of the constant weights that ``main`` expects in another layout; for each the library has a function
    ``pack_<index>(original, packed)``."""
    trace: str = field(repr=False)
    """JSON text of the applied trace; empty for the oracle."""
    build_secs: float
    check: CheckPlan = field(default=UNKNOWN, repr=False)
    """How candidates are checked against it; only an oracle has it."""
    flop: float = 0.0
    """Operations of one run; 0 if that is not known."""
    program: str = field(default="", repr=False)
    """Program of the workload (:attr:`Workload.module`); only an oracle has it."""


BuildResult = Artifact | Measurement
"""The artifact, or the failure: a measurement with the outcome BUILD_ERROR, BUILD_TIMEOUT or KILLED."""


@dataclass(frozen=True)
class CheckedRun:
    """The outputs of an oracle on one set of inputs."""

    special: bool
    """True for inputs with special values."""
    outputs: list[NDArray[np.generic]]


@dataclass(frozen=True)
class OracleOutputs:
    """All that an oracle computes."""

    positive: bool
    """True if candidates are timed and checked on positive inputs (see :func:`devices.timing.arguments.make_inputs`):
    the oracle's outputs are not finite on inputs of both signs."""
    runs: tuple[CheckedRun, ...]


@dataclass(frozen=True, slots=True)
class MeasureRequest:
    """Request to measure an artifact. A result below ``incumbent_secs`` is checked numerically before it is
    returned."""

    artifact: Artifact
    incumbent_secs: float
    """Cost of the task's best verified candidate so far: infinite if there is none, 0 for a measurement that is
    compared with nothing."""
    rule: StopRule = field(default_factory=StopRule)
    confirm: Confirmation | None = None
    """Second measurement that confirms a good result; ``None`` for none."""
    placed_anew: bool = False
    """True to place the tensors at other addresses than in the task's last measurement. Addresses change the time by up
    to 10 or 20 %."""


class Device(Protocol):
    """One device. Not thread-safe: one owner calls it. Every call returns within a deadline."""

    def fingerprint(self) -> Fingerprint:
        """Probe the device. Raises DeviceUnreachableError."""

    def ping(self) -> float:
        """Return the seconds of one round trip to the device's server. Raises DeviceUnreachableError."""

    def probe_secs(self) -> float:
        """Return the seconds of one run of the probe, the one of :attr:`Fingerprint.probe_secs`: a millisecond of
        arithmetic, which shows how fast the device is now.

        Raises DeviceUnreachableError if the device does not answer, ProbeError if it answers and the kernel fails.
        """

    def power(self) -> str:
        """Return the power mode that a board is in now (:attr:`Fingerprint.power`); empty for other devices. Raises
        DeviceUnreachableError."""

    def vitals(self) -> dict[str, float]:
        """Return temperature and clock as far as the device offers them (see :mod:`devices.host.vitals`); empty if it
        does not answer."""

    def add_oracle(self, artifact: Artifact) -> None:
        """Keep the unscheduled program of a task (an artifact with no candidate) to check results against.

        Raises ValueError for an artifact with a candidate.
        """

    def run_oracle(self, task_id: str) -> str:
        """Run the oracle of a task, if it has not run, so that no measurement waits for it.

        Return why it takes too long here or fails, in one line: then candidates are not verified. Empty otherwise: any
        other error is reported by the first measurement that needs the oracle. Raises DeviceUnreachableError if nobody
        answers at the device's address.
        """

    def use_oracle_outputs(self, task_id: str, outputs: OracleOutputs) -> None:
        """Compare candidates of a task with these outputs, which another processor has computed. The task's oracle then
        need not run here."""

    def measure(self, request: MeasureRequest) -> Measurement:
        """Measure one candidate; every outcome is a value.

        A result below ``request.incumbent_secs`` was compared with the oracle's output: it is ``verified``, or its
        outcome is WRONG_OUTPUT. It is neither if the oracle takes too long or fails here. ``build_secs`` is the
        artifact's.

        Raises ValueError for an artifact without a candidate, or of a task whose oracle was not added.
        """

    def extra_secs(self, artifacts: Sequence[Artifact], budget_secs: float) -> float | None:
        """Return the seconds that kernels take longer in a round, each called once as in a network, than alone
        (:mod:`devices.timing.kernel_round`). Noise may bring it below 0.

        ``None`` if the device cannot tell: only CPUs behind our own server can, and loading the kernels must not take
        longer than ``budget_secs``. ``None`` also if the device is lost, which its next call reports. After loading,
        timing may take as long as the longest measurement and :data:`devices.timing.kernel_round.ROUNDS_SECS` together.
        """

    def close(self) -> None:
        """Release the device. May be called twice."""


def oracle_task(artifact: Artifact) -> str:
    """Return the task whose oracle an artifact is. Raises ValueError if it is no oracle; see
    :meth:`Device.add_oracle`."""
    if artifact.candidate is not None:
        raise ValueError("an oracle is the unscheduled program: its artifact has no candidate")
    return artifact.task_id


def measurable(artifact: Artifact, oracles: Container[str]) -> Candidate:
    """Return the candidate of an artifact that a device is to measure. Raises ValueError; see :meth:`Device.measure`.

    ``oracles``: the tasks whose oracle the device has.
    """
    if artifact.candidate is None:
        raise ValueError("the artifact to measure has no candidate")
    if artifact.task_id not in oracles:
        raise ValueError(f"the oracle of task {artifact.task_id} was not added")
    return artifact.candidate


def encode_task(task: Task) -> dict[str, Any]:
    """Return a task as a msgpack map."""
    workload, device_class = task.workload, task.device_class
    return {
        "workload": [workload.hash, workload.name, workload.flop, workload.module],
        "device_class": [device_class.name, device_class.target],
        "weight": task.weight,
        "imported": list(task.imported),
        "fewer_rows": [[each.module, each.work] for each in task.fewer_rows],
    }


def decode_task(message: dict[str, Any]) -> Task:
    """Return the task that :func:`encode_task` wrote."""
    workload, device_class = Workload(*message["workload"]), DeviceClass(*message["device_class"])
    fewer_rows = tuple(FewerRows(*each) for each in message["fewer_rows"])
    return Task(workload, device_class, message["weight"], tuple(message["imported"]), fewer_rows)


def decode_check_plan(fields: dict[str, Any]) -> CheckPlan:
    """Return a plan from its fields as a message has them."""
    draws = tuple(_input_draw(draw) for draw in fields["draws"])
    specials = tuple(_special_draw(special) for special in fields["specials"])
    return CheckPlan(**{**fields, "draws": draws, "specials": specials})


def _special_draw(fields: dict[str, Any]) -> SpecialDraw:
    rows = fields["rows"] and SpecialRows(tuple(fields["rows"]["axes"]), fields["rows"]["exponential"])
    base, scales = _input_draw(fields["base"]), tuple(fields["scales"])
    return SpecialDraw(**{**fields, "base": base, "scales": scales, "rows": rows})


def _input_draw(fields: dict[str, Any]) -> InputDraw:
    return InputDraw(**{**fields, "ends": tuple(fields["ends"]), "selected": tuple(fields["selected"])})


def decode_specs(listed: list[dict[str, Any]]) -> tuple[TensorSpec, ...]:
    """Return specs from their fields as a message has them."""
    return tuple(TensorSpec(tuple(each["shape"]), each["dtype"], each.get("holds", "")) for each in listed)
