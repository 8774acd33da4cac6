"""Standardised symbolic features of a task, in which distances between candidates are measured.

The features of a candidate (:mod:`policies.features.table`) are logarithms of very different spread, and many of them
say nearly the same. Here each is centred and divided by its deviation over random candidates of the task's whole space,
so that its weight does not depend on which candidates happen to be measured. Then all are divided by the square root of
their summed variances, so that two random candidates are a squared distance of about 2 apart, however many features
there are. (Two candidates of one sketch are nearer if its features vary less than they differ from those of other
sketches.) A feature that a sketch lacks is 0, the centre.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Sketch
from policies.arrays import Features
from policies.features.table import JointLayout, symbolic_features
from policies.space.sampling import sample
from policies.space.variants import with_few_places

# All five are set by hand; no comparison of other values is kept.
SAMPLE = 128
"""Random candidates of each sketch from which the spread of its features is estimated."""
VARIANTS = 8
"""Most variants of a sketch that these candidates belong to: each variant has its own description."""
LEAST_SCALE = 0.25
"""Least scale of a feature: a quarter of a doubling, since features are logarithms."""
FARTHEST = 4.0
"""Deviations from the centre to which a feature is clipped."""
APART = 0.43
"""Value of a sketch's column for its own candidates. It adds ``2 APART^2 = 0.37`` to the squared distance of candidates
of two sketches; two random candidates are about 2 apart."""


@dataclass(frozen=True, eq=False)
class Standardisation:
    """Centre and scale of a task's features over its space."""

    centre: Features
    """Centre of each joint feature, except the columns that name the sketch, ``(f,)``."""
    scale: Features
    """Scale of each of these features, ``(f,)``."""
    variance: float
    """Summed variance of these features, in units of their scales, at least 1."""

    def __call__(self, joint: Features) -> Features:
        """Joint features ``(n, f + k)``, ``k`` columns that name the sketch, standardised: ``(n, f + k)``, finite."""
        count = len(self.centre)
        values = np.clip((joint[:, :count] - self.centre) / self.scale, -FARTHEST, FARTHEST)
        values = np.where(np.isfinite(values), values, 0.0) / np.sqrt(self.variance)
        return np.concatenate([values, APART * joint[:, count:]], axis=1).astype(np.float32)


def standardisation_of(layout: JointLayout, sketches: Sequence[Sketch], device: DeviceAbstraction) -> Standardisation:
    """Return the standardisation of a task's features. Every call returns the same."""
    rng = np.random.default_rng(0)
    rows = []
    for at, sketch in enumerate(sketches):
        drawn = with_few_places(sketch, sample(sketch, SAMPLE, rng), VARIANTS, rng)
        rows.append(layout.place(at, symbolic_features(sketch, drawn, device)))
    features = np.concatenate(rows)[:, : len(layout.names) - len(sketches)].astype(np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a column that no sketch of the sample has
        centre = np.nan_to_num(np.nanmean(features, axis=0))
        spread = np.nan_to_num(np.nanstd(features, axis=0))
    scale = np.maximum(spread, LEAST_SCALE)
    present = np.isfinite(features).mean(axis=0)
    variance = float((present * np.square(spread / scale)).sum())
    return Standardisation(centre.astype(np.float32), scale.astype(np.float32), max(variance, 1.0))
