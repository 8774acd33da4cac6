"""Timing of a kernel in micro-batches until a stopping rule says that it is enough.

The same loop runs in two places: beside the kernel, inside the device server's session process (one round trip for a
whole measurement), or in the client against a plain TVM RPC server (one round trip for each micro-batch). The rule
itself is a function that is handed in; ``policies.measuring.adaptive_stopping`` owns the formula.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import json
import math
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any

from devices.protocol import MeasureRequest
from fleet_tune.base.domain import StopRule

Decide = Callable[[Sequence[float], StopRule, float], str | None]
"""A stopping rule: ``decide(run_secs of the micro-batches so far, rule, incumbent_secs)`` returns why to stop now, or
``None`` to go on."""

MAXIMUM, RACED = "maximum", "raced"

# A kernel that runs longer than this is timed by calling it. A quicker one is timed by TVM's evaluator, whose loop has
# no call overhead (1 us) but which begins every batch with a run that it does not count.
DIRECT_CALL_SECS = 2e-4
# A first run meets cold caches and untouched pages. It was never slower by more than this factor. A candidate is given
# up at once if it is too slow even when the time of its first run is divided by this factor.
COLD_RUN_FACTOR = 2.0
# Emptying the caches takes longer than most kernels: this bounds the runs of a micro-batch if caches are emptied.
MAX_FLUSHED_RUNS = 10
_CPU = 1  # DLPack's number of the device type


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The timing of one kernel."""

    run_secs: tuple[float, ...]
    """Mean seconds per run of each micro-batch, in order."""
    stopped: str
    """Reason why it ended."""
    device_secs: float = 0.0
    """Seconds of all runs, those that are not counted included."""
    throttled: float = 0.0
    """See :attr:`fleet_tune.base.domain.Measurement.throttled`."""
    slowed_by: str = ""
    """See :attr:`fleet_tune.base.domain.Measurement.slowed_by`."""


