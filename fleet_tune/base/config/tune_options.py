"""The options of a run, each declared once.

:class:`TuneOptions` has the name, the type, the check, the flag and the text of each option. It is the source of the
keywords of ``fleet_tune.tune``, ``stream`` and ``plan`` with their documentation, of the options of ``fleet-tune
tune``, and of the checks of :func:`fleet_tune.base.config.request.run_request`.
"""

from __future__ import annotations

import functools
import inspect
import os
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypedDict, TypeVar, cast, get_args, get_type_hints

from fleet_tune.base.config import shape_options, values
from fleet_tune.base.config.fleet_file import FleetConfig, Library, default_fleet, load_fleet
from fleet_tune.base.errors import RequestError
from fleet_tune.base.precision import MOST_ERROR, Precision
from fleet_tune.base.records.sharing.shared import default_place
from fleet_tune.base.records.sharing.store_place import StorePlace, is_address, place_of

_PRIORITIES = (-100, 100)
_WEIGHTS = (0.01, 100.0)
_WIDTH = 116
METHODS = ("fleet", "autotvm", "adatune", "ansor", "bansor", "pruner", "moa-pruner", "random")
"""Names of the search methods that come with fleet-tune."""
COST_MODELS = (
    "boosted",
    "boosted-rank-loops",
    "boosted-statements",
    "boosted-invariant",
    "forest-knobs",
    "gaussian",
    "pacm",
)
"""Names of the cost models that come with fleet-tune."""
_PRECISIONS = " or ".join([", ".join(list(Precision)[:-1]), list(Precision)[-1]])
_F = TypeVar("_F", bound=Callable[..., Any])


class SearchMethod(Protocol):
    """A search method made of parts: a :class:`policies.search.methods.Method`."""

    @property
    def name(self) -> str:
        """The name of the method in reports."""
        ...


@dataclass(frozen=True)
class Option:
    """One option: how it is checked, and how the command line and the documentation show it."""

    flag: str
    """The name of the option on the command line. Messages use it too."""
    check: Callable[[Any, str], Any]
    """Maps a given value and the flag to the value of the request. Raises :class:`RequestError`."""
    help: str
    """Its text in ``--help``."""
    about: str
    """Its text in the documentation of the Python API."""
    kind: Literal["text", "path", "int", "float", "switch", "duration"] = "text"
    """The form of its value on the command line. A switch takes no value and inverts the default."""
    default: Any = None
    metavar: str | None = None
    """The name of its value in ``--help``; None for the one of its kind."""
    names: tuple[str, ...] = ()
    """Values that a shell completes. Other values are possible too."""


def _whole(what: str, low: int, high: int) -> Callable[[Any, str], int]:
    return lambda value, flag: values.whole_number(what, value, low, high, flag)


def _optional(check: Callable[[Any, str], Any], otherwise: Any = None) -> Callable[[Any, str], Any]:
    """Return a check that also accepts None, and turns it into ``otherwise``."""
    return lambda value, flag: otherwise if value is None else check(value, flag)


def _seconds(value: Any, flag: str) -> float:
    return values.seconds("a time budget", value, flag)


def _source(value: Any, flag: str) -> Path:
    return values.path("what to learn from", value, flag)


def _weight(value: Any, flag: str) -> float:
    return values.number("a weight", value, *_WEIGHTS, flag)


def _method(value: Any, flag: str) -> str | SearchMethod:
    if not isinstance(value, str) and not hasattr(value, "name"):
        problem = f"a method is a name, file.py:NAME or a Method, not {values.shown(value)}"
        raise RequestError(problem, f"give one with {flag}")
    return cast("str | SearchMethod", value)


def _fleet(value: Any, flag: str) -> FleetConfig:
    """Return the fleet of a fleet file; None: this machine's CPU. Raise :class:`FleetFileError` too."""
    if value is None:
        return default_fleet()
    return value if isinstance(value, FleetConfig) else load_fleet(values.path("a fleet file", value, flag))


def _store(value: Any, flag: str) -> StorePlace | None:
    """Return the place of the record store that runs share. None: the store of this user; empty: no store."""
    if value is None:
        return default_place()
    if isinstance(value, str) and (is_address(value) or value.startswith("@")):
        return place_of(value)
    return None if value == "" else StorePlace(values.path("a record store", value, flag).absolute())


