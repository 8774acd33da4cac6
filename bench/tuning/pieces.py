"""Long benchmarks in pieces: each run of a tuner keeps its figures in its own folder. The same command resumes an
interrupted benchmark, so hours of work can be split into several sittings. A run with other settings is another piece.
An interrupted run is repeated from its start."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import math
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from bench.machine import machine
from bench.processes import ROOT
from bench.result import BenchError
from bench.saved_result import commit
from fleet_tune.base.records.files.atomic_file import write_atomically
from fleet_tune.base.records.files.lock_file import LockedError, release_lock, take_lock


@dataclass(frozen=True)
class Piece(ABC):
    """One run of a tuner, or one timing of networks. Its fields, except ``folder``, are its settings."""

    model: str
    folder: Path

    @property
    @abstractmethod
    def name(self) -> str:
        """Description of the run."""

    @property
    @abstractmethod
    def expected_secs(self) -> float:
        """Seconds that the run is expected to take at most, for the plan of a sitting."""

    @abstractmethod
    def take(self) -> dict[str, Any]:
        """Run the tuner and return its figures."""

    @property
    def place(self) -> Path:
        """Folder of the run. Its name has a digest of the settings."""
        digest = hashlib.sha256(json.dumps(self._settings()).encode()).hexdigest()
        return self.folder.with_name(f"{self.folder.name}-{digest[:8]}")

    @property
    def file(self) -> Path:
        """File with the settings, the source and the figures, written at the end of the run."""
        return self.place / "figures.json"

    @property
    def own_cache(self) -> dict[str, str]:
        """Environment variables that give a run of ours its own cache. In the user's cache it would find task
        descriptions, object files and latencies of untuned networks from other runs."""
        return {"XDG_CACHE_HOME": str(self.place / "cache")}

    @property
    def is_done(self) -> bool:
        return self.file.exists()

    def figures(self) -> dict[str, Any]:
        """Return the figures of a run that is done. Raises :class:`BenchError` for a damaged file."""
        figures: dict[str, Any] = self._kept()["figures"]
        return figures

    def source(self) -> dict[str, Any]:
        """Return where a run that is done was made: ``commit``, ``cpu``, ``cores``. Raises :class:`BenchError` for a
        damaged file."""
        source: dict[str, Any] = self._kept()["source"]
        return source

    def run(self) -> None:
        """Run the tuner, and write the figures to :attr:`file`."""
        click.echo(self.name, err=True)
        shutil.rmtree(self.place, ignore_errors=True)  # else the tuner would resume an interrupted run
        self.place.mkdir(parents=True)
        host = machine()
        source = {"commit": commit(), "cpu": host["cpu"], "cores": host["cores"]}
        kept = {"settings": self._settings(), "source": source, "figures": self.take()}
        write_atomically(self.file, (json.dumps(kept) + "\n").encode())

    def _kept(self) -> dict[str, Any]:
        try:
            kept: dict[str, Any] = json.loads(self.file.read_text())
        except ValueError as error:
            raise BenchError(f"{self.file} is damaged ({error}): remove it, and give the same command again") from error
        return kept

    def _settings(self) -> dict[str, Any]:
        """Return all fields but the folder, and the machine: a run on another machine is another piece."""
        settings = {each.name: getattr(self, each.name) for each in dataclasses.fields(self) if each.name != "folder"}
        host = machine()
        found: dict[str, Any] = json.loads(json.dumps({**settings, "cpu": host["cpu"], "cores": host["cores"]}))
        return found


class Sitting:
    """The part of a benchmark's pieces that one command runs.

    Args:
        most: number of pieces after which the sitting ends; 0 for no limit.
        secs: length of the sitting. It starts no piece that is expected to end later.
        anew: also repeat the pieces that earlier commands have made.

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
        """Run the pieces that are not done, within the limits of the sitting. Return true if no piece is missing
        afterwards. The missing pieces are listed on stderr. After a failed piece, the others still run. Raises
        :class:`BenchError` at the end if pieces failed."""
        failed = []
        for piece in pieces:
            fits = self._left > 0 and time.monotonic() + piece.expected_secs <= self._end
            if fits and not self._is_done(piece):
                self._left -= 1
                try:
                    piece.run()
                except BenchError as error:
                    failed.append(f"{piece.name}: {error}")
                    click.echo(failed[-1], err=True)
                else:
                    self._made.add(piece.place)
        missing = [piece for piece in pieces if not self._is_done(piece)]
        if missing:
            secs = sum(piece.expected_secs for piece in missing)
            click.echo(f"missing, about {secs / 60:.0f} minutes (the same command goes on):", err=True)
            for piece in missing:
                click.echo(f"  {piece.name}", err=True)
        if failed:
            count = f"{len(failed)} of {len(pieces)} runs failed"
            raise BenchError("\n".join((f"{count}: leave their models out, or give the same command again", *failed)))
        return not missing

    def _is_done(self, piece: Piece) -> bool:
        return piece.is_done and (piece.place in self._made or not self._anew)


@contextmanager
def work_folder(folder: Path) -> Iterator[None]:
    """Make and lock the folder of the pieces until the block is left. Raises :class:`BenchError` if another command has
    the lock, since two commands at a time would distort each other's times."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = take_lock(folder / "lock")
    except LockedError as error:
        raise BenchError(f"{folder} is used by {error.text}: wait for it, or give another --work") from error
    try:
        yield
    finally:
        release_lock(lock)


def sources(pieces: Sequence[Piece]) -> list[dict[str, Any]]:
    """Return the distinct sources of the pieces; see :meth:`Piece.source`."""
    found = {json.dumps(piece.source(), sort_keys=True) for piece in pieces}
    return [json.loads(each) for each in sorted(found)]


def sources_text(found: Sequence[Mapping[str, Any]]) -> str:
    """Return a line of text about the result of :func:`sources`."""
    commits: dict[str, list[str]] = {}  # by machine
    for each in found:
        commits.setdefault(f"{each['cpu']}, {each['cores']} cores", []).append(each["commit"][:8])
    places = [f"at {', '.join(at)} ({machine})" for machine, at in commits.items()]
    return f"Runs were made {'; '.join(places)}."


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
        callback=_models,
        default=default,
        show_default=True,
        help="Networks as file.py:function, with commas between them.",
    )


def _models(_context: click.Context, option: click.Parameter, text: str) -> tuple[str, ...]:
    """Return the networks. All are checked at once, so that a wrong name is not found only after hours. Raises click's
    error for an unknown network, or a network that is named twice."""
    models = tuple(text.split(","))
    for model in models:
        path, _, function = model.partition(":")
        if not (ROOT / path).is_file():
            raise click.BadParameter(f"{model}: there is no file {ROOT / path}", param=option)
        defined = [each.name for each in ast.parse((ROOT / path).read_text()).body if isinstance(each, ast.FunctionDef)]
        if function not in defined:
            named = ", ".join(name for name in defined if not name.startswith("_"))
            raise click.BadParameter(f"{model}: not of the form file.py:function; {path} has {named}", param=option)
    if len({*models}) < len(models):
        raise click.BadParameter(f"a network is named twice: {text}", param=option)
    return models
