"""Long benchmarks in pieces: each run of a tuner keeps its figures in a folder of its own, so that the same command
goes on where it was interrupted, and hours of work fit into sittings. A run with other settings is another piece, and a
run that did not end begins anew."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from bench.result import BenchError
from bench.saved_result import commit
from fleet_tune.base.records.files.atomic_file import write_atomically


@dataclass(frozen=True)
class Piece(ABC):
    """One run of a tuner, or one sitting of a harness."""

    model: str
    folder: Path

    @property
    @abstractmethod
    def name(self) -> str:
        """The run in words."""

    @property
    @abstractmethod
    def expected_secs(self) -> float:
        """Seconds that the run is expected to take at most, for the plan of a sitting."""

    @abstractmethod
    def take(self) -> dict[str, Any]:
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
        kept = {"settings": self._settings(), "commit": commit(), "figures": self.take()}
        write_atomically(self.file, (json.dumps(kept) + "\n").encode())

    def _settings(self) -> dict[str, Any]:
        settings = {each.name: getattr(self, each.name) for each in dataclasses.fields(self) if each.name != "folder"}
        found: dict[str, Any] = json.loads(json.dumps(settings))
        return found


class Sitting:
    """What one command does of a benchmark's pieces.

    Args:
        most: number of pieces after which it ends; 0: none.
        secs: it begins no piece that is expected to end later than so many seconds after its start.
        anew: make pieces that earlier commands have made once more.

    Raises :class:`BenchError` for ``anew`` with a limit: each command would begin with the first piece again.
    """

    def __init__(self, most: int = 0, secs: float = math.inf, anew: bool = False) -> None:
        if anew and (most or math.isfinite(secs)):
            raise BenchError(
                "--anew with --pieces or --sitting-secs would begin again each time: give --anew alone, "
                "or another folder with --work and go on there"
            )
        self._left = most or math.inf
        self._end = time.monotonic() + secs
        self._anew = anew
        self._made: set[Path] = set()

    def run(self, pieces: Sequence[Piece]) -> bool:
        """Run those of the pieces that are not done, as far as the sitting goes, and return true if none is missing
        then. Those that are missing are named on stderr."""
        for piece in pieces:
            fits = self._left > 0 and time.monotonic() + piece.expected_secs <= self._end
            if fits and not self._is_done(piece):
                piece.run()
                self._made.add(piece.folder)
                self._left -= 1
        missing = [piece for piece in pieces if not self._is_done(piece)]
        if missing:
            secs = sum(piece.expected_secs for piece in missing)
            click.echo(f"missing, about {secs / 60:.0f} minutes (the same command goes on):", err=True)
            for piece in missing:
                click.echo(f"  {piece.name}", err=True)
        return not missing

    def _is_done(self, piece: Piece) -> bool:
        return piece.is_done and (piece.folder in self._made or not self._anew)


def commits(pieces: Sequence[Piece]) -> list[str]:
    """Return the commits at which the pieces were made, in order."""
    return sorted({piece.commit() for piece in pieces})


def model_folder(work: Path, model: str) -> Path:
    """Return the folder of a model's pieces."""
    return work.absolute() / model.replace("/", "_").replace(":", "_")


def sitting_options(work: str) -> tuple[click.Option, ...]:
    """Return the options of a :class:`Sitting`, and ``--work``, the folder of the pieces."""
    return (
        click.Option(
            ["--work"],
            type=click.Path(path_type=Path),
            default=Path(work),
            show_default=True,
            help="Folder of the pieces.",
        ),
        click.Option(
            ["--resume/--anew"],
            default=True,
            show_default=True,
            help="Go on where the same command was interrupted, or make all pieces anew.",
        ),
        click.Option(
            ["--pieces", "piece_count"],
            type=click.IntRange(min=0),
            default=0,
            show_default=True,
            help="End after so many pieces; 0: do all.",
        ),
        click.Option(
            ["--sitting-secs"],
            type=click.FloatRange(min=0.0),
            default=math.inf,
            help="Begin no piece that is expected to end later than so many seconds from now; else do all.",
        ),
    )


def models_option(default: str) -> click.Option:
    return click.Option(
        ["--models"],
        callback=lambda _context, _option, text: tuple(text.split(",")),
        default=default,
        show_default=True,
        help="Networks as file.py:function, with commas between them.",
    )
