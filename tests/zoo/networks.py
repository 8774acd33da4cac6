"""The zoo: networks that others defined and small ones of every usual layer, through our import, as a table.

``python -m tests.zoo.networks [--match TEXT] [--family NAME] [--form torch|pt2|onnx] [--tasks leave|describe|schedule]
[--processes COUNT] [--kept FILE] [--json FILE]``: each is imported, described, compiled and compared with PyTorch, in a
child process that may die. The exit code is 1 where one was refused, wrong, or ended in a traceback; a form that torch
cannot write is no fault.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path

from tests.zoo.catalogue import FAMILIES, FORMS, Entry, entries
from tests.zoo.children import answers
from tests.zoo.kept import Kept, left
from tests.zoo.scheduling import Descriptions
from tests.zoo.trial import FAULTS, KINDS, TRACEBACK, Result, tried

TRIAL_SECS = 900
"""A network that takes more processor time in one form counts as a traceback."""

LEAVE, DESCRIBE, SCHEDULE = TASKS = ("leave", "describe", "schedule")

_LIMITS_SECS = (10, 30)
_NAME_WIDTH = 28


def results(
    chosen: Sequence[Entry],
    forms: Sequence[str],
    tasks: str,
    processes: int = 1,
    threads: int = 1,
    kept: Path | None = None,
) -> Iterator[Result]:
    """What became of each of ``chosen`` in each of ``forms``, as they come from ``processes`` children at a time.

    A child that dies, hangs, or takes longer than ``TRIAL_SECS``, is a traceback of its network; another goes on. Those
    that the file ``kept`` has of an earlier call, which was interrupted, come first.
    """
    groups = [[(entry, form) for form in forms if form in entry.forms] for entry in chosen]
    wanted = {_key(question) for group in groups for question in group}
    store = Kept(kept, tasks)
    for key, fields in store.results.items():
        if key in wanted:
            yield Result(**{**fields, "left_out": tuple(fields["left_out"])})
    for (entry, form), answer in answers(left(groups, store, _key), _serve, (tasks, threads), TRIAL_SECS, processes):
        result = (
            answer if isinstance(answer, Result) else Result(entry.name, entry.family, form, TRACEBACK, str(answer))
        )
        store.keep(_key((entry, form)), asdict(result))
        yield result
    store.finished()


def _key(question: tuple[Entry, str]) -> str:
    entry, form = question
    return f"{entry.name} {form}"


def _serve(pipe: Connection, tasks: str, threads: int) -> None:
    """The child: results of the networks that come, until the pipe closes. What native code prints goes nowhere."""
    import torch

    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(threads)
    descriptions = None if tasks == LEAVE else Descriptions(candidates=tasks == SCHEDULE)
    make = functools.lru_cache(maxsize=1)(Entry.make)
    with contextlib.suppress(EOFError):
        while True:
            entry, form = pipe.recv()
            try:
                example = make(entry)
            except Exception as error:
                line = f"cannot be made: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
                pipe.send(Result(entry.name, entry.family, form, TRACEBACK, line))
                continue
            pipe.send(tried(entry.name, entry.family, form, example, descriptions))


def _row(result: Result) -> str:
    seconds = f"{result.import_secs:6.1f} {result.describe_secs:6.1f} {result.wall_secs:6.1f}"
    start = (
        f"{result.name:{_NAME_WIDTH}} {result.form:5} {result.kind:10} {result.tasks:5} {seconds} {result.error:8.1e}"
    )
    notes = [result.line] if result.line else []
    notes += ["by the TorchScript exporter"] if result.exporter == "TorchScript" else []
    counted = collections.Counter(result.left_out)
    notes += [f"{count} x {line}" if count > 1 else line for line, count in counted.items()]
    return f"{start}  {'; '.join(notes)}".rstrip()


def _summary(found: Sequence[Result]) -> str:
    """Counts by form, and how many are over the limits of seconds."""
    lines = []
    for form in FORMS:
        of_form = [result for result in found if result.form == form]
        if not of_form:
            continue
        counts = collections.Counter(result.kind for result in of_form)
        secs = [result.import_secs + result.describe_secs for result in of_form]
        over = "  ".join(f"over {limit} s: {sum(each > limit for each in secs)}" for limit in _LIMITS_SECS)
        kinds = "  ".join(f"{kind}: {counts[kind]}" for kind in KINDS)
        lines.append(f"{form}: {len(of_form)}  {kinds}  {over}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--match", default="", help="take networks whose name contains this only")
    parser.add_argument("--family", choices=FAMILIES, action="append", help="take this family only (may be repeated)")
    parser.add_argument("--form", choices=FORMS, action="append", help="take this form only (may be repeated)")
    parser.add_argument(
        "--tasks",
        choices=TASKS,
        default=DESCRIBE,
        help="leave them alone, describe their sketches, or also schedule each by the analyzer's first choice",
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="networks that are tried at a time (as many as there are CPUs); their seconds are of a process's own work",
    )
    parser.add_argument(
        "--kept", type=Path, help="keep results in this file as they come; a run that was interrupted goes on from it"
    )
    parser.add_argument("--json", type=Path, help="write all results to this file")
    options = parser.parse_args(arguments)
    try:
        chosen = [entry for entry in entries(tuple(options.family or FAMILIES)) if options.match in entry.name]
    except ModuleNotFoundError as error:
        print(f"{error.name} is not installed: run 'make zoo', which installs it", file=sys.stderr)
        return 1
    heads = f"{'tasks':>5} {'import':>6} {'descr.':>6} {'clock':>6} {'error':>8}"
    print(f"{'network':{_NAME_WIDTH}} {'form':5} {'result':10} {heads}  what, and what was left out", flush=True)
    found = []
    for result in results(chosen, options.form or FORMS, options.tasks, options.processes, kept=options.kept):
        found.append(result)
        print(_row(result), flush=True)
        if options.json:
            options.json.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")
    print(_summary(found))
    return 1 if any(result.kind in FAULTS for result in found) else 0


if __name__ == "__main__":
    sys.exit(main())
