"""What holds for every benchmark, and how they are found.

``samples/NAME.json`` is a result in the form of each, from a run with small options: its table is written from it. Of
time-to-quality it is a run of an older version in today's form, without what that one did not count: the peer's
networks on its way, its kernels without a schedule, seconds of the device.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest

from bench.benchmark import Benchmark, discover
from bench.processes import ROOT
from bench.result import BenchError, BenchResult

BENCHMARKS = discover()
SAMPLES = Path(__file__).parent / "samples"


def sample(benchmark: Benchmark) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((SAMPLES / f"{benchmark.name}.json").read_text())
    return result


@pytest.fixture(params=BENCHMARKS.values(), ids=list(BENCHMARKS))
def benchmark(request: pytest.FixtureRequest) -> Benchmark:
    found = request.param
    assert isinstance(found, Benchmark)
    return found


def test_it_is_told_in_one_line(benchmark: Benchmark) -> None:
    assert re.fullmatch(r"[A-Z][^\n]*\.", benchmark.help)
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", benchmark.name)


def test_its_options_and_its_short_form_are_what_it_takes(benchmark: Benchmark) -> None:
    command = benchmark.command()
    taken = {option.name for option in benchmark.options} | {"as_json", "save", "label"}
    for arguments in ([], [*benchmark.short, "--json"]):
        context = command.make_context(benchmark.name, list(arguments))
        assert set(context.params) == taken
        assert context.params["as_json"] == bool(arguments)


def test_its_table_is_made_of_its_result(benchmark: Benchmark) -> None:
    result = sample(benchmark)
    assert list(result) == ["bench", "ours", "peer", "ratio", "unit", "details"]
    assert result["bench"] == benchmark.name
    table = benchmark.table(result)
    if result["ours"] is None:
        assert table == f"Skipped: {result['details']['reason']}."
    else:
        first, align, *rows = table.splitlines()
        assert first.startswith("| ")
        assert re.fullmatch(r"\| ---( \| ---:)+ \|", align)
        assert rows
        assert rows[0].count("|") == first.count("|")


def test_every_process_that_is_started_is_a_module() -> None:
    texts = [path.read_text() for path in (ROOT / "bench").rglob("*.py")]
    names = {name for text in texts for name in re.findall(r'"-m",\s+"(bench\.[a-z_.]+)"', text)}
    assert len(names) > 10
    assert not [name for name in names if find_spec(name) is None]


def test_finding_them_imports_no_framework() -> None:
    code = (
        "import sys; from bench.benchmark import discover; assert discover();"
        "print([name for name in ('tvm', 'torch', 'ray') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr


EXAMPLE = """
import click

from bench.benchmark import Benchmark
from bench.result import BenchResult


def run(count: int) -> BenchResult:
    return BenchResult("counting", float(count), 2.0, count / 2.0, "pieces", {})


BENCHMARK = Benchmark(
    name="counting",
    help="Counts to what it is told.",
    options=(click.Option(["--count"], type=int, default=1),),
    short=("--count", "3"),
    run=run,
    table=lambda result: f"| counted | {result['ours']:g} |",
)
"""


def test_adding_one_touches_one_file(tmp_path: Path) -> None:
    """In a copy of bench/: one more file, and it has a command and a place in ``all``."""
    shutil.copytree(ROOT / "bench", tmp_path / "bench", ignore=shutil.ignore_patterns("data", "__pycache__"))
    (tmp_path / "bench" / "networks" / "counting.py").write_text(EXAMPLE)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}

    def call(*arguments: str) -> str:
        command = [sys.executable, "-m", "bench", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert re.search(r"counting +Counts to what it is told\.", call("--help"))
    assert call("counting", "--count", "5").startswith("counting: ours 5 pieces, peer 2 pieces, ratio 2.50\n")
    last = call("all", "--short", "--only", "counting", "--json").splitlines()[-1]
    assert json.loads(last)["ours"] == 3.0


def test_two_of_the_same_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "twice"
    package.mkdir()
    for name in ("__init__.py", "one.py", "other.py"):
        (package / name).write_text("" if name == "__init__.py" else EXAMPLE)
    (package / "helper.py").write_text("raise AssertionError('it has no benchmark and is not imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BenchError, match=r"two benchmarks are called 'counting', one of them in twice\.other"):
        discover(import_module("twice"))


def test_options_that_it_does_not_take_are_refused() -> None:
    def run(rounds: int, seed: int = 0) -> BenchResult:
        return BenchResult("x", rounds + seed, None, None, "s")

    def with_options(*names: str) -> Benchmark:
        return Benchmark("x", "An example.", [click.Option([name]) for name in names], (), run, str)

    for names in (["--rounds"], ["--rounds", "--seed"]):
        assert len(with_options(*names).options) == len(names)
    for names in ([], ["--seed"], ["--rounds", "--trials"]):
        with pytest.raises(BenchError, match=r"and it takes \['rounds', 'seed'\]"):
            with_options(*names)
