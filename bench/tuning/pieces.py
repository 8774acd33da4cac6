"""Long benchmarks in pieces: each run of a tuner keeps its figures in a folder of its own, so that the same command
goes on where it was interrupted. A run with other settings is another piece, and a run that did not end begins anew."""

from __future__ import annotations

import dataclasses
import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from bench.saved_result import commit
from fleet_tune.base.records.files.atomic_file import write_atomically


@dataclass(frozen=True)
class Piece(ABC):
    """One run of a tuner."""

    model: str
    folder: Path

    @property
    @abstractmethod
    def name(self) -> str:
        """The run in words."""

    @abstractmethod
    def tune(self) -> dict[str, Any]:
        """Run the tuner and return its figures."""

    @property
    def file(self) -> Path:
        """What is kept of the run, written at its end: its settings, the commit, its figures."""
        return self.folder / "figures.json"

    @property
    def is_done(self) -> bool:
        return self.file.exists() and json.loads(self.file.read_text())["settings"] == self._settings()

    def figures(self) -> dict[str, Any]:
        """Return the figures of a run that is done."""
        figures: dict[str, Any] = json.loads(self.file.read_text())["figures"]
        return figures

    def commit(self) -> str:
        """Return the commit at which a run was made that is done."""
        return str(json.loads(self.file.read_text())["commit"])

    def run(self) -> None:
        """Run the tuner, and keep the figures."""
        click.echo(self.name, err=True)
        shutil.rmtree(self.folder, ignore_errors=True)  # what an interrupted run has left would be gone on with
        self.folder.mkdir(parents=True)
        kept = {"settings": self._settings(), "commit": commit(), "figures": self.tune()}
        write_atomically(self.file, (json.dumps(kept) + "\n").encode())

    def _settings(self) -> dict[str, Any]:
        settings = {each.name: getattr(self, each.name) for each in dataclasses.fields(self) if each.name != "folder"}
        found: dict[str, Any] = json.loads(json.dumps(settings))
        return found


def run_missing(pieces: Sequence[Piece], most: int) -> bool:
    """Run the pieces that are not done, at most ``most`` of them (0: all), and return true if none is missing then.
    Those that are missing are named on stderr."""
    for piece in [each for each in pieces if not each.is_done][: most or None]:
        piece.run()
    missing = [each.name for each in pieces if not each.is_done]
    if missing:
        click.echo(f"{len(missing)} pieces are missing, the same command goes on: {'; '.join(missing)}", err=True)
    return not missing


def commits(pieces: Sequence[Piece]) -> list[str]:
    """Return the commits at which the pieces were made, in order."""
    return sorted({piece.commit() for piece in pieces})


def model_folder(work: Path, model: str) -> Path:
    """Return the folder of a model's pieces."""
    return work.absolute() / model.replace("/", "_").replace(":", "_")


def work_option(default: str) -> click.Option:
    return click.Option(
        ["--work"],
        type=click.Path(path_type=Path),
        default=Path(default),
        show_default=True,
        help="Folder of the pieces: the same command goes on where it was interrupted.",
    )


def pieces_option() -> click.Option:
    return click.Option(
        ["--pieces", "piece_count"],
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="End after so many pieces; 0: do all.",
    )


def models_option(default: str) -> click.Option:
    return click.Option(
        ["--models"],
        callback=lambda _context, _option, text: tuple(text.split(",")),
        default=default,
        show_default=True,
        help="Networks as file.py:function, with commas between them.",
    )
