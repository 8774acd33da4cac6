"""Predicted cost of candidates: by the analyzer, corrected by the task's records, and by the learned model.

All predictions are the mean and the deviation of the natural logarithm of seconds, each ``(n,)``, finite; no deviation
is negative. A model's prediction that is not a number is replaced by its slowest other prediction, without a deviation,
so that such a candidate is not chosen.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from policies.arrays import Floats, Matrix
from policies.cost_models.protocol import CostModel
from policies.features.table import SYMBOLIC
from policies.search.calibration import Calibration, calibrate, uncalibrated
from policies.search.candidates import CandidateSet
from policies.search.fitness import CalibratedFitness, Fitness, calibration_columns
from policies.search.training_table import TrainingTable

CALIBRATION_LIMIT = 256
"""Most recent records that the calibration uses: its cost is cubic in them. Set by hand."""
UNDESCRIBED_PEAK_SHARE = 0.05
"""Share of the peak that a candidate of an undescribed sketch is expected to reach before any record: set by hand.
If another sketch of the task is described, the analyzer's expectation of that counts instead
(:meth:`Predictor.expect`)."""


class Predictor:
    """Predicts the candidates of one task from its records.

    Args:
        table: the records; call :meth:`refresh` after new ones.
        flop: float operations of one run of the kernel.
        analyzer: true if the calibrated analyzer is used. A prediction is then the analyzer's until there is a model,
            and the mean of the two from then on. Without it, a prediction is the model's, and there is none before the
            first model.
        alone: true if the model's prediction is used without the analyzer's once there is a model.
    """

    def __init__(
        self,
        table: TrainingTable,
        flop: float,
        *,
        analyzer: bool,
        alone: bool = False,
    ) -> None:
        self.table = table
        self._analyzer = analyzer
        self._mixed = analyzer and not alone
        self.prior_secs = max(flop, 1.0) / (table.device.peak_flops * UNDESCRIBED_PEAK_SHARE)
        self._model: CostModel | None = None
        self._calibration: Calibration | None = None

    @property
    def model(self) -> CostModel | None:
        """The model in use."""
        return self._model

    @property
    def has_model(self) -> bool:
        return self._model is not None

    def expect(self, secs: float) -> None:
        """Set the seconds that are expected of a candidate of an undescribed sketch, before any record."""
        self.prior_secs = secs
        self._calibration = None

    def use_model(self, model: CostModel | None) -> None:
        """Predict with this trained model from now on; None: without one."""
        self._model = model

    def refresh(self) -> None:
        """Discard the calibration, because the table has new records."""
        self._calibration = None

    # -- predictions ----------------------------------------------------------------------------------------------

    def predict(
        self, sketch: int, matrix: Matrix, features: NDArray[np.float32], analytic: Floats
    ) -> tuple[Floats, Floats]:
        """Predict the mean and deviation of candidates of one sketch.

        ``matrix`` (n, d): their decisions; ``features`` (n, f): the sketch's symbolic features; ``analytic`` (n,): the
        analyzer's log seconds, NaN where the sketch is not described. Without a model and without the analyzer in use,
        the calibrated analyzer predicts, so that a proposal still has a predicted time.
        """
        if len(features) == 0:
            return np.empty(0), np.empty(0)
        joint = self.table.described(sketch, matrix, features) if self._model is not None else None
        if self._model is not None and joint is not None and not self._mixed:
            return self._clean(*self._model.predict(joint))
        symbolic = self.table.layout.place(sketch, features) if joint is None else joint.view(SYMBOLIC)
        correction, spread = self._calibrated().correct(symbolic)
        calibrated = self._base(analytic) + correction
        if self._model is None or joint is None:
            return self._clean(calibrated, spread)
        # Two independent predictions: their mean, and a deviation that includes their difference.
        mean, deviation = self._clean(*self._model.predict(joint))
        disagreement = 0.5 * np.abs(mean - calibrated)
        together = np.sqrt(0.5 * (deviation**2 + spread**2) + disagreement**2)
        return self._clean(0.5 * (mean + calibrated), together)

    def predicted(self, sketch: int, candidates: CandidateSet) -> CandidateSet:
        """The candidates of a sketch with their predictions."""
        mean, deviation = self.predict(sketch, candidates.matrix, candidates.features, candidates.analytic_log_secs)
        return replace(candidates, sketch=sketch, mean=mean, deviation=deviation)

    def fitness(self, sketch: int) -> Fitness:
        """Return the predicted log seconds as a generator's fitness. Raise ValueError if there is neither the analyzer
        nor a model."""
        if not self._analyzer and self._model is None:
            raise ValueError("without the analyzer there is no fitness before the first model")

        if self._model is None:
            return CalibratedFitness(self._calibrated(), self.table.layout, sketch, self.prior_secs)

        def predicted(matrix: Matrix, features: NDArray[np.float32], analytic: Floats) -> Floats:
            return self.predict(sketch, matrix, features, analytic)[0]

        return predicted

    def _clean(self, mean: Floats, deviation: Floats) -> tuple[Floats, Floats]:
        """Predictions with every value that is not a number replaced; see the module's docstring."""
        sound = np.isfinite(mean) & np.isfinite(deviation) & (deviation >= 0)
        if sound.all():
            return mean, deviation
        slowest = float(mean[sound].max()) if sound.any() else math.log(self.prior_secs)
        return np.where(sound, mean, slowest), np.where(sound, deviation, 0.0)

    def _base(self, analytic_log_secs: Floats) -> Floats:
        """The analyzer's log seconds; those of ``prior_secs`` for a sketch that is not described."""
        return np.where(np.isnan(analytic_log_secs), math.log(self.prior_secs), analytic_log_secs)

    def _calibrated(self) -> Calibration:
        if self._calibration is None:
            table = self.table
            if not math.isfinite(table.records.best_secs):  # failures alone tell nothing of seconds
                self._calibration = uncalibrated()
            else:
                recent = slice(-CALIBRATION_LIMIT, None)
                ratio = table.log_secs - self._base(table.analytic_log_secs)
                columns = calibration_columns(table.layout, table.sketches, table.device.kind)
                self._calibration = calibrate(table.features.view(SYMBOLIC)[recent], ratio[recent], columns)
        return self._calibration
