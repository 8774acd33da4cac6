"""Timing of the networks of several tuners on the same machine, in turn, by one harness.

The networks are grouped by moment: the tuning time after which a tuner had them. All networks of a moment are timed
together with the peer's last networks, so that latencies from the same minutes are compared. Each moment is a piece of
its own, so only its networks are loaded at a time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.latency.network_latency import measure_sides
from bench.result import BenchError
from bench.tuning.pieces import Piece, model_folder
from bench.tuning.tuner_runs import FORMS, PEER, PEERS, TunerRun

_START_SECS = 30.0
"""Expected seconds until a network is loaded, compared and warmed up."""


@dataclass(frozen=True)
class Timing(Piece):
    """The timing of the networks of one moment, together with the peer's last networks."""

    moment: float
    networks: tuple[dict[str, Any], ...]
    """Networks of the moment; see :meth:`TunerRun.networks`."""
    last: tuple[dict[str, Any], ...]
    """The last network of each of the peer's forms."""
    rounds: int
    block_secs: float

    @property
    def name(self) -> str:
        return f"{self.model}: timing of the networks after {self.moment:g} s"

    @property
    def expected_secs(self) -> float:
        count = len(self.networks) + len(self.last)
        return count * (_START_SECS + self.rounds * (self.block_secs + 1.0))

    def take(self) -> dict[str, Any]:
        """Time the networks and return the figures. Lists have an entry for each network of the moment that runs:

        - ``networks``: index in :attr:`networks`;
        - ``latency``: median seconds;
        - ``spread``: see :func:`bench.result.spread`;
        - ``errors``: largest error of the outputs, relative to the largest output.

        ``last`` and ``last_errors`` have the latency and the error of the last network of each of the peer's forms.
        Raises :class:`BenchError` if one of our networks, or a last network of the peer, fails.
        """
        try:
            return self._taken(self.networks)
        except BenchError:  # an intermediate network of the peer may crash: it counts as missing
            running = tuple(each for each in self.networks if each["form"] not in PEERS or self._runs(each))
            if len(running) == len(self.networks):
                raise
            return self._taken(running)

    def _taken(self, networks: tuple[dict[str, Any], ...]) -> dict[str, Any]:
        every = (*networks, *self.last)
        sides = {f"{number}, {each['form']} {each['secs']:.0f}": each for number, each in enumerate(every)}
        timed = self._measured(sides, self.rounds)
        spreads = [timed[name]["secs"] for name in sides]
        medians = [each["median"] for each in spreads]
        errors = [_known(timed[name]["relative_error"]) for name in sides]
        count, forms = len(networks), [network["form"] for network in self.last]
        return {
            "networks": [self.networks.index(each) for each in networks],
            "latency": medians[:count],
            "spread": spreads[:count],
            "errors": errors[:count],
            "last": dict(zip(forms, medians[count:], strict=True)),
            "last_errors": dict(zip(forms, errors[count:], strict=True)),
        }

    def _runs(self, network: dict[str, Any]) -> bool:
        try:
            self._measured({"it": network}, 1)
        except BenchError:
            return False
        return True

    def _measured(self, sides: Mapping[str, dict[str, Any]], rounds: int) -> dict[str, Any]:
        return measure_sides(
            self.model,
            list(sides),
            folders={name: Path(network["folder"]) for name, network in sides.items()},
            rounds=rounds,
            block_secs=self.block_secs,
            kinds={name: PEER if network["form"] in PEERS else "ours" for name, network in sides.items()},
            # The peer does not check its kernels. Its users get a wrong network too: it is timed, and its error shown.
            unchecked=[name for name, network in sides.items() if network["form"] in PEERS],
            fewest_runs=1,  # a kernel that the peer has not tuned may take seconds
        )


def _known(error: float) -> float:
    """Return the error; 1 if it is infinite or NaN."""
    return error if math.isfinite(error) else 1.0


def timings(model: str, tuned: Sequence[TunerRun], work: Path, rounds: int, block_secs: float) -> list[Timing]:
    """Return the pieces that time the networks of a model. The runs ``tuned`` have to be done.

    An intermediate network of the peer belongs to the last moment before it. It is only timed if it has no more
    unscheduled kernels than the peer's last network, since TVM's code for an unscheduled kernel may be very slow."""
    last = tuple(run.networks()[-1] for run in tuned if run.form in PEERS)
    found: dict[float, list[dict[str, Any]]] = {}
    for run in tuned:
        *earlier, in_the_end = run.networks()
        tuned_in_the_end = [each for each in earlier if each["unscheduled"] <= in_the_end["unscheduled"]]
        for network in tuned_in_the_end if run.form in PEERS else [in_the_end]:
            moment = max((each for each in run.moments if each <= network["secs"]), default=run.budget_secs)
            found.setdefault(moment, []).append(network)
    folder = model_folder(work, model)
    return [
        Timing(model, folder / f"timing-{moment:g}", moment, tuple(found[moment]), last, rounds, block_secs)
        for moment in sorted(found)
    ]


def curves(timed: Sequence[Timing]) -> dict[str, list[dict[str, Any]]]:
    """Return the points of each form, sorted by their seconds: ``secs``, ``trials``, ``device_secs``, ``latency``,
    ``last``, the latency of the last network of each of the peer's forms in the same timing, and ``error``, the error
    of the outputs. For the peer's last networks themselves, ``latency`` and ``last`` are medians over all moments."""
    lasts = [each.figures()["last"] for each in timed]
    last_errors = timed[0].figures()["last_errors"]
    in_the_end = {form: statistics.median(each[form] for each in lasts) for form in PEERS}
    points: dict[str, list[dict[str, Any]]] = {form: [] for form in (*PEERS, *FORMS)}
    for piece, last in zip(timed, lasts, strict=True):
        figures = piece.figures()
        measured = (figures[name] for name in ("latency", "spread", "errors"))
        # Older pieces have no list of networks: all were timed.
        networks = [piece.networks[at] for at in figures.get("networks", range(len(piece.networks)))]
        for network, latency, spread, error in zip(networks, *measured, strict=True):
            points[network["form"]].append({**_point(network, latency, last), "spread": spread, "error": error})
    for network in timed[0].last:
        form = network["form"]
        points[form].append({**_point(network, in_the_end[form], in_the_end), "error": last_errors[form]})
    return {form: sorted(of, key=lambda point: point["secs"]) for form, of in points.items()}


def _point(network: Mapping[str, Any], latency: float, last: Mapping[str, float]) -> dict[str, Any]:
    kept = {name: value for name, value in network.items() if name not in ("form", "folder")}
    return {**kept, "latency": latency, "last": dict(last)}
