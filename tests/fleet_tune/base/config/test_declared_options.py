"""Each option of a run is declared once; the Python API, the command line and the request follow from that."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import click
import pytest

import fleet_tune
from fleet_tune.api import plan, stream
from fleet_tune.base.config.request import RunRequest
from fleet_tune.base.config.tune_options import OPTIONS, PlanOptions, TuneOptions, options_of
from fleet_tune.cli.main import cli

_JOINED = {"trials", "task_trials", "time_budget_secs", "shapes_weights", "library"}
"""Options that are parts of a value of the request."""


@pytest.mark.parametrize(
    ("function", "declared", "own"),
    [
        (fleet_tune.tune, TuneOptions, ["network", "out", "on_progress"]),
        (stream, TuneOptions, ["network", "out"]),
        (plan, PlanOptions, ["network"]),
    ],
)
def test_functions_have_the_declared_keywords(function: Any, declared: type, own: list[str]) -> None:
    parameters = inspect.signature(function).parameters
    options = options_of(declared)
    assert list(parameters) == [*own, *options]
    for name, option in options.items():
        assert parameters[name].default == option.default
        assert f"    {name}: " in inspect.getdoc(function)  # type: ignore[operator]
    with pytest.raises(TypeError, match="no_option"):
        function("net.onnx", **dict.fromkeys(own[1:]), no_option=1)


def test_options_of_running_are_none_of_planning() -> None:
    with pytest.raises(TypeError, match="address"):
        plan("net.onnx", address="auto")  # type: ignore[call-arg]


def test_command_has_every_option_of_tuning() -> None:
    command = cli.commands["tune"]
    flags = {parameter.name: parameter for parameter in command.params if isinstance(parameter, click.Option)}
    for name, option in options_of(TuneOptions).items():
        assert flags[name].opts == [option.flag]
        assert flags[name].help == option.help


def test_request_has_every_option() -> None:
    fields = {field.name: field for field in dataclasses.fields(RunRequest)}
    for name, option in OPTIONS.items():
        assert name in fields or name in _JOINED
        if name in fields and option.default is not None:
            assert fields[name].default == option.default
