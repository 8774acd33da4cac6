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
    """Float type of which each element holds two numbers; empty for elements that are numbers."""

    @property
    def numbers(self) -> TensorSpec:
        """The tensor with an axis for the two numbers of an element; itself where its elements are numbers."""
        return TensorSpec((*self.shape, 2), self.holds) if self.holds else self


@dataclass(frozen=True, slots=True)
class InputDraw:
    """Distribution of one input of a checked run, chosen so that a wrong kernel shows (see
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
    """Axes at whose first and last index half of the values are drawn in any case."""
    selected: tuple[int, ...] = ()
    """Axes of which the largest or the smallest value is taken: along them, in a quarter of the cases each, no value is
    negative, or none is positive."""
    signed: bool = True
    """False for floats of which none is negative."""
    zero: bool = True
    """False for integers of which none is 0."""


@dataclass(frozen=True, slots=True)
class SpecialRows:
    """Rows along ``axes`` that are special as a whole."""

    axes: tuple[int, ...]
    exponential: bool
    """True where exponentials are summed: in a quarter of the rows each, one value is huge, often that at an end, or
    all are hugely negative. Else a quarter of the rows is small."""


@dataclass(frozen=True, slots=True)
class SpecialDraw:
    """Values of one input in the second run of a check (see :mod:`devices.builds.checks.special_values`): special ones
    at random places among others."""

    base: InputDraw
    """The others."""
    nan: int = 0
    """Number of NaN."""
    infinite: int = 0
    """Number of infinities."""
    signed: bool = True
    """False for no negative values."""
    zeros: bool = False
    """True for zeros of both signs."""
    subnormal: bool = False
    """True for the least subnormal number among them."""
    limit: float = 0.0
    """Largest number of those of all magnitudes, infinite for the type's own. 0: there are none."""
    ties: bool = False
    """True for halves and whole numbers among them."""
    rows: SpecialRows | None = None
    """Rows that are special as a whole."""
    scales: tuple[float, ...] = ()
    """Factors that some of those are multiplied by."""


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """Properties of a workload that tell right kernels from wrong ones."""

    precision: str = ""
    """Narrowest float type in which it computes; empty where it has none."""
    exact: bool = False
    """True if no sum is rounded on these inputs, whatever the order of its terms."""
    sums: bool = True
    """True if it has sums of floats."""
    rounds: bool = False
    """True if it makes integers of floats."""
    draws: tuple[InputDraw, ...] = ()
    """One for each argument; empty where nothing is known."""
    specials: tuple[SpecialDraw, ...] = ()
    """One for each argument; empty for no second run."""
    reproducible: bool = False
    """True if right kernels agree to the last bit."""
    compares_zeros: bool = False
    """True if they agree on the signs of zeros too."""


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
    """Operations of one run; 0 where that is not known."""
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
    """Kind of inputs on which candidates are timed and checked (see :func:`devices.timing.arguments.make_inputs`): true
    where its outputs are not finite on inputs of both signs."""
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
    """Second measurement that a good result must stand; None for none."""
    placed_anew: bool = False
    """True to place the tensors in other memory than the task's last measurement: their addresses make up to 10 or 20 %
    of the time."""


class Device(Protocol):
    """One device. Not thread-safe: one owner calls it. Every call returns within a deadline."""

    def fingerprint(self) -> Fingerprint:
        """Probe the device. Raises DeviceUnreachableError."""

    def ping(self) -> float:
        """Return the seconds of one round trip to the device's server. Raises DeviceUnreachableError."""

    def probe_secs(self) -> float:
        """Return the seconds of one run of the probe, the one of :attr:`Fingerprint.probe_secs`: a millisecond of
        arithmetic, which shows how fast the device is now.

        Raises DeviceUnreachableError where the device does not answer, ProbeError where it answers and the kernel
        fails.
        """

    def power(self) -> str:
        """Return the power mode that a board is in now (:attr:`Fingerprint.power`); empty for other devices. Raises
        DeviceUnreachableError."""

    def vitals(self) -> dict[str, float]:
        """Return temperature and clock as far as the device offers them (see :mod:`devices.host.vitals`); empty where
        it does not answer."""

    def add_oracle(self, artifact: Artifact) -> None:
        """Keep the unscheduled program of a task (an artifact with no candidate) to check results against.

        Raises ValueError for an artifact with a candidate.
        """

    def run_oracle(self, task_id: str) -> str:
        """Run the oracle of a task, if it has not run, so that no measurement waits for it. Return why it takes too
        long here or fails, in one line: then candidates are not verified. Empty otherwise; what else may go wrong is
        told of the first measurement that needs it. Raises DeviceUnreachableError where nobody answers at its
        address."""

    def use_oracle_outputs(self, task_id: str, outputs: OracleOutputs) -> None:
        """Compare candidates of a task with these outputs, which another processor computed: its oracle need not run
        here."""

    def measure(self, request: MeasureRequest) -> Measurement:
        """Measure one candidate; every outcome is a value.

        A result below ``request.incumbent_secs`` was compared with the oracle's output: it is ``verified``, or its
        outcome is WRONG_OUTPUT. It is neither where the oracle takes too long or fails here. ``build_secs`` is the
        artifact's.

        Raises ValueError for an artifact without a candidate, or of a task whose oracle was not added.
        """

    def extra_secs(self, artifacts: Sequence[Artifact], budget_secs: float) -> float | None:
        """Return the seconds that kernels take longer in a round, each called once as in a network, than alone
        (:mod:`devices.timing.kernel_round`). Noise may bring it below 0.

        None where the device cannot tell: only CPUs behind our own server can, loading the kernels must not take longer
        than ``budget_secs``, and of the loss of a device its next call tells. Timing may take as long as the longest
        measurement beyond that, and :data:`devices.timing.kernel_round.ROUNDS_SECS`.
        """

    def close(self) -> None:
        """Release the device. May be called twice."""


def oracle_task(artifact: Artifact) -> str:
    """Return the task whose oracle an artifact is. Raises ValueError where it is none; see
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
