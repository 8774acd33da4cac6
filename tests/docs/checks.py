"""Checks of the documentation: what a page links to, what commands and names it has, and how long it is."""

from __future__ import annotations

import ast
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click

from bench.__main__ import command_line
from bench.benchmark import discover
from fleet_tune.cli.main import cli
from fleet_tune.cli.serve import parser as device_serve_parser

ROOT = Path(__file__).parents[2]
PACKAGES = ("fleet_tune", "actors", "policies", "devices", "bench", "tests", "examples", "cluster")
FOREIGN_CLASSES = {"IRModule", "None", "PrimFunc", "RewriteLayout"}
#: Folders that commands make.
MADE = {"bench/results"}
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


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
        found = re.fullmatch(r"([A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*)(?:\.(\w+))?(?:\(.*\))?", code)
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
