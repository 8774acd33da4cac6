"""docs/generated/operators.md, written from the outcomes of ONNX's own tests of single operators (onnx_nodes.py)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

RIGHT, REFUSED, DISAGREES, WRONG, TRACEBACK = "right", "refused", "disagrees", "wrong", "traceback"
KINDS = (RIGHT, REFUSED, DISAGREES, WRONG, TRACEBACK)
FAULTS = (WRONG, TRACEBACK)


@dataclass(frozen=True)
class Outcome:
    """What became of one case: ``kind`` is one of ``KINDS``. ``disagrees`` is what a run refuses because the imported
    network computes something else than ONNX Runtime; ``wrong`` is what such a run would not have noticed.

    ``operator``: what is tested; ``line`` says what went wrong, or why a right one has other values than ONNX's, and
    ``next_step`` what a refusal tells to do. ``fixed``: the inputs that were given as constants, as exporters write
    them, because it is refused otherwise.
    """

    name: str
    operator: str
    kind: str
    line: str
    next_step: str = ""
    fixed: tuple[str, ...] = ()


_HEAD = """# ONNX's operators

What becomes of the {total:,} tests of single operators that onnx {version} brings along
(`onnx.backend.test.case.node`), each imported as `fleet-tune tune` imports a network, compiled, and compared with the
values that ONNX gives. Written by `python -m tests.zoo.onnx_nodes --write docs/generated/operators.md` (`make zoo`).

The tests feed everything as inputs of the network. What exporters write as constants (axes, shapes, sizes, numbers of
elements) must be one to be compiled: a test that is refused for that is repeated with such inputs as constants, and
counts under *with constants* where it is right then. A test whose name ends in `_expanded` counts under the operator
that is written out there.

"""
_REASONS = """
## Why

Each refusal is one line with the reason and the operator's name and place, and what to do:

"""
_OTHERWISE = """
## Where ONNX's values are not right

These tests are compared with ONNX Runtime's values instead:

"""
_COLUMNS = (RIGHT, "with constants", REFUSED, DISAGREES, WRONG, TRACEBACK)


def document(outcomes: Sequence[Outcome], version: str) -> str:
    """The document of all ``outcomes`` under onnx ``version``."""
    operators: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        operators.setdefault(outcome.operator, []).append(outcome)
    refused = [outcome for outcome in outcomes if outcome.kind == REFUSED]
    numbers = {reason: at + 1 for at, (reason, _) in enumerate(Counter(map(_reason, refused)).most_common())}
    lines = [
        _HEAD.format(total=len(outcomes), version=version),
        *_header("operator", "cases", *_COLUMNS, "why refused"),
    ]
    lines.append(_row("all", len(outcomes), *_counts(outcomes), ""))
    for operator in sorted(operators, key=str.lower):
        own = operators[operator]
        why = sorted({numbers[_reason(outcome)] for outcome in own if outcome.kind == REFUSED})
        lines.append(_row(operator, len(own), *_counts(own), ", ".join(map(str, why))))
    lines += [_REASONS, *_header("", "refused because it", "what to do", "cases", "operators")]
    for reason, number in numbers.items():
        own = [outcome for outcome in refused if _reason(outcome) == reason]
        names = ", ".join(sorted({outcome.operator for outcome in own}, key=str.lower))
        lines.append(_row(number, *reason, len(own), names))
    otherwise = [_row(outcome.name, outcome.line) for outcome in outcomes if outcome.kind == RIGHT and outcome.line]
    if otherwise:
        lines += [_OTHERWISE, *_header("test", "why"), *otherwise]
    return "".join(lines)


def rows(text: str) -> dict[str, list[str]]:
    """The cells of the first table of a document, by operator."""
    table = text.split(_REASONS)[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")
    ]
    return {name: rest for name, *rest in cells[2:]}


def _counts(outcomes: Sequence[Outcome]) -> list[int]:
    """Of each of ``_COLUMNS``."""
    kinds = Counter("with constants" if o.kind == RIGHT and o.fixed else o.kind for o in outcomes)
    return [kinds[column] for column in _COLUMNS]


def _reason(outcome: Outcome) -> tuple[str, str]:
    """Problem and next step, without the names of this network and its values."""
    problem = re.sub(r"^(\S*node\.onnx|node):? ?", "", outcome.line)
    problem = re.sub(r"^the operator \S+ \('[^']*'\) ", "", problem)
    problem, step = (re.sub(r"'[^']*'", "...", text).replace("|", "/") for text in (problem, outcome.next_step))
    return problem, re.sub(r"--input_name \S+", "--input_name ...", step)


def _header(*names: str) -> list[str]:
    return [_row(*names), "|" + " --- |" * len(names) + "\n"]


def _row(*cells: object) -> str:
    return "| " + " | ".join("" if cell == 0 else str(cell) for cell in cells) + " |\n"
