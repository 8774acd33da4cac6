"""Measurements of candidates, and the speed of their device."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from devices.protocol import Artifact
from fleet_tune.base.domain import Measurement, Outcome

MeasuredArtifact = tuple[Artifact, Measurement]


def loss_of(measured: Sequence[MeasuredArtifact]) -> str:
    """Return how the device was lost, which ends a batch; empty if it was not lost."""
    lost = (each for _, each in measured if each.outcome is Outcome.DEVICE_LOST)
    return next((each.detail or "lost" for each in lost), "")


def at_speed(measurement: Measurement, speed: tuple[float, float]) -> Measurement:
    """Return a measurement with the speed of the device at that time and the error of that speed."""
    if measurement.outcome is not Outcome.OK:
        return measurement
    return dataclasses.replace(measurement, speed=speed[0], speed_error=speed[1])


def all_at_speed(measured: Sequence[MeasuredArtifact], speed: tuple[float, float]) -> list[MeasuredArtifact]:
    """Return :func:`at_speed` of each, in order. If the opponent of a duel is among these, the duel counts the opponent
    at this speed too."""
    ranks: dict[str, float] = {}
    corrected: list[MeasuredArtifact] = []
    for artifact, raw in measured:
        assert artifact.candidate is not None
        each = at_speed(raw, speed)
        if each.comparison is not None and each.comparison.against in ranks:
            comparison = dataclasses.replace(each.comparison, against_rank_secs=ranks[each.comparison.against])
            each = dataclasses.replace(each, comparison=comparison)
        if each.outcome is Outcome.OK:  # if an opponent failed later, its duels keep its earlier time
            ranks[artifact.candidate.id] = each.rank_secs
        corrected.append((artifact, each))
    return corrected
