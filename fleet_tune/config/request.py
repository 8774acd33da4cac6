"""What a run is asked for: one value from the command line or the Python API to the state of the run.

:func:`run_request` is the one place where the values are checked.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet_tune.config.fleet_file import FleetConfig, default_fleet, load_fleet
from fleet_tune.domain import Limits
from fleet_tune.errors import RequestError
from fleet_tune.records.sources import RECORDS_FILE

DEFAULT_TIME_BUDGET_SECS = 600.0
MAX_SEED = 2**32 - 1
_MAX_PORT = 65535


@dataclass(frozen=True)
class RunRequest:
    """The arguments of :func:`fleet_tune.api.tune`, checked and resolved: make one with :func:`run_request`.

    ``out``: an absolute path. ``collects``: measure random candidates, each to its end, into a dataset, instead of
    tuning. ``transfer_from``: what the search learns from before its first trial (:mod:`fleet_tune.runs.transfer`),
    ``pretrained``: whether the cost model that comes with fleet-tune is used where nothing is named. ``inputs``: the
    ``.npz`` file with the network's example inputs, None for its own, or some that are made up.
    ``trust_model``: code in a ``.pt2`` file may be run."""

    network: Any
    out: Path
    fleet: FleetConfig
    limits: Limits
    method: str = "fleet"
    seed: int = 0
    address: str | None = None
    metrics_port: int | None = None
    transfer_from: Path | None = None
    pretrained: bool = True
    collects: bool = False
    inputs: Path | None = None
    trust_model: bool = False

    @property
    def records(self) -> Path:
        return self.out / RECORDS_FILE


def run_request(
    network: Any,
    *,
    out: Path | str,
    method: str = "fleet",
    trials: int | None = None,
    task_trials: int | None = None,
    time_budget_secs: float | None = None,
    fleet: Path | str | FleetConfig | None = None,
    address: str | None = None,
    seed: int = 0,
    metrics_port: int | None = None,
    transfer_from: Path | str | None = None,
    pretrained: bool = True,
    collects: bool = False,
    inputs: Path | str | None = None,
    trust_model: bool = False,
) -> RunRequest:
    """The request with these values. Without any limit it has the default one, ten minutes; ``fleet``: a fleet file,
    None for this machine's CPU.

    Raises :class:`RequestError` for a value that is out of its range, :class:`FleetFileError`.
    """
    if trials is None and time_budget_secs is None and task_trials is None:
        time_budget_secs = DEFAULT_TIME_BUDGET_SECS
    return RunRequest(
        network=network,
        # Actors run in other working directories.
        out=Path(out).absolute(),
        limits=Limits(
            time_budget_secs=_checked_budget(time_budget_secs),
            trials=_checked_trials("trials", trials, "--trials"),
            task_trials=_checked_trials("trials of every task", task_trials, "--per-task"),
        ),
        method=method,
        seed=_checked_seed(seed),
        address=address,
        metrics_port=_checked_port(metrics_port),
        transfer_from=None if transfer_from is None else Path(transfer_from),
        pretrained=pretrained,
        collects=collects,
        inputs=checked_inputs(inputs),
        trust_model=trust_model,
        fleet=resolved_fleet(fleet),
    )


def resolved_fleet(fleet: Path | str | FleetConfig | None) -> FleetConfig:
    """The fleet of a fleet file; None: this machine's CPU. Raises :class:`FleetFileError`."""
    if fleet is None:
        return default_fleet()
    return fleet if isinstance(fleet, FleetConfig) else load_fleet(Path(fleet))


def checked_inputs(inputs: Path | str | None) -> Path | None:
    """The path of an existing file of inputs. Raises :class:`RequestError`."""
    if inputs is None:
        return None
    if not Path(inputs).is_file():
        raise RequestError(f"there is no file {inputs}", "give --inputs an .npz file, as numpy.savez writes it")
    return Path(inputs)


def _checked_budget(secs: float | None) -> float | None:
    if secs is None:
        return None
    if isinstance(secs, bool) or not isinstance(secs, numbers.Real) or not (math.isfinite(secs) and secs > 0):
        raise RequestError(
            f"a time budget is a positive, finite number of seconds, not {secs!r}",
            "give one with --time-budget, as 90s, 5m or 1h30m",
        )
    return float(secs)


def _checked_trials(what: str, count: int | None, option: str) -> int | None:
    if count is None:
        return None
    if not _is_whole(count, 1):
        raise RequestError(
            f"the number of {what} is a whole number from 1, not {count!r}", f"give 1 or more with {option}"
        )
    return int(count)


def _checked_seed(seed: int) -> int:
    if not _is_whole(seed, 0, MAX_SEED):
        raise RequestError(f"a seed is a whole number from 0 to {MAX_SEED}, not {seed!r}", "give another with --seed")
    return int(seed)


def _checked_port(port: int | None) -> int | None:
    if port is None:
        return None
    if not _is_whole(port, 1, _MAX_PORT):
        raise RequestError(
            f"the port of the metrics is a whole number from 1 to {_MAX_PORT}, not {port!r}",
            "give another port with --metrics-port",
        )
    return int(port)


def _is_whole(value: object, low: int, high: float = math.inf) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and low <= int(value) <= high
