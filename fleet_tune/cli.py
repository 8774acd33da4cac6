"""The command line. Everything heavy is imported inside the commands: ``fleet-tune --help`` loads neither ray nor torch
nor tvm.

Exit codes: 0 done; 2 a mistake of the user's, told in one line with the next step in a second one; 130 and 143 stopped
by SIGINT (Ctrl-C) and SIGTERM, after the summary of what was found; 1 a fault of ours, with its traceback.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from fleet_tune.cli_dataset import dataset
from fleet_tune.cli_options import MODEL_HELP, fleet_option, json_option, model_name
from fleet_tune.errors import UserError
from fleet_tune.version import __version__

if TYPE_CHECKING:
    from fleet_tune.results import TuneResult

PROGRAM = "fleet-tune"
_DEFAULT_OUT = Path("fleet-tune-out")
# The rule that ends a measurement: runs beside the kernel, in the device server. Named, so that a board loads it alone.
_STOP_DECISION = "policies.stopping:decide"
_F = TypeVar("_F", bound=Callable[..., Any])


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code. ``arguments`` None: those of the process."""
    try:
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
    """The console script: :func:`main`, and the end of the process.

    An interrupted run may have left a thread in the middle of TVM's or Ray's native code, which would crash while the
    interpreter winds down: such a process ends at once. Its actors, server and store are closed by then.
    """
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    if code in (128 + signal.SIGINT, 128 + signal.SIGTERM):
        os._exit(code)
    sys.exit(code)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name=PROGRAM)
def cli() -> None:
    """Tunes neural networks on fleets of devices.

    A network goes in; a faster, verified, compiled network for each kind of device comes out.
    """


cli.add_command(dataset)


def _report_options(command: _F) -> _F:
    command = json_option(command)
    return click.option("--svg", type=click.Path(path_type=Path), hidden=True, help="Save the summary as a picture.")(
        command
    )


@cli.command(
    short_help="Tune a network.",
    help=f"Tune MODEL and leave the compiled network in --out; the same command again resumes.{MODEL_HELP}",
)
@click.argument("model")
@click.option(
    "--method",
    default="fleet",
    show_default=True,
    help="Search method: fleet, autotvm, adatune, ansor, bansor or random.",
    metavar="NAME",
)
@click.option("--trials", type=click.IntRange(min=1), help="Trials to measure, those of earlier runs included.")
@click.option("--time-budget", metavar="TIME", help="Tuning time, as 90s, 5m or 1h30m. Default without --trials: 10m.")
@fleet_option
@click.option(
    "--out", type=click.Path(path_type=Path), help=f"Output folder. Default: {_DEFAULT_OUT}/ and the model's name."
)
@click.option("--address", help="Address of a Ray cluster. Default: an embedded one.")
@click.option(
    "--seed", type=click.IntRange(min=0, max=2**32 - 1), default=0, show_default=True, help="Seed of the search."
)
@click.option("--dry-run", is_flag=True, help="Print tasks, weights, sketches and the plan; measure nothing.")
@click.option(
    "--metrics-port", type=click.IntRange(1, 65535), help="Serve Prometheus metrics on this port of 127.0.0.1."
)
@_report_options
def tune(
    model: str,
    method: str,
    trials: int | None,
    time_budget: str | None,
    fleet: Path | None,
    out: Path | None,
    address: str | None,
    seed: int,
    dry_run: bool,
    metrics_port: int | None,
    as_json: bool,
    svg: Path | None,
) -> int:
    from fleet_tune import api
    from fleet_tune.config import load_fleet, parse_duration

    # What is wrong with these is told before anything heavy is loaded.
    time_budget_secs = None if time_budget is None else parse_duration(time_budget)
    fleet_config = None if fleet is None else load_fleet(fleet)
    if dry_run:
        from fleet_tune.report import make_console, render_plan, to_json_line

        plan = api.plan(model, method=method, trials=trials, time_budget_secs=time_budget_secs, fleet=fleet_config)
        make_console(stderr=as_json).print(render_plan(plan))
        if as_json:
            click.echo(to_json_line(plan))
        return 0

    from fleet_tune.progress_view import ProgressView
    from fleet_tune.report import make_console

    with ProgressView(make_console(stderr=True), model_name(model)) as view:
        result = api.tune(
            model,
            out=out or _DEFAULT_OUT / model_name(model),
            method=method,
            trials=trials,
            time_budget_secs=time_budget_secs,
            fleet=fleet_config,
            address=address,
            seed=seed,
            metrics_port=metrics_port,
            on_progress=view.update,
        )
    return _report(result, as_json, svg)


@cli.command(
    "compile",
    short_help="Compile a network from records.",
    help=f"Compile MODEL from the best records of a database, without tuning.{MODEL_HELP}",
)
@click.argument("model")
@click.option("--records", type=click.Path(path_type=Path), required=True, help="Record database (records.db).")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Output folder.")
@fleet_option
@_report_options
def compile_command(model: str, records: Path, out: Path, fleet: Path | None, as_json: bool, svg: Path | None) -> int:
    from fleet_tune import api
    from fleet_tune.config import load_fleet

    fleet_config = None if fleet is None else load_fleet(fleet)
    return _report(api.compile_network(model, records=records, out=out, fleet=fleet_config), as_json, svg)


@cli.group()
def device() -> None:
    """What runs on a device of the fleet."""


@device.command()
@click.option("--host", "--bind", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=9090, show_default=True, help="0 takes a free port.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads a kernel runs on. Default: all usable cores.")
def serve(host: str, port: int, threads: int | None) -> None:
    """Serve this machine as a device until Ctrl-C or SIGTERM.

    Whoever reaches the port can run code here as this user: listen on other addresses than 127.0.0.1 only in a network
    that you trust.
    """
    from devices import server

    server.serve(host, port, threads, decide=_STOP_DECISION, announce=click.echo)


@cli.command()
def version() -> None:
    """Print the version."""
    click.echo(f"{PROGRAM} {__version__}")


def _report(result: TuneResult, as_json: bool, svg: Path | None) -> int:
    """Prints the result and returns the exit code."""
    from fleet_tune.report import make_console, render_summary, save_svg, to_json_line

    summary = render_summary(result)
    make_console(stderr=as_json).print(summary)
    if svg is not None:
        save_svg(summary, svg, PROGRAM)
    if as_json:
        click.echo(to_json_line(result))
    return 128 + (result.signal_number or signal.SIGINT) if result.interrupted else 0


def _fail(problem: str, next_step: str) -> int:
    """Tells a mistake: one line for the problem, one for the next step."""
    for label, text in (("error", problem), ("next", next_step)):
        click.echo(f"{label}: {' '.join(text.split())}", err=True)
    return 2
