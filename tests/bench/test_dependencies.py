"""Files that a benchmark depends on, and what counts as a change of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.benchmark import discover
from bench.dependencies import HARNESS, changed, dependencies, digest, imported_modules, module_files
from bench.inputs import files_of_options
from bench.processes import ROOT

RULE = '''"""A rule."""

SHARE = 2
"""Of all."""


def rule():
    """Two."""
    return SHARE
'''


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository: a benchmark that starts a process, which loads a package's lazy name."""
    files = {
        "bench/__init__.py": "",
        "bench/options.py": "import policies.unused\n",
        "bench/it.py": "from bench import options\nCOMMAND = ('-m', 'bench.it_process')\n",
        "bench/it_process.py": "import fleet_tune\n\n\ndef main():\n    fleet_tune.tune()\n",
        "fleet_tune/__init__.py": (
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import policies.unused\n"
            "def __getattr__(name):\n    from fleet_tune import api\n    return getattr(api, name)\n"
        ),
        "fleet_tune/__main__.py": "",
        "fleet_tune/api.py": "def tune():\n    from policies.rule import rule\n    import numpy\n",
        "policies/__init__.py": "",
        "policies/rule.py": RULE,
        "policies/unused.py": "",
        "data.bin": "1",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_processes_and_lazy_names_count_and_the_harness_does_not(tree: Path) -> None:
    found = dependencies("bench.it", [tree / "data.bin", tree / "absent", Path("/etc/hostname")], tree)
    assert list(found) == [
        "bench/it.py",
        "bench/it_process.py",
        "data.bin",
        "fleet_tune/__init__.py",
        "fleet_tune/__main__.py",
        "fleet_tune/api.py",
        "policies/__init__.py",
        "policies/rule.py",
    ]


def test_a_module_that_is_named_as_a_file_brings_what_it_imports(tree: Path) -> None:
    (tree / "examples").mkdir()
    (tree / "examples" / "net.py").write_text("from policies.unused import anything\n")
    found = set(dependencies("bench.it", [tree / "examples" / "net.py"], tree)) - set(
        dependencies("bench.it", (), tree)
    )
    assert found == {"examples/net.py", "policies/unused.py"}


def _changed_after(tree: Path, name: str, text: str) -> tuple[str, ...]:
    saved = dependencies("bench.it", [tree / "data.bin"], tree)
    (tree / name).write_text(text)
    digest.cache_clear()
    return changed(saved, tree)


def test_docstrings_comments_and_formatting_are_no_change(tree: Path) -> None:
    text = '"""Another text."""\nSHARE = (\n    2  # of all\n)\ndef rule():\n    return SHARE\n'
    assert _changed_after(tree, "policies/rule.py", text) == ()


def test_code_and_data_are_a_change(tree: Path) -> None:
    text = (tree / "policies/rule.py").read_text()
    assert _changed_after(tree, "policies/rule.py", text.replace("= 2", "= 3")) == ("policies/rule.py",)
    assert _changed_after(tree, "policies/rule.py", text) == ("policies/rule.py",)
    assert _changed_after(tree, "data.bin", "2") == ("data.bin",)


def test_a_file_that_is_gone_or_no_python_is_a_change(tree: Path) -> None:
    saved = dependencies("bench.it", (), tree)
    (tree / "policies/rule.py").unlink()
    (tree / "fleet_tune/api.py").write_text("def (")
    digest.cache_clear()
    assert changed(saved, tree) == ("fleet_tune/api.py", "policies/rule.py")


def test_a_replay_depends_on_the_search_and_on_no_harness() -> None:
    path = ROOT / "bench" / "replay" / "replay.py"
    names = set(dependencies("bench.replay.replay"))
    assert path.relative_to(ROOT).as_posix() in names
    assert not names & HARNESS
    assert {"policies/search/search.py", "bench/replay/replay_runs.py"} <= names


def test_the_graph_has_every_module_that_is_loaded() -> None:
    """What Python has loaded after the import of a benchmark, by its own account."""
    code = "import sys, bench.replay.replay; print(*(name for name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    ours = {name for name in done.stdout.split() if name.split(".")[0] in ("bench", "policies")}
    known = set(module_files("bench.replay.replay"))
    harness = {name.removesuffix(".py").replace("/", ".").removesuffix(".__init__") for name in HARNESS}
    assert ours - known - harness == set()


def test_no_module_of_bench_imports_itself_by_way_of_others() -> None:
    names = [
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        for path in (ROOT / "bench").rglob("*.py")
        if path.name not in ("__init__.py", "__main__.py")
    ]
    imports = {name: _real_imports(name) & set(names) for name in names}
    circles = [name for name in names if name in _reached(imports, name)]
    assert circles == []


def _real_imports(name: str) -> set[str]:
    """Imports alone: a string that names a process is no import."""
    text = (ROOT / name.replace(".", "/")).with_suffix(".py").read_text()
    lines = [line.strip() for line in text.splitlines()]
    packages = {line.split()[1] for line in lines if line.startswith(("from bench", "import bench"))}
    members = {each for each in imported_modules(name) if each.rpartition(".")[0] in packages}
    return {each for each in imported_modules(name) if each in packages} | (members - {f"{name}_process"})


def _reached(imports: dict[str, set[str]], start: str) -> set[str]:
    reached: set[str] = set()
    waiting = list(imports[start])
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += imports[name]
    return reached


def test_files_that_options_name() -> None:
    values = [Path("a.ftd"), "examples/networks.py:resnet18", ("x", Path("b")), 3, None, "fleet"]
    assert files_of_options(values) == {Path("a.ftd"), Path("b"), ROOT / "examples" / "networks.py"}


def test_every_benchmark_has_its_module_among_its_dependencies() -> None:
    for benchmark in discover().values():
        module = benchmark.run.__module__
        assert module in module_files(module)


def test_the_function_that_prints_a_table_is_no_part_of_the_figures(
    monkeypatch: pytest.MonkeyPatch, tree: Path
) -> None:
    monkeypatch.setattr("bench.dependencies.ROOT", tree)
    text = "def run():\n    return 1\n\n\ndef table(result):\n    return str(result)\n"
    (tree / "bench/it.py").write_text(text)
    assert _changed_after(tree, "bench/it.py", text.replace("str(", "repr(")) == ()
    assert _changed_after(tree, "bench/it.py", text.replace("1", "2")) == ("bench/it.py",)
