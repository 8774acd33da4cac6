"""What a run is asked for: one value from the command line or the Python API to the state of the run.

:func:`run_request` is the one place where the values are checked, by the rules of :mod:`fleet_tune.base.config.values`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fleet_tune.base.config import values
from fleet_tune.base.config.fleet_file import FleetConfig, default_fleet, load_fleet
from fleet_tune.base.domain import Limits
from fleet_tune.base.errors import RequestError
from fleet_tune.base.records.datasets.sources import RECORDS_FILE
from fleet_tune.base.records.sharing.shared import default_place
from fleet_tune.base.records.sharing.store_place import StorePlace, is_address, place_of

DEFAULT_TIME_BUDGET_SECS = 600.0
_PRIORITIES = (-100, 100)
_WEIGHTS = (0.01, 100.0)
_OF_A_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # Ray sets it for what a job runs; that is its name
_T = TypeVar("_T")


class SearchMethod(Protocol):
    """A search method made of parts: a :class:`policies.search.methods.Method`."""

    @property
    def name(self) -> str:
        """The name of the method in reports."""
        ...


@dataclass(frozen=True)
class RunRequest:
    """The arguments of :func:`fleet_tune.api.tune`, checked and resolved: make one with :func:`run_request`.

    ``out``: an absolute path. ``collects``: measure random candidates, each to its end, into a dataset, instead of
    tuning. ``transfer_from``: what the search learns from before its first trial
    (:mod:`fleet_tune.runs.transfer.transfer_prior`), ``pretrained``: whether the cost model that comes with fleet-tune
    is used where nothing is named, and the records that come with it where the store has none. ``inputs``: the ``.npz``
    file with the network's example inputs, None for its own, or some that are made up. ``trust_model``: code in a
    ``.pt2`` file may be run. ``store``: the record store that several runs share, None for none; ``store_named``: the
    user has named it, so that the run does not begin where it cannot be used. ``priority``, ``weight``: of this run
    among those of its cluster that use the same devices (:mod:`policies.runs.cluster.turns`)."""

    network: Any
    out: Path
    fleet: FleetConfig
    limits: Limits
    method: str | SearchMethod = "fleet"
    seed: int = 0
    address: str | None = None
    metrics_port: int | None = None
    transfer_from: Path | None = None
    pretrained: bool = True
    collects: bool = False
    inputs: Path | None = None
    trust_model: bool = False
    store: StorePlace | None = None
    store_named: bool = False
    priority: int = 0
    weight: float = 1.0

    @property
    def records(self) -> Path:
        return self.out / RECORDS_FILE


def run_request(
    network: Any,
    *,
    out: Path | str,
    method: str | SearchMethod = "fleet",
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
    store: Path | str | None = None,
    priority: int | None = None,
    weight: float | None = None,
) -> RunRequest:
    """The request with these values. Without any limit it has the default one, ten minutes; ``fleet``: a fleet file,
    None for this machine's CPU. ``store``: None for that of this user, empty for none.

    Raises :class:`RequestError` for a value that is out of its range, :class:`FleetFileError`.
    """
    if trials is None and time_budget_secs is None and task_trials is None:
        time_budget_secs = DEFAULT_TIME_BUDGET_SECS
    if not isinstance(network, str | Path | tuple):
        raise RequestError(
            f"a network is a path, file.py:function, or a torch module with its inputs, not {values.shown(network)}",
            "give one of these",
        )
    if not isinstance(method, str) and not hasattr(method, "name"):
        raise RequestError(
            f"a method is a name, file.py:NAME or a Method, not {values.shown(method)}", "give one with --method"
        )
    resolved = resolved_fleet(fleet)
    # Random candidates, and what a dataset answers, are nothing that a later run could begin with.
    shares = not collects and not resolved.datasets
    for option, value in (("--priority", priority), ("--weight", weight)):
        if value is not None and address is None:
            raise RequestError(
                f"{option} is of a run that shares its cluster with others, and this one starts its own",
                "give the cluster's --address too, or leave it out",
            )
    return RunRequest(
        network=network,
        out=_output_folder(out),
        limits=Limits(
            time_budget_secs=_given(values.seconds, "a time budget", time_budget_secs, "--time-budget"),
            trials=_given(_trials, "the number of trials", trials, "--trials"),
            task_trials=_given(_trials, "the number of trials of every task", task_trials, "--per-task"),
        ),
        method=method,
        seed=values.whole_number("a seed", seed, 0, values.MAX_SEED, "--seed"),
        address=values.cluster_address(address),
        metrics_port=_given(_port, "the port of the metrics", metrics_port, "--metrics-port"),
        transfer_from=_given(values.path, "what to learn from", transfer_from, "--transfer-from"),
        pretrained=values.flag("pretrained", pretrained, "--no-pretrained"),
        collects=collects,
        inputs=checked_inputs(inputs),
        trust_model=values.flag("trust_model", trust_model, "--trust-model"),
        fleet=resolved,
        store=resolved_store(store) if shares else None,
        store_named=store is not None,
        priority=values.whole_number("a priority", 0 if priority is None else priority, *_PRIORITIES, "--priority"),
        weight=values.number("a weight", 1.0 if weight is None else weight, *_WEIGHTS, "--weight"),
    )


def _output_folder(out: Path | str) -> Path:
    """``out`` as an absolute path: actors run in other working directories. Raises :class:`RequestError`."""
    path = values.path("the output folder", out, "--out")
    if not path.is_absolute() and _OF_A_JOB in os.environ:
        raise RequestError(
            f"the output folder {values.shown(str(path))} would lie in the folder that Ray has made for this job, and "
            "removes when it is over",
            "give --out an absolute path, which is one of the head node",
        )
    return path.absolute()


def _given(check: Callable[[str, Any, str], _T], what: str, value: Any, option: str) -> _T | None:
    """``value`` as ``check`` makes of it, None where there is none."""
    return None if value is None else check(what, value, option)


def _trials(what: str, value: Any, option: str) -> int:
    return values.whole_number(what, value, 1, values.MOST_TRIALS, option)


def _port(what: str, value: Any, option: str) -> int:
    return values.whole_number(what, value, 1, values.MAX_PORT, option)


def resolved_fleet(fleet: Path | str | FleetConfig | None) -> FleetConfig:
    """The fleet of a fleet file; None: this machine's CPU. Raises :class:`FleetFileError`."""
    if fleet is None:
        return default_fleet()
    return fleet if isinstance(fleet, FleetConfig) else load_fleet(values.path("a fleet file", fleet, "--fleet"))


def resolved_store(store: Path | str | None) -> StorePlace | None:
    """The record store that several runs share: None: that of this user, empty: None. Raises :class:`RequestError`."""
    if store is None:
        return default_place()
    if isinstance(store, str) and (is_address(store) or store.startswith("@")):
        return place_of(store)
    return None if store == "" else StorePlace(values.path("a record store", store, "--store").absolute())


def checked_inputs(inputs: Path | str | None) -> Path | None:
    """The path of an existing file of inputs. Raises :class:`RequestError`."""
    if inputs is None:
        return None
    path = values.path("a file of inputs", inputs, "--inputs")
    if not os.path.isfile(path):
        raise RequestError(f"there is no file {path}", "give --inputs an .npz file, as numpy.savez writes it")
    return path
