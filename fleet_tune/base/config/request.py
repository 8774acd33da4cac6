"""A run's request: one value from the command line or the Python API to the state of the run.

The options and their checks are declared in :mod:`fleet_tune.base.config.tune_options`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from fleet_tune.base.config import values
from fleet_tune.base.config.fleet_file import FleetConfig
from fleet_tune.base.config.shape_options import asked_shapes
from fleet_tune.base.config.tune_options import RequestOptions, SearchMethod, checked
from fleet_tune.base.domain import Limits
from fleet_tune.base.errors import RequestError
from fleet_tune.base.precision import Precision, check_error_limit
from fleet_tune.base.records.datasets.sources import RECORDS_FILE
from fleet_tune.base.records.sharing.store_place import StorePlace
from fleet_tune.base.shapes.shapes import Shapes

DEFAULT_TIME_BUDGET_SECS = 600.0
_OF_A_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # Ray sets this variable for the processes of a job


@dataclass(frozen=True)
class RunRequest:
    """A run's network and options, checked and resolved. Make one with :func:`run_request`.

    The fields are the options of :class:`fleet_tune.base.config.tune_options.TuneOptions`; those that differ are
    documented here.
    """

    network: Any
    """A path, ``file.py:function``, or ``(torch module, example inputs)``."""
    out: Path
    """The output folder, an absolute path."""
    fleet: FleetConfig
    """The fleet. The option ``library`` is set in its devices."""
    limits: Limits
    """When the tuning ends: the options ``trials``, ``task_trials`` and ``time_budget_secs``."""
    method: str | SearchMethod = "fleet"
    seed: int = 0
    address: str | None = None
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    metrics_push: str | None = None
    transfer_from: Path | None = None
    pretrained: bool = True
    collects: bool = False
    inputs: Path | None = None
    shapes: Shapes | None = None
    """The options ``shapes`` and ``shapes_weights``."""
    precision: Precision | None = None
    max_error: float | None = None
    trust_model: bool = False
    store: StorePlace | None = None
    """The record store that runs share; None: no store."""
    store_named: bool = False
    """True if the user has named the store: the run does not begin if the store cannot be used."""
    priority: int = 0
    weight: float = 1.0

    @property
    def records(self) -> Path:
        """The run's own record database."""
        return self.out / RECORDS_FILE


def run_request(network: Any, *, out: Path | str, **options: Unpack[RequestOptions]) -> RunRequest:
    """Return the request with these options. A request without any limit gets the default time budget, ten minutes.

    Raise :class:`RequestError` for a value that is out of its range, and :class:`FleetFileError`.
    """
    if not isinstance(network, str | Path | tuple):
        raise RequestError(
            f"a network is a path, file.py:function, or a torch module with its inputs, not {values.shown(network)}",
            "give one of these",
        )
    for name in ("priority", "weight"):
        if options.get(name) is not None and options.get("address") is None:
            raise RequestError(
                f"--{name} is for runs that share a cluster, and this run starts its own",
                f"give the cluster's --address too, or omit --{name}",
            )
    folder = _output_folder(out)
    given = checked(options)
    check_error_limit(given["precision"], given["max_error"])
    given["shapes"] = asked_shapes(given["shapes"], given.pop("shapes_weights"))
    given["fleet"] = given["fleet"].with_library(given.pop("library"))
    _check_no_library(given["fleet"], given["shapes"])
    limits = {name: given.pop(name) for name in ("time_budget_secs", "trials", "task_trials")}
    if all(limit is None for limit in limits.values()):
        limits["time_budget_secs"] = DEFAULT_TIME_BUDGET_SECS
    # Random candidates and answers of a dataset are not shared: no later run can begin with them.
    shares = not given["collects"] and not given["fleet"].datasets
    store = given.pop("store")
    return RunRequest(
        network=network,
        out=folder,
        limits=Limits(**limits),
        store=store if shares else None,
        store_named=options.get("store") is not None,
        **given,
    )


def _check_no_library(fleet: FleetConfig, shapes: Shapes | None) -> None:
    """Raise :class:`RequestError` if a library is combined with a dynamic dimension. A call of a library computes a
    fixed number of rows, and no kernel for any number of rows can be made of such calls."""
    device = next((each.name for each in fleet.devices if each.library), None)
    if device is not None and shapes is not None and shapes.dynamic:
        raise RequestError(
            f"device {device} may call a library, whose kernels are for fixed shapes, and {shapes.dynamic[0].name} is "
            "dynamic",
            "omit --library (the key library of the device), or fix the dimension in --shapes",
        )


def _output_folder(out: Path | str) -> Path:
    """Return ``out`` as an absolute path: actors run in other working directories. Raise :class:`RequestError`."""
    path = values.path("the output folder", out, "--out")
    if not path.is_absolute() and _OF_A_JOB in os.environ:
        raise RequestError(
            f"the output folder {values.shown(str(path))} would lie in the folder that Ray has made for this job, and "
            "removes when it is over",
            "give --out an absolute path, which is one of the head node",
        )
    return path.absolute()
