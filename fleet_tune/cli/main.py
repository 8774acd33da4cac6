"""The command line. Everything heavy is imported inside the commands: ``fleet-tune --help`` loads neither ray nor torch
nor tvm.

Exit codes: 0 done; 2 a mistake of the user, reported in one line, with the next step in a second line; 130 and 143
stopped by SIGINT (Ctrl-C) and SIGTERM, after the summary of the results so far; 1 a fault of fleet-tune, with its
traceback.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, Unpack

import click

from devices.host.current_folder import enter_replaced_folder
from devices.networks.libraries import LoadingWatch
from fleet_tune.base.errors import RequestError, UserError
from fleet_tune.base.version import __version__
from fleet_tune.cli.cost_models import model as model_group
from fleet_tune.cli.dataset import dataset
from fleet_tune.cli.device import ADMIN_COMMANDS
from fleet_tune.cli.doctor import doctor
from fleet_tune.cli.options import (
    NETWORK_HELP,
    check_picture,
    cost_model_option,
    json_option,
    narration_options,
    network_name,
    run_options,
)
from fleet_tune.cli.output import keep_output, lost_output
from fleet_tune.cli.records import records as records_group
from fleet_tune.cli.report import compare, dashboard, frameworks, report, watch
from fleet_tune.cli.retune import retune
from fleet_tune.cli.scale import scale
from fleet_tune.cli.store import store as store_group
from fleet_tune.report.json_output import json_line
from policies.cost_models.xgboost_module import spare_scikit_learn

if TYPE_CHECKING:
    from fleet_tune.base.config.tune_options import TuneOptions
    from fleet_tune.base.results import TuneResult
    from fleet_tune.report.narration import Narration

PROGRAM = "fleet-tune"
_DEMO_SECS = 60.0
_DEFAULT_OUT = Path("fleet-tune-out")
_F = TypeVar("_F", bound=Callable[..., Any])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code. ``arguments`` None: those of the process."""
    try:
        enter_replaced_folder()
        code = cli.main(arguments, PROGRAM, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else PROGRAM
        return _fail(error.format_message(), f"{command} --help lists what is accepted")
    except UserError as error:
        return _fail(error.problem, error.next_step)
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped before there was a result", err=True)
        return 128 + signal.SIGINT
    return code if isinstance(code, int) else 0


def run() -> NoReturn:
    """The console script: run :func:`main`, then end the process.

    The process ends at once. Its actors, server and store are closed by then, and freeing what torch, TVM and Ray have
    loaded takes seconds. A run that a signal or an error ended early may also have left a thread in native code, which
    would crash while the interpreter shuts down.
    """
    spare_scikit_learn()
    out = keep_output()
    code = main()
    LoadingWatch.close_all()
    sys.stdout.flush()
    lost = lost_output(out)
    if lost:
        code = _fail(f"the output cannot be written: {lost}", "give it more space; a run leaves its result in --out")
    sys.stderr.flush()
    logging.shutdown()
    os._exit(code)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name=PROGRAM)
def cli() -> None:
    """Tunes neural networks on fleets of devices.

    A network goes in; a faster, verified, compiled network for each kind of device comes out.
    """


cli.add_command(dataset)
cli.add_command(doctor)
cli.add_command(model_group)
cli.add_command(records_group)
cli.add_command(report)
cli.add_command(compare)
cli.add_command(frameworks)
cli.add_command(watch)
cli.add_command(dashboard)
cli.add_command(scale)
cli.add_command(store_group)
cli.add_command(retune)


def _report_options(command: _F) -> _F:
    command = json_option(command)
    return click.option("--svg", type=click.Path(path_type=Path), hidden=True, help="Save the summary as a picture.")(
        command
    )


@cli.command(
    short_help="Tune a network.",
    help=f"Tune NETWORK and leave the compiled network in --out; the same command again resumes.{NETWORK_HELP}",
)
@click.argument("network")
@run_options("method")
@cost_model_option(
    "Cost model instead of the method's: boosted, boosted-rank-loops, boosted-statements, boosted-invariant, "
    "forest-knobs, gaussian or pacm."
)
@click.option(
    "--offline-model",
    is_flag=True,
    help="Never train the cost model on measurements of this run: with --transfer-from.",
)
@run_options("trials", "time_budget_secs", "fleet", "inputs", "shapes", "shapes_weights")
@run_options("precision", "max_error", "library", "trust_model")
@click.option(
    "--out", type=click.Path(path_type=Path), help=f"Output folder. Default: {_DEFAULT_OUT}/ and the network's name."
)
@run_options("address", "priority", "weight", "seed", "transfer_from", "store")
@click.option("--no-store", is_flag=True, help="Neither read nor write a shared store.")
@run_options("pretrained")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Compare the imported network with its framework, print tasks, weights, sketches, sources of learning and the "
    "plan; measure nothing.",
)
@run_options("metrics_port", "metrics_host", "metrics_push")
@narration_options
@_report_options
def tune(
    network: str,
    cost_model: str | None,
    offline_model: bool,
    out: Path | None,
    no_store: bool,
    dry_run: bool,
    narration: Narration,
    as_json: bool,
    svg: Path | None,
    **options: Unpack[TuneOptions],
) -> int:
    from fleet_tune import api
    from fleet_tune.base.config.request import run_request

    # Errors in the options are reported before heavy modules are loaded.
    if no_store:
        if options["store"] is not None:
            raise RequestError("--store and --no-store contradict each other", "give one of them")
        options["store"] = ""
    check_picture(svg)
    request = run_request(network, out=out or _DEFAULT_OUT / network_name(network), **options)
    if cost_model or offline_model:
        from policies.search.methods import spec

        request = dataclasses.replace(request, method=spec(str(options["method"]), cost_model, offline=offline_model))
    if dry_run:
        from fleet_tune.report.progress import steps_shown
        from fleet_tune.report.run import make_console, render_plan, to_json_line

        with steps_shown(make_console(stderr=True), network_name(network), "planning", narration):
            plan = api.make_plan(request)
        make_console(stderr=as_json).print(render_plan(plan))
        if as_json:
            click.echo(to_json_line(plan))
        return 0

    from fleet_tune.report.progress import ProgressView
    from fleet_tune.report.run import make_console

    with ProgressView(make_console(stderr=True), network_name(network), narration) as view:
        result = api.run_tuning(request, view.update)
    return _report(result, as_json, svg)


