"""Links, commands, names and sizes of the documentation: what a page names must exist."""

from __future__ import annotations

import ast
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from bench.__main__ import command_line
from bench.benchmark import discover
from fleet_tune.cli.main import cli
from fleet_tune.cli.serve import parser as device_serve_parser
from tests.docs.cli_reference import reference

ROOT = Path(__file__).parents[2]
LAB = ROOT / "docs" / "lab"
GENERATED = ROOT / "docs" / "generated"
PACKAGES = ("fleet_tune", "actors", "policies", "devices", "bench", "tests", "examples", "cluster")
LINKED = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("cluster/*.md")])
PAGES = [page for page in LINKED if not page.is_relative_to(LAB) and not page.is_relative_to(GENERATED)]
#: Pages that name classes of ours in backticks: each must exist.
FOR_DEVELOPERS = [ROOT / "docs" / "architecture.md", ROOT / "docs" / "extending.md"]
FOREIGN_CLASSES = {"IRModule", "None", "PrimFunc", "RewriteLayout"}
#: Folders that commands make.
MADE = {"bench/results"}
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose_of(text: str) -> str:
    """The text without code: links and headings are read here."""
    return _INLINE.sub("", _FENCE.sub("", text))


def anchors_of(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    seen: Counter[str] = Counter()
    anchors = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", _FENCE.sub("", text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        anchors.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return anchors


def broken_links(page: Path, text: str) -> list[str]:
    """The links of a page that lead nowhere: to no file, or to no heading of it."""
    broken = []
    for target in _LINK.findall(prose_of(text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (
            anchor and file.suffix == ".md" and anchor not in anchors_of(text if file == page else file.read_text())
        ):
            broken.append(target)
    return broken


def commands_of(text: str) -> Iterator[list[str]]:
    """The commands of a page that start with one of ours, as words: of its code blocks, and those in backticks."""
    for _, language, block in _FENCE.findall(text):
        if language in {"", "sh", "bash"}:
            for line in block.replace("\\\n", " ").splitlines():
                yield from _ours(line)
    for code in _INLINE.findall(_FENCE.sub("", text)):
        yield from _ours(code)


def _ours(line: str) -> Iterator[list[str]]:
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # a sentence with an apostrophe, no command
        return
    ends = [at for at, word in enumerate(words) if word in {"&&", "||", "|", ";", "&", ">"}]
    for begin, end in zip([0, *(at + 1 for at in ends)], [*ends, len(words)], strict=True):
        part = words[begin:end]
        while part and re.fullmatch(r"\w+=.*|--", part[0]):  # a variable, or the end of options
            part.pop(0)
        if part and (part[0].rpartition("/")[2] in {"fleet-tune", "make"} or part[:3] == ["python", "-m", "bench"]):
            yield part


def fault_of(command: list[str]) -> str | None:
    """What is wrong with a command of ours: an unknown sub-command, option or target."""
    if command[0] == "make":
        return _fault_of_make(command[1:])
    if command[0] == "python":
        return _fault_of_click(_bench(), command[3:])
    return _fault_of_click(cli, command[1:])


@cache
def _bench() -> click.Group:
    return command_line(discover())


@cache
def _make_targets() -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def _fault_of_make(words: list[str]) -> str | None:
    for word in words:
        if not re.fullmatch(r"[A-Z_]+=.*", word) and word not in _make_targets():
            return f"no target {word!r}"
    return None


def _fault_of_click(command: click.Command, words: list[str]) -> str | None:
    options = {"--help"} | _options(command)
    for word in words:
        if command.name == "serve" and "arguments" in {parameter.name for parameter in command.params}:
            options |= set(device_serve_parser()._option_string_actions)  # it loads no click on a device
        if isinstance(command, click.Group) and re.fullmatch(r"[a-z][a-z0-9-]*", word):
            if word not in command.commands:
                return f"no command {word!r}"
            command = command.commands[word]
            options |= _options(command)
        elif isinstance(command, click.Group) and re.fullmatch("[A-Z]+", word):  # stands for any of them
            options = options.union(*map(_options, command.commands.values()))
        elif re.match(r"--[a-z]", word) and word.partition("=")[0] not in options:
            return f"no option {word!r}"
    return None


def _options(command: click.Command) -> set[str]:
    if isinstance(command, click.Group) and "run" in command.commands:  # what it does without a sub-command
        command = command.commands["run"]
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def missing_names(text: str) -> list[str]:
    """The paths and dotted names in backticks that look like ours and do not exist."""
    missing = []
    packages = "|".join(PACKAGES)
    for code in _INLINE.findall(_FENCE.sub("", text)):
        if re.fullmatch(rf"(?:{packages}|docs)/[\w./-]*", code):
            if not (ROOT / code).exists() and code not in MADE:
                missing.append(code)
        elif re.fullmatch(rf"(?:{packages})(?:\.\w+)+(?:\(.*\))?", code) and not _dotted_exists(code):
            missing.append(code)
    return missing


def _dotted_exists(code: str) -> bool:
    parts = re.sub(r"\(.*", "", code).split(".")
    path = ROOT
    while parts and (path / parts[0]).is_dir():
        path /= parts.pop(0)
    module = path / f"{parts[0]}.py" if parts else path / "__init__.py"
    if parts and module.exists():
        parts.pop(0)
    else:
        module = path / "__init__.py"
    text = module.read_text() if module.exists() else ""
    return all(re.search(rf"\b{part}\b", text) for part in parts)


@cache
def _classes() -> dict[str, set[str]]:
    """The names that each class of ours has: its methods and fields, of all classes of one name together."""
    found: dict[str, set[str]] = {}
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.ClassDef):
                    found.setdefault(node.name, set()).update(re.findall(r"\w+", ast.unparse(node)))
    return found


def missing_classes(text: str) -> list[str]:
    """The classes and methods in backticks that are nobody's."""
    missing = []
    for code in _INLINE.findall(_FENCE.sub("", text)):
        found = re.fullmatch(r"([A-Z]\w*[a-z]\w*)(?:\.(\w+))?(?:\(.*\))?", code)
        if found and found[1] not in FOREIGN_CLASSES:
            members = _classes().get(found[1])
            if members is None or (found[2] and found[2] not in members):
                missing.append(code)
    return missing


def section_of(text: str, heading: str) -> str:
    """The section under a heading, down to the next one of its level."""
    level = heading.partition(" ")[0]
    begin = text.index(f"\n{heading}\n")
    end = re.search(rf"^#{{1,{len(level)}}} ", text[begin + len(heading) + 2 :], re.MULTILINE)
    return text[begin : begin + len(heading) + 2 + end.start()] if end else text[begin:]


def words_of(text: str) -> int:
    return len(text.split())


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
    assert sum(words_of(page.read_text()) for page in PAGES if page.is_relative_to(ROOT / "docs")) <= 22_000


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
