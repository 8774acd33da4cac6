"""A candidate on a device: loading it, timing it on the device or from this process, running it once to check its
outputs."""

from __future__ import annotations

from devices.client.output_check import DEFAULT, Oracle, sent_bytes
from devices.client.workbench import Check, Workbench
from devices.protocol import MeasureRequest
from devices.timing.arguments import Array
from devices.timing.evaluator import (
    Decide,
    Evaluation,
    EvaluationRequest,
    batch_timer,
    decode_evaluation,
    evaluate,
)
from fleet_tune.base.domain import StopRule
from fleet_tune.base.timeouts import DeviceTimeouts


class LoadedCandidate:
    """A candidate that is loaded on a device, with its arguments.

    The constructor and every method raise SessionLostError, and TVM's errors if loading or running fails.

    Args:
        bench: the device.
        request: the candidate, and how to measure it.
        positive: true to time it on positive inputs (see :func:`devices.timing.arguments.make_inputs`).
        decide: stopping rule to use with a plain TVM RPC server; our own server has its own rule.
        timeouts: time limits of the device, for the steps before a measurement: allocating, sending, loading, packing.
    """

    def __init__(
        self,
        bench: Workbench,
        request: MeasureRequest,
        positive: bool,
        decide: Decide | None,
        timeouts: DeviceTimeouts = DEFAULT,
    ) -> None:
        self.bench = bench
        self._artifact = request.artifact
        self._rule = request.rule
        self._positive = positive
        self._decide = decide
        self._prepare_secs = timeouts.sending_secs(sent_bytes(request.artifact))
        place = bench.place_anew if request.placed_anew else bench.arguments
        with bench.session.deadline(self._prepare_secs):
            self._module = bench.load(self._artifact.library)
            self._arguments = place(self._artifact, self._module, positive)

    def evaluate(self, rule: StopRule, incumbent_secs: float) -> Evaluation:
        """Time the candidate. Our own server runs all micro-batches in one call. With a plain server each micro-batch
        is a call from here."""
        session = self.bench.session
        if session.ours:
            # The server ends a batch that takes too long, and begins none past the timeout. This deadline is for a lost
            # network.
            with session.deadline(2.2 * rule.timeout_secs + 10.0):
                text = EvaluationRequest(rule, incumbent_secs, self.bench.kind, self._artifact.packed).to_json()
                answer = session.function("fleet_tune.evaluate")(self._module, "main", text, *self._arguments)
                return decode_evaluation(answer)
        run_batch = batch_timer(self._module, "main", self.bench.device, [self._arguments], rule.flush_bytes)

        def guarded(runs: int) -> float:
            with session.deadline(rule.timeout_secs + 1.0):
                return run_batch(runs)

        return evaluate(guarded, rule, incumbent_secs, self._decide)

    def evaluate_placed_anew(self, rule: StopRule, incumbent_secs: float) -> Evaluation:
        """Time the candidate with its tensors at other addresses than before: it may have been fast only because of
        their addresses."""
        with self.bench.session.deadline(self._prepare_secs):
            self._arguments = self.bench.place_anew(self._artifact, self._module, self._positive)
        return self.evaluate(rule, incumbent_secs)

    def disagreement(self, oracle: Oracle) -> str:
        """Run the candidate once on each set of inputs of ``oracle``, and return why its outputs differ from the
        oracle's; empty if they agree. ``oracle`` has run before.

        Before each run the output tensors are filled with values that differ from the oracle's outputs.
        """
        trace = self._artifact.trace
        for run in (each for each in oracle.runs(self.bench) if oracle.compares(each, trace)):
            check = Check(oracle.plan, run.special, run.outputs)
            text = oracle.disagreement(run, self._outputs(oracle, check), trace)
            if text and self._drop_altered_inputs(oracle, check):  # an earlier candidate may have altered them
                text = oracle.disagreement(run, self._outputs(oracle, check), trace)
            if text:
                return text
        return ""

    def _outputs(self, oracle: Oracle, check: Check) -> list[Array]:
        bench = self.bench
        # Twice the time to send: inputs and initial contents of the outputs are sent, and the outputs come back.
        with bench.session.deadline(2 * self._prepare_secs + self._rule.timeout_secs):
            arguments = bench.checked_arguments(self._artifact, self._module, oracle.positive, check)
            return bench.outputs(self._artifact, self._module, arguments)

    def _drop_altered_inputs(self, oracle: Oracle, check: Check) -> bool:
        with self.bench.session.deadline(2 * self._prepare_secs):
            return self.bench.drop_altered(self._artifact, oracle.positive, check)
