"""Writes docs/generated/cli.md, the reference of the command line, from the help of its commands (``make docs``)."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import click

from fleet_tune.cli.main import PROGRAM, cli
from fleet_tune.cli.serve import parser as device_serve_parser

PAGE = Path(__file__).parents[2] / "docs" / "generated" / "cli.md"
_HEAD = "# Command line\n\nWritten by `make docs` from the help of the commands."


def reference() -> str:
    """Return the page, with a section for each command that is no group."""
    return "\n\n".join([_HEAD, *_sections(cli, PROGRAM)]) + "\n"


def _sections(command: click.Command, path: str) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name in sorted(command.commands):
            yield from _sections(command.commands[name], f"{path} {name}")
        return
    if path == f"{PROGRAM} device serve":  # it has a parser of its own, which loads no click on a device
        serve = device_serve_parser()
        yield f"## `{path}`\n\n{_paragraph(serve.description)}\n\n{_table(_serve_rows(serve))}"
        return
    arguments = [_argument(each) for each in command.params if isinstance(each, click.Argument)]
    rows = [(_names(each), each.help or "") for each in command.params if isinstance(each, click.Option)]
    parts = [f"## `{path}`", f"`{' '.join([path, *arguments])}`", _paragraph(command.help), _table(rows)]
    yield "\n\n".join(part for part in parts if part)


def _argument(argument: click.Argument) -> str:
    name = (argument.metavar or argument.name or "").upper()
    return f"{name}..." if argument.nargs == -1 and not name.endswith("...") else name


def _names(option: click.Option) -> str:
    value = "" if option.is_flag else f" {(option.metavar or option.type.name or '').upper()}"
    return f"`{', '.join((*option.opts, *option.secondary_opts))}{value}`"


def _serve_rows(parser: argparse.ArgumentParser) -> list[tuple[str, str]]:
    return [
        (f"`{', '.join(action.option_strings)}`", (action.help or "") % {"default": action.default})
        for action in parser._actions
        if action.option_strings and action.dest != "help"
    ]


def _table(rows: list[tuple[str, str]]) -> str:
    lines = [f"| {name} | {_cell(text)} |" for name, text in rows if text]
    return "\n".join(["| option | meaning |", "|---|---|", *lines]) if lines else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _paragraph(text: str | None) -> str:
    return "\n\n".join(" ".join(part.split()) for part in (text or "").replace("\b", "").split("\n\n"))


if __name__ == "__main__":
    PAGE.write_text(reference())