def evaluate(
    run_batch: Callable[[int], float],
    rule: StopRule,
    incumbent_secs: float,
    decide: Decide | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Evaluation:
    """Time micro-batches until ``decide``, the rule's maximum or its timeout ends the timing.

    ``run_batch(n)`` runs the kernel ``n`` times and returns the mean seconds of one run. The first call is a single
    run; single runs are repeated until the rule's warm-up is over, and the last of them sizes the micro-batches, unless
    the rule says how many runs they have. Runs longer than ``rule.micro_batch_secs`` are then batches of one. No
    further batch begins past ``rule.timeout_secs`` (a batch that hangs is the caller's concern).
    """
    started = clock()
    warm_secs = run_batch(1)
    while clock() - started < min(rule.warm_up_secs, rule.timeout_secs):
        warm_secs = run_batch(1)
    if decide is not None and warm_secs >= rule.micro_batch_secs:
        reason = decide([warm_secs / COLD_RUN_FACTOR], rule, incumbent_secs)
        if reason == RACED:  # the rule's maximum of batches does not count a cold run
            return Evaluation((warm_secs,), reason, clock() - started)
    runs = _batch_size(rule, warm_secs)
    samples: list[float] = []
    while True:
        samples.append(run_batch(runs))
        reason = decide(samples, rule, incumbent_secs) if decide is not None else None
        if reason is None and (len(samples) >= rule.max_batches or clock() - started > rule.timeout_secs):
            reason = MAXIMUM
        if reason is not None:
            return Evaluation(tuple(samples), reason, clock() - started)
        # The first run was cold: size the following batches by what is known now.
        runs = _batch_size(rule, statistics.median(samples))


def _batch_size(rule: StopRule, run_secs: float) -> int:
    """Return the runs of one micro-batch of a kernel that takes ``run_secs``: no more than fit into half of the
    timeout. The other half is for a device that slows down, and for the run before each batch that TVM does not
    count."""
    runs = rule.micro_batch_runs or max(1, math.ceil(rule.micro_batch_secs / max(run_secs, 1e-9)))
    runs = max(1, int(min(runs, rule.timeout_secs / 2 / max(run_secs, 1e-9))))
    return min(runs, MAX_FLUSHED_RUNS) if rule.flush_bytes else runs


Measure = Callable[[StopRule, float], Evaluation]
"""Evaluates one candidate: ``measure(rule, incumbent_secs)``."""


def confirmed(measure: Measure, measure_again: Measure, request: MeasureRequest) -> Evaluation:
    """Return the evaluation of a request by its rule. If the result is good enough, evaluate again by the rule of the
    confirmation, with ``measure_again``, and return the second result.

    The second result stands alone: the first one was picked because it was low, so it is low by luck more often than
    not.
    """
    first = measure(request.rule, request.incumbent_secs)
    if request.confirm is None or not statistics.median(first.run_secs) < request.confirm.below_secs:
        return first
    second = measure_again(request.confirm.rule, math.inf)
    return dataclasses.replace(second, device_secs=first.device_secs + second.device_secs)


def load_decide(dotted: str | None) -> Decide | None:
    """Return the stopping function named ``"package.module:function"``; ``None`` if no name is given.

    Raises ImportError or AttributeError if there is no such function: a server with a wrong name must not start.
    """
    if dotted is None:
        return None
    module, _, name = dotted.partition(":")
    decide: Decide = getattr(importlib.import_module(module), name)
    return decide


def batch_timer(
    module: Any, entry: str, device: Any, argument_sets: Sequence[Sequence[Any]], flush_bytes: int = 0
) -> Callable[[int], float]:
    """Return ``run_batch`` for a loaded TVM module and its tensors, of this process or of an RPC session.

    A kernel on this process' CPU that is not too quick is called directly and timed by the clock. Any other kernel is
    timed by TVM's evaluator, in the process that runs it: for a GPU with events on its stream (CUDA's timer of TVM),
    which exclude the launch from the host; for a kernel of a session without the network in between.

    Args:
        module: the module.
        entry: name of the kernel.
        device: where it runs.
        argument_sets: the tensors; if there are several sets (:mod:`devices.timing.cold_weights`, for this process'
            CPU), runs take them in turn, and all are called directly.
        flush_bytes: memory of the device that is copied before each run; each run is then timed by itself.
    """
    kernel = module[entry]
    direct = device.dlpack_device_type() == _CPU  # devices of a session have other numbers
    expected_secs = math.inf
    turns = itertools.cycle(argument_sets)
    tensors = argument_sets[0]

    def run_batch(runs: int) -> float:
        nonlocal expected_secs
        if flush_bytes:
            evaluator = module.time_evaluator(entry, device, number=1, repeat=runs, cache_flush_bytes=flush_bytes)
            expected_secs = evaluator(*tensors).mean
        elif direct and (expected_secs >= DIRECT_CALL_SECS or len(argument_sets) > 1):
            started = time.perf_counter()
            for _ in range(runs):
                kernel(*next(turns))
            device.sync()
            expected_secs = (time.perf_counter() - started) / runs
        else:
            expected_secs = module.time_evaluator(entry, device, number=runs)(*tensors).mean
        return float(expected_secs)

    return run_batch


@contextmanager
def kill_after(timeout_secs: float) -> Iterator[None]:
    """Have the operating system end this process (SIGALRM) if the block takes longer, even while native code runs.

    For the main thread of a process that may be lost: the session process of the device server.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, timeout_secs)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """The request for an evaluation beside the kernel: all that the evaluator needs besides it."""

    rule: StopRule
    incumbent_secs: float
    device_kind: str
    weights: tuple[int, ...] = ()
    """Positions of the weights among the kernel's arguments."""

    def to_json(self) -> str:
        """Return the request as text."""
        incumbent = self.incumbent_secs if math.isfinite(self.incumbent_secs) else None
        return json.dumps(
            {
                "rule": asdict(self.rule),
                "incumbent_secs": incumbent,
                "device": self.device_kind,
                "weights": list(self.weights),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> EvaluationRequest:
        """Return the request that :meth:`to_json` wrote, also that of another version whose rules have more fields, or
        that names no weights."""
        message = json.loads(text)
        incumbent = message["incumbent_secs"]
        names = {each.name for each in fields(StopRule)}
        rule = StopRule(**{name: value for name, value in message["rule"].items() if name in names})
        incumbent_secs = math.inf if incumbent is None else incumbent
        return cls(rule, incumbent_secs, message["device"], tuple(message.get("weights", ())))


def encode_evaluation(evaluation: Evaluation) -> str:
    return json.dumps(asdict(evaluation))


def decode_evaluation(text: str) -> Evaluation:
    message = json.loads(text)
    counted, throttled = message.get("device_secs", 0.0), message.get("throttled", 0.0)  # a server may be older
    slowed_by = message.get("slowed_by", "")
    return Evaluation(tuple(message["run_secs"]), message["stopped"], counted, throttled, slowed_by)