@cli.command(short_help="Tune a small network, to try it out.")
@run_options("time_budget_secs", time_budget_secs="Tuning time, as 90s or 5m. Default: 1m.")
@click.option("--out", type=click.Path(path_type=Path), help=f"Output folder. Default: {_DEFAULT_OUT}/demo.")
@click.pass_context
def demo(context: click.Context, time_budget_secs: float | None, out: Path | None) -> int:
    """Tune a small residual network for this CPU, and print the summary."""
    network = f"{Path(__file__).parents[1] / 'demo.py'}:network"
    secs = _DEMO_SECS if time_budget_secs is None else time_budget_secs
    result: int = context.invoke(tune, network=network, time_budget_secs=secs, out=out or _DEFAULT_OUT / "demo")
    return result


@cli.command(
    "compile",
    short_help="Compile a network from records.",
    help=f"Compile NETWORK from the best records of a database, without tuning.{NETWORK_HELP}",
)
@click.argument("network")
@click.option("--records", type=click.Path(path_type=Path), required=True, help="Record database (records.db).")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Output folder.")
@run_options("fleet", "inputs", "shapes", "shapes_weights", "precision", "max_error", "library", "trust_model")
@_report_options
def compile_command(
    network: str,
    records: Path,
    out: Path,
    fleet: Path | None,
    inputs: Path | None,
    shapes: str | None,
    shapes_weights: str | None,
    precision: str | None,
    max_error: float | None,
    library: str | None,
    trust_model: bool,
    as_json: bool,
    svg: Path | None,
) -> int:
    from fleet_tune import api
    from fleet_tune.base.config.fleet_file import load_fleet

    check_picture(svg)
    fleet_config = None if fleet is None else load_fleet(fleet)
    from fleet_tune.report.progress import steps_shown
    from fleet_tune.report.run import make_console

    with steps_shown(make_console(stderr=True), network_name(network), "compiling"):
        result = api.compile_network(
            network,
            records=records,
            out=out,
            fleet=fleet_config,
            inputs=inputs,
            shapes=shapes,
            shapes_weights=shapes_weights,
            trust_model=trust_model,
            precision=precision,
            max_error=max_error,
            library=library,
        )
    return _report(result, as_json, svg)


@cli.group(short_help="Devices of a fleet.")
def device() -> None:
    """Devices of a fleet: serve them, list them, check them, and give orders for them."""


for admin_command in ADMIN_COMMANDS:
    device.add_command(admin_command)


@device.command(
    short_help="Serve this machine as a device.",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def serve(arguments: tuple[str, ...]) -> int:
    """Serve this machine as a device until Ctrl-C or SIGTERM."""
    from fleet_tune.cli import serve as cli_serve

    return cli_serve.main(arguments)


@cli.command()
@json_option
def version(as_json: bool) -> None:
    """Print the version."""
    click.echo(json_line({"program": PROGRAM, "version": __version__}) if as_json else f"{PROGRAM} {__version__}")


def _report(result: TuneResult, as_json: bool, svg: Path | None) -> int:
    """Print the result, write it to the output folder too, and return the exit code."""
    from fleet_tune.report.result_file import RESULT_FILE, write_result
    from fleet_tune.report.run import make_console, render_summary, save_svg, to_json_line

    summary = render_summary(result)
    make_console(stderr=as_json).print(summary)
    # On one line, however long the path is: programs search the log of a job for it.
    try:
        click.echo(f"result: {write_result(result)}", err=as_json)
    except OSError as error:
        problem = error.strerror or error
        click.echo(f"warning: {RESULT_FILE} cannot be written to {result.out}: {problem}", err=True)
    if svg is not None:
        save_svg(summary, svg, PROGRAM)
    if as_json:
        click.echo(to_json_line(result))
    for network in result.networks:
        if network.published == "nothing":
            problem = f"the network of {network.device_class} is not published: {network.problem}"
            return _fail(problem, "report the network; what was measured is kept")
    return 128 + (result.signal_number or signal.SIGINT) if result.interrupted else 0


def _fail(problem: str, next_step: str) -> int:
    """Report a mistake: one line for the problem, one for the next step."""
    for label, text in (("error", problem), ("next", next_step)):
        click.echo(f"{label}: {' '.join(text.split())}", err=True)
    return 2
