"""The documentation: what a page names must exist, and pages stay short."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.docs.checks import (
    ROOT,
    broken_links,
    commands_of,
    fault_of,
    missing_classes,
    missing_names,
    section_of,
    words_of,
)
from tests.docs.cli_reference import reference

LAB = ROOT / "docs" / "lab"
GENERATED = ROOT / "docs" / "generated"
LINKED = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("cluster/*.md")])
PAGES = [page for page in LINKED if not page.is_relative_to(LAB) and not page.is_relative_to(GENERATED)]
#: Pages that name classes of ours in backticks: each must exist.
FOR_DEVELOPERS = [
    ROOT / "CONTRIBUTING.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in ("architecture", "extending", "search", "measuring", "models", "transfer")
    ),
]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken_links(page, page.read_text()) == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_parses(page: Path) -> None:
    faults = {shlex.join(command): fault_of(command) for command in commands_of(page.read_text())}
    assert {command: fault for command, fault in faults.items() if fault} == {}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_name_of_ours_exists(page: Path) -> None:
    assert missing_names(page.read_text()) == []


@pytest.mark.parametrize("page", FOR_DEVELOPERS, ids=name_of)
def test_every_class_of_ours_exists(page: Path) -> None:
    assert missing_classes(page.read_text()) == []


@pytest.mark.parametrize(
    ("page", "limit"),
    [("README.md", 900), ("docs/architecture.md", 2500), ("docs/benchmarks.md", 3000)],
)
def test_a_page_stays_short(page: str, limit: int) -> None:
    assert words_of((ROOT / page).read_text()) <= limit


def test_all_pages_together_stay_short() -> None:
    read = [page for page in PAGES if page.is_relative_to(ROOT / "docs") and page.name != "papers.md"]  # a list
    generated = re.compile(r"<!-- bench:summary -->.*?<!-- /bench:summary -->", re.DOTALL)
    assert sum(words_of(generated.sub("", page.read_text())) for page in read) <= 21_700


def test_the_changes_of_a_version_stay_short() -> None:
    assert words_of(section_of((ROOT / "CHANGELOG.md").read_text(), "## [0.1.0]")) <= 500


def test_the_glossary_stays_short() -> None:
    rows = re.findall(r"^\|", section_of((ROOT / "CONTRIBUTING.md").read_text(), "## Glossary"), re.MULTILINE)
    assert 10 <= len(rows) - 2 <= 30


def test_both_walks_stay_short() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    assert words_of(section_of(text, "## A candidate's walk")) + words_of(section_of(text, "## A device's walk")) <= 600


def test_every_page_is_on_the_map() -> None:
    index = ROOT / "docs" / "index.md"
    targets = {(index.parent / target).resolve() for target in re.findall(r"\]\(([^)#\s]+)", index.read_text())}
    pages = {page for page in PAGES if page.is_relative_to(ROOT / "docs")} | {LAB / "README.md"}
    assert pages - targets - {index} == set()


def test_the_journal_says_that_it_is_frozen() -> None:
    for page in LAB.glob("*.md"):
        assert "frozen" in page.read_text()[:600]


@pytest.mark.parametrize(
    "text",
    ["[a](nowhere.md)", "[a](tune.md#no-heading)", "[a](#no-heading)", "# A\n\n[a](#b)"],
)
def test_a_broken_link_is_found(text: str) -> None:
    assert broken_links(ROOT / "docs" / "index.md", text)


def test_links_in_code_are_no_links() -> None:
    assert broken_links(ROOT / "README.md", "# A `b`: c\n\n[a](#a-b-c) `[x](y)`\n\n```\n[x](y)\n```\n") == []


@pytest.mark.parametrize(
    "block",
    [
        "fleet-tune tuna net.onnx",
        "fleet-tune tune net.onnx --time-limit 3s",
        "fleet-tune records tops",
        "fleet-tune records top --stor x",
        "A=b make nothing",
        ". x && make lint tset",
        "python -m bench nothing --json",
        "python -m bench replay --datasets x",
        "fleet-tune tune net.onnx \\\n    --no-such-option",
    ],
)
def test_a_command_that_does_not_exist_is_found(block: str) -> None:
    faults = [fault_of(command) for command in commands_of(f"```sh\n{block}  # a comment\n```\n")]
    assert any(faults)


@pytest.mark.parametrize(
    "name",
    ["policies/runs/no_state.py", "fleet_tune.base.domain.NoClass", "fleet_tune.no_module.thing", "docs/none.md"],
)
def test_a_name_that_does_not_exist_is_found(name: str) -> None:
    assert missing_names(f"See `{name}`.") == [name]


@pytest.mark.parametrize("name", ["NoSuchClass", "RunState.no_method"])
def test_a_class_that_does_not_exist_is_found(name: str) -> None:
    assert missing_classes(f"See `{name}`, `RunState` and `RunState.handle`.") == [name]


def test_the_reference_of_the_command_line_is_up_to_date() -> None:
    assert (GENERATED / "cli.md").read_text() == reference(), "make docs writes it"
