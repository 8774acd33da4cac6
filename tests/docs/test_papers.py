"""The list of what the papers have, and where it is here."""

from __future__ import annotations

import ast
import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from tests.docs.checks import ROOT, fault_of, section_of

TEXT = (ROOT / "docs" / "papers.md").read_text()
ITEMS = {
    "AutoTVM": {"equation": 4, "algorithm": 1, "table": 2, "figure": 16},
    "AdaTune": {"equation": 3, "algorithm": 1, "table": 5, "figure": 17},
    "Bansor": {"equation": 6, "algorithm": 1, "table": 4, "figure": 5},
    "Pruner and MoA-Pruner": {"equation": 3, "algorithm": 2, "table": 13, "figure": 16},
}
"""The numbers of items of each paper."""
_ROMAN = {"I": 1, "II": 2, "III": 3, "IV": 4}
NOT_MADE = re.compile(r"not made(?: for Pruner)?[:.] \S", re.IGNORECASE)
"""Begins the reason of a row that has neither code nor a command."""
UNTESTED = re.compile(r"\bnot made\b|\bdrawing\b|\ba list, so no test\b", re.IGNORECASE)
"""Is in the reason of a row that has something, and no test."""
_PATH = re.compile(r"`((?:actors|bench|devices|docs|examples|fleet_tune|policies|tests)/[\w./-]*)((?:::|:)[\w.]+)?")


def _rows(paper: str) -> list[list[str]]:
    lines = [line for line in section_of(TEXT, f"## {paper}").splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


ALL = [row for paper in ITEMS for row in _rows(paper)]


def _numbers(cell: str) -> set[tuple[str, int]]:
    """The items that a row is about: ``figure 3a, 3b`` and ``algorithm 2, lines 5 to 13`` are one."""
    found = re.match(r"(equation|algorithm|table|figure) (\d+|[IV]+)\b", cell) or re.match(r"(figure) (\d+)[a-z]", cell)
    return {(found[1], _ROMAN.get(found[2]) or int(found[2]))} if found else set()


@pytest.mark.parametrize("paper", ITEMS)
def test_every_item_of_a_paper_has_a_row(paper: str) -> None:
    expected = {(kind, number) for kind, count in ITEMS[paper].items() for number in range(1, count + 1)}
    assert set().union(*(_numbers(row[0]) for row in _rows(paper))) == expected


@pytest.mark.parametrize("row", ALL, ids=lambda row: row[0])
def test_a_row_has_an_answer_in_every_column(row: list[str]) -> None:
    assert len(row) == 6
    assert all(row)
    if row[2] == row[4] == "–":
        assert NOT_MADE.match(row[5]), "why it is nowhere"
    elif row[3] == "–":
        assert UNTESTED.search(row[5]), "why nothing tests it"


@pytest.mark.parametrize(
    "reason", ["nothing at all", "as figure 7", "not made", "not made: ", "later", "Not made for now: x"]
)
def test_no_other_reason_will_do(reason: str) -> None:
    assert not NOT_MADE.match(reason)


@pytest.mark.parametrize("row", ALL, ids=lambda row: row[0])
def test_what_a_row_names_exists(row: list[str]) -> None:
    for path, symbol in _PATH.findall(" ".join(row)):
        assert (ROOT / path).exists(), path
        if symbol and path.endswith(".py"):
            assert set(symbol.strip(":").split(".")) <= _names(ROOT / path), f"{path}{symbol}"
    commands = [
        each for each in re.findall(r"`([^`]+)`", row[4]) if each.startswith(("python -m bench ", "fleet-tune "))
    ]
    faults = {each: fault_of(shlex.split(each)) for each in commands}
    assert {each: fault for each, fault in faults.items() if fault} == {}


@cache
def _names(module: Path) -> set[str]:
    """The names that a module defines, and those that its classes do."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
    return found
