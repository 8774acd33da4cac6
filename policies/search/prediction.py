"""What a candidate is expected to cost: the analyzer corrected by the task's records, and the learned model.

All predictions are the mean and the deviation of the natural logarithm of seconds, each ``(n,)``, finite; no deviation
is negative. Where a model says something that is no number, the slowest that it predicts of the others stands in, with
no deviation: such a candidate is not tempting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fleet_tune.domain import DeviceAbstraction
from fleet_tune.sketch import Sketch
from policies.analysis.quantities import Floats
from policies.cost_models.protocol import CostModel, targets
from policies.features.table import SYMBOLIC, FeatureTable, JointLayout, joint_layout
from policies.features.views import table
from policies.search.calibration import Calibration, calibrate, uncalibrated
from policies.search.draft import Drafted, evaluate
from policies.search.fitness import CalibratedFitness, Fitness, calibration_columns
from policies.search.trial_time import BuildTime, fit_build_time, trial_secs
from policies.space.sampling import Matrix

CALIBRATION_LIMIT = 256
"""Most recent records that the calibration uses: its cost is cubic in them."""
UNDESCRIBED_PEAK_SHARE = 0.05
"""Share of the peak that a candidate of an undescribed sketch is expected to reach before any record."""


class Predictor:
    """Predicts the candidates of one task.

    ``analyzer``: whether the calibrated analyzer has a say. With it, a prediction is the analyzer's until there is a
    model, and the two together from then on; without, the model's alone, and there is none before the first model.
    ``views``: of the features, those that the model reads; the symbolic one is always made.
    """

    def __init__(
        self,
        sketches: Sequence[Sketch],
        flop: float,
        device: DeviceAbstraction,
        *,
        analyzer: bool,
        views: Sequence[str] = (SYMBOLIC,),
    ) -> None:
        self._sketches = tuple(sketches)
        self._views = tuple(views)
        self._device = device
        self._analyzer = analyzer
        self.layout: JointLayout = joint_layout(self._sketches, device)
        self.prior_secs = max(flop, 1.0) / (device.peak_flops * UNDESCRIBED_PEAK_SHARE)
        self._model: CostModel | None = None
        self._features: list[FeatureTable] = []
        self._analytic: list[Floats] = []
        self._costs: Floats = np.empty(0)
        self._calibration: Calibration | None = None
        self._build_secs: Floats = np.empty(0)
        self._build_time: BuildTime | None = None

    @property
    def model(self) -> CostModel | None:
        """The model in use."""
        return self._model

    @property
    def has_model(self) -> bool:
        return self._model is not None

    def use_model(self, model: CostModel | None) -> None:
        """Predict with this trained model from now on; None: without one."""
        self._model = model

    # -- records --------------------------------------------------------------------------------------------------

    def add(self, fresh: Sequence[Matrix]) -> None:
        """New measured candidates, a matrix for each sketch, in the order in which their costs are given later."""
        for at, matrix in enumerate(fresh):
            if len(matrix):
                known = evaluate(self._sketches[at], matrix, self._device)
                self._features.append(self._table(at, matrix, known.features))
                self._analytic.append(self._base(known.analytic_log_secs))

    def set_costs(self, costs: Floats, build_secs: Floats) -> None:
        """Costs of all measured candidates so far, ``(n,)`` seconds, infinite for failures, and what their builds took,
        0 where unknown."""
        self._costs = costs
        self._build_secs = build_secs
        self._calibration = None
        self._build_time = None

    @property
    def features(self) -> FeatureTable:
        """Joint features of all measured candidates."""
        if not self._features:
            none = np.empty((0, self._sketches[0].width), dtype=np.int64)
            empty = np.empty((0, len(self.layout.positions[0])), dtype=np.float32)
            return self._table(0, none, empty)
        if len(self._features) > 1:
            self._features = [FeatureTable.concatenate(self._features)]
        return self._features[0]

    # -- predictions ----------------------------------------------------------------------------------------------

    def _table(self, sketch: int, matrix: Matrix, features: NDArray[np.float32]) -> FeatureTable:
        """Candidates of a sketch as the model reads them."""
        return table(self.layout.place(sketch, features), self._sketches[sketch], matrix, self._device, self._views)

    def predict(
        self, sketch: int, matrix: Matrix, features: NDArray[np.float32], analytic: Floats
    ) -> tuple[Floats, Floats]:
        """Mean and deviation of candidates of one sketch by what is known now.

        ``matrix`` (n, d): their decisions; ``features`` (n, f): the sketch's symbolic features; ``analytic`` (n,): the
        analyzer's log seconds, NaN where the sketch is not described. With neither a model nor the analyzer's say, the
        calibrated analyzer stands in, so that a proposal can still say what it expects.
        """
        if len(features) == 0:
            return np.empty(0), np.empty(0)
        joint = self._table(sketch, matrix, features) if self._model is not None else None
        if self._model is not None and joint is not None and not self._analyzer:
            return self._clean(*self._model.predict(joint))
        symbolic = self.layout.place(sketch, features) if joint is None else joint.view(SYMBOLIC)
        correction, spread = self._calibrated().correct(symbolic)
        calibrated = self._base(analytic) + correction
        if self._model is None or joint is None:
            return self._clean(calibrated, spread)
        # Two independent opinions: their mean, and a deviation that says how far apart they are.
        mean, deviation = self._clean(*self._model.predict(joint))
        disagreement = 0.5 * np.abs(mean - calibrated)
        together = np.sqrt(0.5 * (deviation**2 + spread**2) + disagreement**2)
        return self._clean(0.5 * (mean + calibrated), together)

    def drafted(self, sketch: int, drafted: Drafted) -> tuple[Floats, Floats]:
        """:meth:`predict` for drafted candidates."""
        return self.predict(sketch, drafted.matrix, drafted.features, drafted.analytic_log_secs)

    def trial_secs(self, sketch: int, drafted: Drafted, mean: Floats, best_secs: float) -> Floats:
        """Seconds that building and measuring each candidate is expected to take, ``(n,)``.

        ``mean`` (n,): predicted log seconds of a run; ``best_secs``: the incumbent's cost, infinite without one.
        """
        if self._build_time is None:
            self._build_time = fit_build_time(self.layout.names, self.features.view(SYMBOLIC), self._build_secs)
        return trial_secs(self._build_time, self.layout.place(sketch, drafted.features), mean, best_secs)

    def fitness(self, sketch: int) -> Fitness:
        """The predicted log seconds as a generator's fitness; ValueError while there is nothing to predict with."""
        if not self._analyzer and self._model is None:
            raise ValueError("without the analyzer there is no fitness before the first model")

        if self._model is None:
            return CalibratedFitness(self._calibrated(), self.layout, sketch, self.prior_secs)

        def mean(matrix: Matrix, features: NDArray[np.float32], analytic: Floats) -> Floats:
            return self.predict(sketch, matrix, features, analytic)[0]

        return mean

    def _clean(self, mean: Floats, deviation: Floats) -> tuple[Floats, Floats]:
        """Predictions without what is no number; see the module's docstring."""
        sound = np.isfinite(mean) & np.isfinite(deviation) & (deviation >= 0)
        if sound.all():
            return mean, deviation
        slowest = float(mean[sound].max()) if sound.any() else math.log(self.prior_secs)
        return np.where(sound, mean, slowest), np.where(sound, deviation, 0.0)

    def _base(self, analytic_log_secs: Floats) -> Floats:
        """The analyzer's log seconds, the prior's where the sketch is not described."""
        return np.where(np.isnan(analytic_log_secs), math.log(self.prior_secs), analytic_log_secs)

    def _calibrated(self) -> Calibration:
        if self._calibration is None:
            if not len(self._costs):
                self._calibration = uncalibrated()
            else:
                recent = slice(-CALIBRATION_LIMIT, None)
                self._analytic = [np.concatenate(self._analytic)]
                ratio = targets(self._costs) - self._analytic[0]
                columns = calibration_columns(self.layout, self._sketches, self._device.kind)
                self._calibration = calibrate(self.features.view(SYMBOLIC)[recent], ratio[recent], columns)
        return self._calibration
