"""The rules of fleet, taken away one by one: what a variant is, and its figures by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench.datasets import DATA
from bench.replay import open_replay
from bench.result import BenchError
from bench.search.rules import BASE, BENCHMARK, DEVELOPMENT, RULES, compared, run, variants, without
from policies.search.methods import method_named


def test_each_rule_is_part_of_the_method_and_can_be_taken_away() -> None:
    fleet = method_named("fleet")
    alone = [without([name]) for name in RULES]
    assert fleet not in alone
    assert all(one != other for at, one in enumerate(alone) for other in alone[:at])


def test_what_is_gone_is_gone_from_all_variants() -> None:
    found = variants(["prior visits", "radius"], [])
    others = [f"without {name}" for name in RULES if name not in ("prior visits", "radius")]
    assert list(found) == [BASE, "with all rules", *others]
    assert found.pop("with all rules") == method_named("fleet")
    assert all(method.selection.radius == 0.0 for method in found.values())
    analyzer = "start from the analyzer"
    assert found[f"without {analyzer}"] == without(["prior visits", "radius", analyzer])
    assert list(variants([], [analyzer])) == [BASE, f"without {analyzer}"]
    with pytest.raises(BenchError, match="there is no rule 'charm': exploration of sketches"):
        variants(["charm"], [])


def test_trials_are_compared_task_by_task() -> None:
    trials = {BASE: np.array([10.0, 20.0, 40.0]), "without it": np.array([20.0, 20.0, 20.0])}
    line = compared(trials, [1, 2])["without it"]
    assert line["ratio"] == pytest.approx(1.0)
    assert line["by_set"] == [pytest.approx(2.0), pytest.approx(math.sqrt(0.5))]
    assert (line["low"], line["high"]) == (pytest.approx(0.63, abs=0.01), pytest.approx(1.587, abs=0.01))


def test_where_all_tasks_agree_nothing_is_left_open() -> None:
    trials = {BASE: np.array([10.0, 20.0, 40.0]), "without it": np.array([11.0, 22.0, 44.0])}
    line = compared(trials, [3])["without it"]
    assert [line[name] for name in ("ratio", "low", "high")] == [pytest.approx(1.1)] * 3


def test_open_spaces_are_played_with_costs_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def play(_dataset: object, tasks: range, fillings: tuple[str, ...], methods: dict[str, object], *_: object) -> Any:
        runs = {(name, at): [SimpleNamespace(trials=10 * (1 + len(name)))] * 2 for name in methods for at in tasks}
        return {fillings[0]: runs}, {}

    monkeypatch.setattr(open_replay, "play", play)
    path = DATA / "other-tasks" / "znver5-2.ftd"
    found = run([path], [], ["radius"], 2, 1, None, in_open=True)
    assert found.ours == pytest.approx(50.0)
    assert found.details["lines"]["without radius"]["ratio"] == pytest.approx(3.0)
    assert "in open spaces: 6 tasks, 2 seeds" in BENCHMARK.table({"details": found.details})


def test_the_development_sets_are_the_default() -> None:
    (option,) = (each for each in BENCHMARK.options if each.name == "datasets")
    found = option.callback(None, option, ())  # type: ignore[misc,arg-type]
    assert {path.parent for path in found} == {DATA, *(DATA / name for name in DEVELOPMENT)}
