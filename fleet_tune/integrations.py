"""Callbacks that tell MLflow and Weights & Biases how a run goes: ``fleet_tune.tune(..., on_progress=callback)``.

Each logs the estimated latency of the network per device class, the trials, and the tasks without a result, whenever
the number of trials or the phase has changed. The step is the number of trials. Both log to the active run, and begin
one if none is active.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from fleet_tune.base.errors import RequestError
from fleet_tune.base.results import Progress


class _Callback:
    """Logs a snapshot if its number of trials or its phase is new. ``package``: its name for Python and for pip."""

    def __init__(self, package: str) -> None:
        try:
            self._module: ModuleType = importlib.import_module(package)
        except ImportError as error:
            raise RequestError(f"{package} cannot be imported: {error}", f"pip install {package}") from error
        self._trials = -1
        self._phase = ""

    def __call__(self, progress: Progress) -> None:
        """Log a snapshot."""
        if progress.trials != self._trials or progress.phase != self._phase:
            self._trials, self._phase = progress.trials, progress.phase
            self._log(values_of(progress), progress.trials)

    def _log(self, values: Mapping[str, float], step: int) -> None:
        raise NotImplementedError


class MlflowCallback(_Callback):
    """Logs to the active run of MLflow; ``mlflow.log_metrics`` begins one if none is active.

    Raises :class:`RequestError` if MLflow is not installed.
    """

    def __init__(self) -> None:
        super().__init__("mlflow")

    def _log(self, values: Mapping[str, float], step: int) -> None:
        self._module.log_metrics(dict(values), step=step)


class WandbCallback(_Callback):
    """Logs to the active run of Weights & Biases.

    Args:
        init: arguments of ``wandb.init``, which is called if no run is active.

    Raises :class:`RequestError` if wandb is not installed.
    """

    def __init__(self, **init: Any) -> None:
        super().__init__("wandb")
        if self._module.run is None:
            self._module.init(**init)

    def _log(self, values: Mapping[str, float], step: int) -> None:
        self._module.log(dict(values), step=step)


def values_of(progress: Progress) -> dict[str, float]:
    """Return the values to log of a snapshot: ``latency_ms`` (with several device classes ``latency_ms/CLASS``) once it
    is known, ``trials``, ``failed_trials``, ``tasks_without_result``, ``elapsed_secs``."""
    latencies = {name: secs for name, secs in progress.network_secs.items() if math.isfinite(secs)}
    several = len(progress.network_secs) > 1
    values = {f"latency_ms/{name}" if several else "latency_ms": 1e3 * secs for name, secs in latencies.items()}
    return values | {
        "trials": float(progress.trials),
        "failed_trials": float(progress.trials - progress.outcomes.get("ok", 0)),
        "tasks_without_result": float(sum(math.isinf(task.best_secs) for task in progress.tasks)),
        "elapsed_secs": progress.elapsed_secs,
    }
