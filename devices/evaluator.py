"""Times a kernel in micro-batches until a stopping rule says that it is enough.

The same loop runs in two places: beside the kernel, inside the device server's session process (one round trip for a
whole measurement), or in the client against a plain TVM RPC server (one round trip for each micro-batch). The rule
itself is a function that is handed in; ``policies.stopping`` owns the formula.
"""

from __future__ import annotations

import importlib
import json
import math
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from fleet_tune.domain import StopRule

Decide = Callable[[Sequence[float], StopRule, float], str | None]
"""``decide(run_secs of the micro-batches so far, rule, incumbent_secs)``: why to stop now, or None to go on."""

MAXIMUM = "maximum"

# A kernel that runs longer than this is timed by calling it, a quicker one by TVM's evaluator, whose loop has no call
# overhead (1 us) but which begins every batch with a run that it does not count.
DIRECT_CALL_SECS = 2e-4
# A first run meets cold caches and untouched pages. It was never seen slower by more than this factor, so a candidate
# that would be given up even at this fraction of its first run is given up right then.
COLD_RUN_FACTOR = 2.0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """``run_secs``: mean seconds per run of each micro-batch, in order; ``stopped``: why it ended."""

    run_secs: tuple[float, ...]
    stopped: str


def evaluate(
    run_batch: Callable[[int], float],
    rule: StopRule,
    incumbent_secs: float,
    decide: Decide | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Evaluation:
    """Time micro-batches until ``decide``, the rule's maximum or its timeout ends it.

    ``run_batch(n)`` runs the kernel ``n`` times and returns the mean seconds of one run. The first call is a single
    run that warms up and sizes the micro-batches; runs longer than ``rule.micro_batch_secs`` are batches of one.
    ``rule.timeout_secs`` bounds the whole: past it no further batch begins (a batch that hangs is the caller's matter).
    """
    started = clock()
    first_secs = run_batch(1)
    if decide is not None and first_secs >= rule.micro_batch_secs:
        reason = decide([first_secs / COLD_RUN_FACTOR], rule, incumbent_secs)
        if reason is not None:
            return Evaluation((first_secs,), reason)
    runs = max(1, math.ceil(rule.micro_batch_secs / max(first_secs, 1e-9)))
    samples: list[float] = []
    while True:
        samples.append(run_batch(runs))
        reason = decide(samples, rule, incumbent_secs) if decide is not None else None
        if reason is None and (len(samples) >= rule.max_batches or clock() - started > rule.timeout_secs):
            reason = MAXIMUM
        if reason is not None:
            return Evaluation(tuple(samples), reason)
        # The first run was cold: size the following batches by what is known now.
        runs = max(1, math.ceil(rule.micro_batch_secs / statistics.median(samples)))


def load_decide(dotted: str | None) -> Decide | None:
    """The stopping function named ``"package.module:function"``; None for None.

    Raises ImportError or AttributeError where there is none: a server with a wrong name must not start.
    """
    if dotted is None:
        return None
    module, _, name = dotted.partition(":")
    decide: Decide = getattr(importlib.import_module(module), name)
    return decide


def batch_timer(module: Any, entry: str, device: Any, tensors: Sequence[Any]) -> Callable[[int], float]:
    """``run_batch`` for a loaded TVM module and its tensors, all of the same process as the kernel."""
    kernel = module[entry]
    expected_secs = math.inf

    def run_batch(runs: int) -> float:
        nonlocal expected_secs
        if expected_secs < DIRECT_CALL_SECS:
            expected_secs = module.time_evaluator(entry, device, number=runs)(*tensors).mean
        else:
            started = time.perf_counter()
            for _ in range(runs):
                kernel(*tensors)
            device.sync()
            expected_secs = (time.perf_counter() - started) / runs
        return expected_secs

    return run_batch


@contextmanager
def killed_after(timeout_secs: float) -> Iterator[None]:
    """Have the kernel end this process (SIGALRM) if the block takes longer; works while native code runs.

    For the main thread of a process that is made to be lost: the session process of the device server.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, timeout_secs)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def encode_request(rule: StopRule, incumbent_secs: float, device_kind: str) -> str:
    """JSON text of what the server-side evaluator needs besides the kernel."""
    incumbent = incumbent_secs if math.isfinite(incumbent_secs) else None
    return json.dumps({"rule": asdict(rule), "incumbent_secs": incumbent, "device": device_kind})


def decode_request(text: str) -> tuple[StopRule, float, str]:
    message = json.loads(text)
    incumbent = message["incumbent_secs"]
    return StopRule(**message["rule"]), math.inf if incumbent is None else incumbent, message["device"]


def encode_evaluation(evaluation: Evaluation) -> str:
    return json.dumps(asdict(evaluation))


def decode_evaluation(text: str) -> Evaluation:
    message = json.loads(text)
    return Evaluation(tuple(message["run_secs"]), message["stopped"])
