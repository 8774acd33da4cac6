"""Results of benchmarks as files in ``bench/results``, each with digests of all files that its figures depend on.

A file is written atomically when its benchmark has ended, so an interrupted benchmark leaves the old file unchanged.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.dependencies import changed, dependencies
from bench.processes import ROOT
from bench.result import BenchError, BenchResult
from fleet_tune.base.records.files.atomic_file import write_atomically

RESULTS = ROOT / "bench" / "results"

SCHEMA = 1
"""Version of the file format; a file of another version is refused."""

_LABEL = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_UNMEASURED = (":(exclude)bench/results", ":(exclude)docs")
"""Paths whose changes do not make a checkout dirty: files that are written after a benchmark."""


@dataclass(frozen=True)
class SavedResult:
    """A result with its provenance. The fields are the keys of the file."""

    schema: int
    """:data:`SCHEMA`."""
    bench: str
    """Name of the benchmark."""
    label: str
    """Label that tells several results of one benchmark apart, such as the dataset; empty if there is only one."""
    command: str
    """Command line of the benchmark, to be run in the repository root."""
    commit: str
    """Commit of the checkout when the benchmark began."""
    dirty: bool
    """True if the checkout differed from the commit, other than in results and pages."""
    date: str
    """Start of the benchmark: UTC, ISO 8601, to the second."""
    duration_secs: float
    """Wall-clock seconds of the benchmark."""
    machine: Mapping[str, Any]
    """CPU model, cores, GiB of memory, system."""
    versions: Mapping[str, str]
    """Versions of Python and of the packages that the figures belong to."""
    dependencies: Mapping[str, str]
    """Digests by path. Those of modules and of the files that options name are from the start of the benchmark, those
    of other data files that it read from its end."""
    result: Mapping[str, Any]
    """The object that ``--json`` prints, without the machine."""

    @property
    def key(self) -> str:
        """Name of the file without its suffix, and of the section on the page of tables."""
        return f"{self.bench}-{self.label}" if self.label else self.bench

    def changed(self) -> tuple[str, ...]:
        """Return the files whose digest has changed since; see :func:`bench.dependencies.changed`."""
        return changed(self.dependencies)


class Provenance:
    """Facts that are noted when a benchmark begins, for the file that is written when it has ended."""

    def __init__(self, module: str, files: Iterable[Path], command: Sequence[str], label: str) -> None:
        """``module``: the benchmark's module; ``files``: the files that its options name; ``command``: the arguments of
        ``python``.

        Raises :class:`BenchError` if ``label`` cannot be part of a file name, or outside of a git checkout.
        """
        if label and not _LABEL.fullmatch(label):
            raise BenchError(f"--label {label!r}: use lower-case letters, digits and single hyphens")
        self._label = label
        self._command = shlex.join(("python", *command))
        self._commit = commit()
        self._dirty = bool(_git("status", "--porcelain", "--", ".", *_UNMEASURED))
        self._dependencies = dependencies(module, files)
        self._date = datetime.now(UTC).isoformat(timespec="seconds")
        self._began = time.perf_counter()

    def save(self, result: BenchResult, read: Iterable[Path] = (), folder: Path = RESULTS) -> Path:
        """Write the file and return its path. ``read``: data files that the benchmark has read.

        Raises :class:`BenchError` if the file cannot be written.
        """
        body = json.loads(result.to_json())
        host = body["details"].pop("machine")
        versions = {"python": host.pop("python"), **host.pop("versions")}
        saved = SavedResult(
            SCHEMA,
            result.bench,
            self._label,
            self._command,
            self._commit,
            self._dirty,
            self._date,
            round(time.perf_counter() - self._began, 1),
            host,
            versions,
            {**self._dependencies, **data_digests(read)},
            body,
        )
        path = folder / f"{saved.key}.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, (json.dumps(asdict(saved), indent=1) + "\n").encode())
        except OSError as error:
            raise BenchError(f"{path} cannot be written: {error.strerror}") from error
        return path


def data_digests(paths: Iterable[Path]) -> dict[str, str]:
    """Return digests by path of those files that are in the repository. Other files are left out."""
    return dependencies("", paths)


def read_result(path: Path) -> SavedResult:
    """Return the result in a file. Raises :class:`BenchError`, with a next step, if the file is not a result in this
    format."""
    again = "remove it, or run its benchmark again with --save ('python -m bench --help' lists them)"
    try:
        body = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BenchError(f"{path} cannot be read ({error}): {again}") from error
    schema = body.get("schema") if isinstance(body, dict) else None
    if schema != SCHEMA:
        raise BenchError(f"{path} has schema {schema}, and this version reads {SCHEMA}: {again}")
    names = {field.name for field in fields(SavedResult)}
    if set(body) != names:
        raise BenchError(f"{path}: keys missing or unknown: {sorted(set(body) ^ names)}: {again}")
    saved = SavedResult(**body)
    nested = (saved.machine, saved.versions, saved.dependencies, saved.result)
    if not all(isinstance(each, dict) for each in nested) or "details" not in saved.result:
        raise BenchError(f"{path} is no result of a benchmark: {again}")
    if path.stem != saved.key:
        raise BenchError(f"{path} is the result of {saved.key}: rename it to {saved.key}.json")
    return saved


def read_results(folder: Path = RESULTS) -> tuple[SavedResult, ...]:
    """Return all results of a folder, sorted by file name. Raises :class:`BenchError` for a file that is not a
    result."""
    return tuple(read_result(path) for path in sorted(folder.glob("*.json")))


def commit() -> str:
    """Return the commit of this checkout. Raises :class:`BenchError` outside of a git checkout."""
    return _git("rev-parse", "HEAD")


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise BenchError("results are saved with their commit: run --save in a git checkout") from error
    return done.stdout.strip()
