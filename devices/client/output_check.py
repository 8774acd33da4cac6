"""Verification of a candidate: its outputs are compared with the outputs of its task's oracle, mostly on the same
device.

Both run on inputs that are made for the check (:mod:`devices.builds.checks.check_plan`). On these inputs every term of
a sum counts. So a rounding error of a right kernel is much smaller than the error of a wrong one, however long the sums
are. A second run has special values among its inputs (:mod:`devices.builds.checks.special_values`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from devices.client.session import SessionLostError, SessionTimeoutError
from devices.client.workbench import Check, Workbench
from devices.cuda.errors import said
from devices.protocol import UNKNOWN, Artifact, CheckedRun, CheckPlan, OracleOutputs
from devices.sketches.rules.library import uses_library
from devices.sketches.rules.winograd import uses_winograd
from devices.timing.arguments import Array, is_float, nbytes
from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.timeouts import SLOWEST_LINK_BYTES, DeviceTimeouts

DEFAULT = DeviceTimeouts()
# Speed of a device that was not probed.
_SLOW_FLOPS = 2e7
_RUNS = 3  # at most: on inputs of both signs, on positive ones, on special ones
MOST_TRIES = 2
"""Number of failed tries after which an oracle is given up on a device. After a timeout the next try has twice the
time. :func:`policies.measuring.deadline.oracle_secs` has room for these tries."""

EXACT = {
    "float64": (1e-9, 1e-9),
    "float32": (1e-4, 2e-4),
    "float16": (2.0**-9, 2.0**-12),
    "bfloat16": (2.0**-6, 2.0**-9),
}
"""Largest allowed differences if no sum is rounded, by the narrowest type. The first is a share of the value itself,
for operations on the sums (two to four units in the last place of half types). The second is a share of the oracle's
largest value. That of float32 leaves room for schedules that transform the terms of sums (Winograd's lose up to 1e-4);
in a sum of 65,536 terms one term is 7e-4."""
ROUNDED = {"float64": (1e-8, 1e-9), "float32": (2e-4, 5e-5), "float16": (5e-3, 1e-3), "bfloat16": (2e-2, 5e-3)}
"""Largest allowed differences if sums are rounded: several rounding errors. A term that counts is a 16th to a 1024th of
its sum."""
# Share of the integers made from floats that may be off by one: the float lay between the two integers.
_ROUNDED_OTHERWISE = 1e-3
# Largest error of a float that follows from such an integer which is off by one, as a share of the largest float: such
# integers have some 256 values.
_ROUNDED_STEP = 1 / 64


class OracleTimeoutError(SessionTimeoutError):
    """The oracle did not end in time. The session is lost. The caller has to find out whether the device is lost
    too."""


class OracleFailedError(Exception):
    """The oracle fails on a device that works: the device lacks memory for it, or refuses the kernel."""


class Oracle:
    """The unscheduled program of a task. Its outputs are right by definition; it runs once on each set of inputs.

    An oracle that is slow or fails is no fault of its device. It is tried again, with more time if it was slow, and
    then given up. Without an oracle candidates are measured but not verified.

    Args:
        artifact: the program.
        abstraction: properties of the device, which give its speed; ``None`` if it was not probed.
        timeouts: time limits of the device.
    """

    def __init__(
        self, artifact: Artifact, abstraction: DeviceAbstraction | None = None, timeouts: DeviceTimeouts = DEFAULT
    ) -> None:
        runs_secs = artifact.flop / _SLOW_FLOPS if abstraction is None else abstraction.unscheduled_secs(artifact.flop)
        sent_secs = 2 * _RUNS * sent_bytes(artifact) / SLOWEST_LINK_BYTES  # outputs come back
        #: Time limit of its runs together, from its operations, its bytes and the speed of the device; doubled after a
        #: timeout.
        self.timeout_secs = timeouts.oracle_secs + sent_secs + _RUNS * runs_secs
        #: Why it has not run, in one line; empty before it was tried, and once it has run.
        self.problem = ""
        self._tries = 0
        #: True if candidates are timed and checked on positive inputs (see
        #: :func:`devices.timing.arguments.make_inputs`): the oracle has run, and its outputs are not finite on inputs
        #: of both signs.
        self.positive = False
        self.plan = artifact.check
        self._artifact = artifact
        self._runs: tuple[CheckedRun, ...] = ()

    @property
    def has_run(self) -> bool:
        """True once its outputs are known."""
        return bool(self._runs)

    @property
    def is_given_up(self) -> bool:
        """True if it was tried :data:`MOST_TRIES` times without success."""
        return self._tries >= MOST_TRIES and not self.has_run

    def use(self, outputs: OracleOutputs) -> None:
        """Use outputs that another processor has computed, unless the oracle has run. That processor may round
        differently than the device, so outputs need not agree to the last bit."""
        if not self.has_run:
            self.plan = replace(self.plan, reproducible=False, compares_zeros=False)
            self.positive, self._runs, self.problem = outputs.positive, outputs.runs, ""

    def ended_session(self, how: str) -> None:
        """Note that the oracle ended its session on a device that works: it crashed, or took too much memory."""
        self._tries += 1
        self.problem = f"its unscheduled program ends its process: {how}"

    def runs(self, bench: Workbench) -> Sequence[CheckedRun]:
        """Return the oracle's outputs on each set of inputs. Run it if it has not run. Raises OracleTimeoutError,
        SessionLostError, and OracleFailedError if a run fails."""
        if not self._runs:
            try:
                with bench.session.deadline(self.timeout_secs):
                    module = bench.load(self._artifact.library)

                    def outputs(positive: bool, special: bool) -> list[Array]:
                        check = Check(self.plan, special)
                        arguments = bench.checked_arguments(self._artifact, module, positive, check)
                        return bench.outputs(self._artifact, module, arguments)

                    found = all_runs(outputs, self.plan)
            except SessionTimeoutError as error:
                self._tries += 1
                self.problem = f"its unscheduled program did not end within {self.timeout_secs:.0f} s"
                self.timeout_secs *= 2
                raise OracleTimeoutError(str(error)) from error
            except SessionLostError:
                raise
            except Exception as error:
                self._tries += 1
                self.problem = f"its unscheduled program fails: {said(error)}"
                raise OracleFailedError(self.problem) from error
            self.positive, self._runs, self.problem = found.positive, found.runs, ""
        return self._runs

    def compares(self, run: CheckedRun, trace: str) -> bool:
        """Return true if the outputs of a candidate with this ``trace`` are compared with ``run``. With Winograd's
        transforms they are not compared on special values: NaN and infinities spread over whole tiles."""
        return not (run.special and uses_winograd(trace))

    def disagreement(self, run: CheckedRun, outputs: Sequence[Array], trace: str = "") -> str:
        """Return why the ``outputs`` of a candidate differ from the oracle's in ``run``; empty if they agree.
        ``trace``: trace of the candidate."""
        if uses_winograd(trace):  # the transforms round
            plan = replace(self.plan, reproducible=False, compares_zeros=False)
            return disagreement(run.outputs, outputs, plan, rounded=self.positive)
        if run.special:
            expected: Sequence[Array] = run.outputs
            if uses_library(trace):
                # A kernel multiplies an infinite weight by the zeros around an image, which gives NaN. A library, like
                # that of a framework, leaves the zeros out.
                expected = [np.where(np.isnan(one), other, one) for one, other in zip(expected, outputs, strict=True)]
            text = disagreement(expected, outputs, self.plan, special=True)
            return f"{text} (inputs with special values)" if text else ""
        return disagreement(run.outputs, outputs, self.plan, rounded=self.positive)


def all_runs(outputs: Callable[[bool, bool], list[Array]], plan: CheckPlan) -> OracleOutputs:
    """Run an oracle on each set of inputs. ``outputs(positive, special)`` returns its outputs on one set."""
    for positive in (False, True):
        plain = outputs(positive, False)
        if all_finite(plain):
            break
    special = (CheckedRun(True, outputs(False, True)),) if plan.specials else ()
    return OracleOutputs(positive, (CheckedRun(False, plain), *special))


def sent_bytes(artifact: Artifact) -> int:
    """Return the bytes that are sent to a device to run a kernel: its library and its tensors."""
    return len(artifact.library) + sum(nbytes(spec) for spec in artifact.original_args)


def tolerance(plan: CheckPlan, dtype: str, rounded: bool = False) -> tuple[float, float]:
    """Return the largest allowed differences of an output of type ``dtype``: a share of each value, and of the largest
    one.

    ``rounded``: true for other inputs than the plan's. On these, sums may be rounded although the plan says ``exact``.
    """
    exact = plan.exact and not (rounded and plan.sums)
    return (EXACT if exact else ROUNDED)[plan.precision or dtype]


def disagreement(
    oracle: Sequence[Array],
    outputs: Sequence[Array],
    plan: CheckPlan = UNKNOWN,
    rounded: bool = False,
    special: bool = False,
) -> str:
    """Return why ``outputs`` are not the oracle's, in one line; empty if they agree.

    Floats agree if NaN and infinities are in the same places, and elsewhere ``|output - oracle| <= share * |oracle| +
    part * max |oracle|``, with ``share`` and ``part`` from :func:`tolerance`. Special inputs (``special``) have numbers
    of all magnitudes: without sums, the upper quartile then replaces the maximum. If the plan says that right kernels
    are reproducible, floats must be equal. Zeros must then have the same sign if the plan says so.

    Integers and booleans agree if they are equal. If the plan has integers that are made from floats (``rounds``), one
    integer in a thousand may be off by one, and one in a thousand floats that follow from such integers may be off by
    one step.
    """
    for position, (expected, got) in enumerate(zip(oracle, outputs, strict=True)):
        prefix = f"output {position}: " if len(oracle) > 1 else ""
        if expected.shape != got.shape or expected.dtype != got.dtype:
            return f"{prefix}{got.dtype}{got.shape} instead of {expected.dtype}{expected.shape}"
        name = str(expected.dtype)
        if not is_float(name):
            text = _integers(expected, got, plan.rounds and name != "bool")
        elif plan.reproducible and not (rounded and plan.sums):
            text = _equal_floats(expected, got, plan.compares_zeros)
        else:
            allowed = tolerance(plan, name, rounded)
            text = _floats(expected, got, *allowed, quartile=special and not plan.sums, rounds=plan.rounds)
        if text:
            return prefix + text
    return ""


def _integers(expected: Array, got: Array, rounds: bool) -> str:
    wrong = int(np.count_nonzero(expected != got))
    if rounds and wrong <= max(1, _ROUNDED_OTHERWISE * expected.size):
        wrong = int(np.count_nonzero(np.abs(expected.astype(np.float64) - got.astype(np.float64)) > 1))
    return f"{wrong} of {expected.size} values differ" if wrong else ""


def _equal_floats(expected: Array, got: Array, compares_zeros: bool) -> str:
    """Return how floats differ that have one right value; empty if they are equal."""
    same = (expected == got) | ((expected != expected) & (got != got))
    if compares_zeros:
        same &= (expected != 0) | (np.signbit(expected) == np.signbit(got))
    if same.all():
        return ""
    first = tuple(int(n) for n in np.argwhere(~same)[0])
    return (
        f"{same.size - np.count_nonzero(same)} of {same.size} values differ, one is {got[first]} where the oracle has "
        f"{expected[first]}"
    )


def _floats(expected: Array, got: Array, share: float, part: float, quartile: bool, rounds: bool) -> str:
    wide, other = expected.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(wide)
    special = ~finite & ~((wide == other) | (np.isnan(wide) & np.isnan(other)))
    wrong = int(np.count_nonzero((finite & ~np.isfinite(other)) | special))
    if wrong:
        return f"{wrong} of {expected.size} values are NaN or infinite in one output and not in the other"
    wide, other = wide[finite], other[finite]
    if not wide.size:
        return ""
    error, size = np.abs(other - wide), np.abs(wide)
    scale = float(np.quantile(size, 0.75) if quartile else size.max())
    over = error - (share * size + part * max(scale, 1e-6))
    worst = int(over.argmax())
    if over[worst] <= 0:
        return ""
    wrong = int(np.count_nonzero(over > 0))
    few = rounds and wrong <= max(1, _ROUNDED_OTHERWISE * expected.size)
    if few and error[over > 0].max() <= _ROUNDED_STEP * size.max():
        return ""
    return (
        f"{wrong} of {expected.size} values differ, one by {error[worst]:.3g} where the oracle has {wide[worst]:.3g} "
        f"(its largest: {size.max():.3g})"
    )


def all_finite(arrays: Sequence[Array]) -> bool:
    """Return true if no float array holds NaN or an infinity."""
    return all(bool(np.isfinite(a.astype(np.float64)).all()) for a in arrays if is_float(str(a.dtype)))