def _inputs(value: Any, flag: str) -> Path:
    path = values.path("a file of inputs", value, flag)
    if not os.path.isfile(path):
        raise RequestError(f"there is no file {path}", f"give {flag} an .npz file, as numpy.savez writes it")
    return path


def _library(value: Any, flag: str) -> Library | None:
    if value in (None, "none"):
        return None
    if value not in get_args(Library):
        problem = f"a library is {' or '.join([*get_args(Library), 'none'])}, not {values.shown(value)}"
        if value == "xnnpack":
            problem += ": PyPI has no package with its shared library and headers"
        raise RequestError(problem, f"give one with {flag}")
    return cast(Library, value)


def _precision(value: Any, flag: str) -> Precision:
    if not isinstance(value, str) or value not in list(Precision):
        raise RequestError(f"a precision is {_PRECISIONS}, not {values.shown(value)}", f"give one with {flag}")
    return Precision(value)


def _error(value: Any, flag: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST_ERROR:
        problem = f"an error is a number above 0 and at most {MOST_ERROR:g}, not {values.shown(value)}"
        raise RequestError(problem, f"give one with {flag}: 0.01, for example")
    return float(value)


def _host(value: Any, flag: str) -> str:  # noqa: ARG001 - its message names the flag
    return values.listening_host(value)


def _gateway(value: Any, flag: str) -> str:  # noqa: ARG001 - its message names the flag
    return values.gateway(value)


def _address(value: Any, flag: str) -> str | None:  # noqa: ARG001 - its message names the flag
    return values.cluster_address(value)


class PlanOptions(TypedDict, total=False):
    """The options that say what is tuned and how. They are also those of ``plan``."""

    method: Annotated[
        str | SearchMethod,
        Option(
            "--method",
            _method,
            f"Search method: {', '.join(METHODS[:-1])} or {METHODS[-1]}; or FILE.py:METHOD.",
            "Search method: its name, ``file.py:METHOD`` for one in a file, or a "
            ":class:`policies.search.methods.Method`.",
            default="fleet",
            metavar="NAME",
            names=METHODS,
        ),
    ]
    trials: Annotated[
        int | None,
        Option(
            "--trials",
            _optional(_whole("the number of trials", 1, values.MOST_TRIALS)),
            "Trials to measure, those of earlier runs included.",
            "Trials to measure. Those of earlier runs in ``out`` count too.",
            kind="int",
        ),
    ]
    time_budget_secs: Annotated[
        float | None,
        Option(
            "--time-budget",
            _optional(_seconds),
            "Tuning time, as 90s, 5m or 1h30m. Default without --trials: 10m.",
            "Tuning time of this call. Ten minutes if neither it nor ``trials`` is given.",
            kind="duration",
            metavar="TIME",
        ),
    ]
    fleet: Annotated[
        Path | str | FleetConfig | None,
        Option(
            "--fleet",
            _fleet,
            "Fleet file (TOML). Default: this CPU.",
            "Fleet file. None: this machine's CPU.",
            kind="path",
        ),
    ]
    inputs: Annotated[
        Path | str | None,
        Option(
            "--inputs",
            _optional(_inputs),
            "Inputs to compare and time the network on (.npz: by name, or in order). Default: its own examples.",
            "An ``.npz`` file of inputs, by name or in order. The network is compared with its framework and timed on "
            "them. None: the network's own examples. An ``.onnx`` file has none: its inputs are made up, in the ranges "
            "that its graph allows.",
            kind="path",
            metavar="FILE",
        ),
    ]
    shapes: Annotated[
        str | None,
        Option(
            "--shapes",
            _optional(shape_options.bounds),
            'Bounds of dynamic dimensions: "n=1..32, tokens=128". A single value fixes one. "; NAME: n=1" adds an '
            "entry point.",
            "Bounds of the network's dynamic dimensions, by name: ``'n=1..32, tokens=128'``. A single value fixes "
            "one. ``'; step: tokens=1'`` behind them adds an entry point, a name for a part of the range. None: the "
            "network has no dynamic dimensions, or (``torch.export.Dim``) bounds of its own.",
            metavar="BOUNDS",
        ),
    ]
    shapes_weights: Annotated[
        Path | str | None,
        Option(
            "--shapes-weights",
            _optional(shape_options.weights),
            'How often each extent comes: "n=1:0.7,8:0.2; tokens=16:1", or a file of lines "extent weight" or "name '
            'extent weight". Default: the ends and powers of two, equally.',
            "How often each extent of the dynamic dimensions comes: ``'n=1:0.7,8:0.2; tokens=16:1'``, or a file with "
            "lines of an extent and its weight, for several dimensions after its name. None: the ends and the powers "
            "of two between them count the same.",
            metavar="WEIGHTS",
        ),
    ]
    precision: Annotated[
        str | None,
        Option(
            "--precision",
            _optional(_precision),
            f"Convert a network of float32: {_PRECISIONS}. Its error is measured and told. Default: as it is.",
            "Precision that a network of float32 is converted to: ``bf16`` or ``fp16`` (operands of products and "
            "convolutions), ``int8w`` (weights of products of few rows), or ``auto``: for each product what saves the "
            "most time within ``max_error``. Its error against float32 is measured on the inputs, and told. None: the "
            "network stays as it is.",
            metavar="NAME",
            names=tuple(Precision),
        ),
    ]
    max_error: Annotated[
        float | None,
        Option(
            "--max-error",
            _optional(_error),
            "Largest error of --precision auto, relative to the largest output: 0.01, for example.",
            "Largest difference from the framework that ``precision='auto'`` may cause on the inputs, relative to the "
            "largest output.",
            kind="float",
            metavar="NUMBER",
        ),
    ]
    library: Annotated[
        str | None,
        Option(
            "--library",
            _library,
            "Library whose kernels are candidates too: onednn (x86-64) or none. Default: none.",
            "Library whose kernels are candidates too, on the CPUs of this machine: ``onednn`` (x86-64; pip install "
            "'fleet-tune[onednn]'). None or ``none``: no library.",
            metavar="NAME",
            names=(*get_args(Library), "none"),
        ),
    ]
    trust_model: Annotated[
        bool,
        Option(
            "--trust-model",
            lambda value, flag: values.flag("trust_model", value, flag),
            "Read a .pt2 file even if reading it runs code (pickles, operators that are not torch's own).",
            "Read a ``.pt2`` file even if reading it runs code. Otherwise such a file is refused. A ``.py`` file "
            "always runs.",
            kind="switch",
            default=False,
        ),
    ]
    transfer_from: Annotated[
        Path | str | None,
        Option(
            "--transfer-from",
            _optional(_source),
            "Learn from this first: a records.db, a dataset, the folder of a MetaSchedule database, a cost model.",
            "Source from which the search learns before its first trial: a record database, a dataset, the folder of "
            "a MetaSchedule database, or the file of a cost model.",
            kind="path",
            metavar="SOURCE",
        ),
    ]
    pretrained: Annotated[
        bool,
        Option(
            "--no-pretrained",
            lambda value, flag: values.flag("pretrained", value, flag),
            "Start without the cost model and records that come with fleet-tune.",
            "Use the cost model that comes with fleet-tune (x86 CPUs) if ``transfer_from`` names nothing, and its "
            "records for tasks that the store does not have.",
            kind="switch",
            default=True,
        ),
    ]
    store: Annotated[
        Path | str | None,
        Option(
            "--store",
            _store,
            "Record store that runs share, a file or postgresql://...: what it has is not measured again. "
            "Default: one for each user.",
            "Record store that runs share: a path, or a team's ``postgresql://...``. The network's tasks that it has "
            'are not measured again, and this run adds its records. None: the store of this user; ``""``: no store.',
            metavar="PATH",
        ),
    ]


class TuneOptions(PlanOptions, total=False):
    """The options of ``tune`` and ``stream``."""

    address: Annotated[
        str | None,
        Option(
            "--address",
            _address,
            "Address of a Ray cluster. Default: an embedded one.",
            "Address of a Ray cluster. None: an embedded one.",
        ),
    ]
    priority: Annotated[
        int | None,
        Option(
            "--priority",
            _optional(_whole("a priority", *_PRIORITIES), 0),
            "Runs of a higher priority use the cluster's devices first. Default: 0.",
            "Priority among the runs of the cluster at ``address`` that use the same devices. The highest goes first. "
            "Default: 0.",
            kind="int",
        ),
    ]
    weight: Annotated[
        float | None,
        Option(
            "--weight",
            _optional(_weight, 1.0),
            "Share of the cluster's devices among runs of the same priority. Default: 1.",
            "Share of the devices among runs of the same priority. Default: 1.",
            kind="float",
        ),
    ]
    seed: Annotated[
        int,
        Option(
            "--seed",
            _whole("a seed", 0, values.MAX_SEED),
            "Seed of the search.",
            "Seed of the search.",
            kind="int",
            default=0,
        ),
    ]
    metrics_port: Annotated[
        int | None,
        Option(
            "--metrics-port",
            _optional(_whole("the port of the metrics", 1, values.MAX_PORT)),
            "Serve Prometheus metrics on this port.",
            "Port on which Prometheus metrics are served.",
            kind="int",
        ),
    ]
    metrics_host: Annotated[
        str,
        Option(
            "--metrics-host",
            _host,
            "Address of this machine on which the metrics are served. Whoever reaches it can read them.",
            "Address of this machine on which the metrics are served.",
            kind="text",
            default="127.0.0.1",
        ),
    ]
    metrics_push: Annotated[
        str | None,
        Option(
            "--metrics-push",
            _optional(_gateway),
            "Prometheus push gateway that gets the metrics, HOST:PORT or its URL.",
            "Prometheus push gateway that gets the metrics, ``HOST:PORT`` or its URL.",
            kind="text",
        ),
    ]


class RequestOptions(TuneOptions, total=False):
    """The options of a request: those of tuning, and those of collecting a dataset."""

    task_trials: Annotated[
        int | None,
        Option(
            "--per-task",
            _optional(_whole("the number of trials of every task", 1, values.MOST_TRIALS)),
            "Trials of every task, failures included.",
            "Trials of every task.",
            kind="int",
        ),
    ]
    collects: Annotated[
        bool,
        Option(
            "dataset collect",
            lambda value, flag: values.flag("collects", value, flag),
            "Measure random candidates, each to its end, into a dataset.",
            "Measure random candidates, each to its end, into a dataset, instead of tuning.",
            kind="switch",
            default=False,
        ),
    ]


def options_of(declared: type) -> dict[str, Option]:
    """Return the options that a class of this module declares, by name."""
    hints = get_type_hints(declared, include_extras=True)
    return {name: next(each for each in get_args(hint) if isinstance(each, Option)) for name, hint in hints.items()}


OPTIONS: Mapping[str, Option] = options_of(RequestOptions)


def checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked value of every option. Options that are not ``given`` have their defaults. Raise
    :class:`RequestError`, :class:`FleetFileError`, and TypeError for an unknown name."""
    unknown = sorted(set(given) - set(OPTIONS))
    if unknown:
        raise TypeError(f"unknown option {unknown[0]!r}")
    return {name: option.check(given.get(name, option.default), option.flag) for name, option in OPTIONS.items()}


def accepts(declared: type) -> Callable[[_F], _F]:
    """Give a function that takes ``**options`` the signature of the declared options, and their documentation."""

    def decorated(function: _F) -> _F:
        own = inspect.signature(function, eval_str=True)
        types = get_type_hints(declared)
        keywords = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=types[name])
            for name, option in options_of(declared).items()
        ]
        fixed = [each for each in own.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        signature = own.replace(parameters=[*fixed, *keywords])

        @functools.wraps(function)
        def with_known_options(*arguments: Any, **options: Any) -> Any:
            signature.bind(*arguments, **options)  # raises TypeError for an unknown name
            return function(*arguments, **options)

        with_known_options.__signature__ = signature  # type: ignore[attr-defined]
        with_known_options.__doc__ = f"{inspect.getdoc(function)}\n\nOptions:\n{_described(declared)}"
        return cast(_F, with_known_options)

    return decorated


def _described(declared: type) -> str:
    """Return the documentation of the declared options, one paragraph for each."""
    return "\n".join(
        textwrap.fill(f"{name}: {option.about}", _WIDTH, initial_indent="    ", subsequent_indent="        ")
        for name, option in options_of(declared).items()
    )
