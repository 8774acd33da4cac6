"""Entry point of ``fleet-tune`` and of ``python -m fleet_tune``, which is the same.

``fleet-tune device serve`` branches off before the rest of the command line is imported: a board lacks the packages
that the rest needs.
"""

from __future__ import annotations

import sys
from typing import NoReturn

from fleet_tune.base.errors import HomeError
from fleet_tune.base.home import provide_home

_SERVE = ["device", "serve"]
_EXTRA = "pip install 'fleet-tune[tune]'"
_BASE_HELP = f"""\
Usage: fleet-tune device serve [OPTIONS]

  Serve this machine as a device; 'fleet-tune device serve --help' has the options.

This is the base installation, for devices. A machine that tunes needs more: {_EXTRA}"""


def run() -> NoReturn:
    """The console script."""
    _provide_home()
    if sys.argv[1:3] == _SERVE:
        from fleet_tune.cli import serve as cli_serve

        sys.exit(cli_serve.main(sys.argv[3:]))
    try:
        from fleet_tune.cli import main as cli
    except ModuleNotFoundError as error:
        if sys.argv[1:] in (["--help"], ["-h"]):
            print(_BASE_HELP)
            sys.exit(0)
        print(f"error: this command needs {error.name}, which is not installed", file=sys.stderr)
        print(f"next: {_EXTRA}; a device needs only 'fleet-tune device serve'", file=sys.stderr)
        sys.exit(2)
    cli.run()


def _provide_home() -> None:
    try:
        told = provide_home()
    except HomeError as error:
        print(f"error: {error.problem}\nnext: {error.next_step}", file=sys.stderr)
        sys.exit(2)
    if told:
        print(told, file=sys.stderr)


if __name__ == "__main__":
    run()
