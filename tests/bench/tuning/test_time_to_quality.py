"""Time to the peer's latency, by curves made by hand."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import pytest

from bench.result import BenchError
from bench.tuning import network_timing, time_to_quality
from bench.tuning.quality_comparison import compared
from bench.tuning.time_to_quality import BENCHMARK, run
from bench.tuning.tuner_runs import FORMS, PEER, PEERS, TunerRun, runs

MODEL = "net.py:net"
OTHER = "other.py:other"
LAST = 6.0


def _points(*points: tuple[float, float]) -> list[dict[str, Any]]:
    last = dict.fromkeys(PEERS, LAST)
    return [
        {"secs": secs, "latency": latency, "last": last, "unscheduled": 0, "error": 0.0} for secs, latency in points
    ]


CURVES = {
    PEER: _points((60.0, 9.0), (300.0, 6.1), (1200.0, LAST)),
    "as it comes": _points((30.0, 5.0), (40.0, 6.1), (60.0, 6.0), (120.0, 4.0), (1100.0, 5.0), (1300.0, 1.0)),
    "from nothing": _points((40.0, 5.0), (1000.0, 6.5)),
}


def test_a_short_run_counts_where_every_longer_one_is_as_fast() -> None:
    found = compared(CURVES, PEER, 1200.0)
    assert (found["peer_secs"], found["latency"]) == (1200.0, LAST)
    assert found["times"] == {"as it comes": 60.0, "from nothing": None}


def test_at_equal_time_the_longest_run_counts_not_the_best() -> None:
    assert compared(CURVES, PEER, 1200.0)["ahead"] == {"as it comes": 6.0 / 5.0, "from nothing": 6.0 / 6.5}


def test_the_peer_may_have_been_as_fast_long_before() -> None:
    assert compared(CURVES, PEER, 1200.0)["own_secs"] == 300.0


def test_a_network_is_compared_with_the_peers_at_the_same_moment() -> None:
    slow = [{**point, "latency": 7.0, "last": dict.fromkeys(PEERS, 7.5)} for point in _points((40.0, 0.0))]
    found = compared({**CURVES, "from nothing": slow}, PEER, 1200.0)
    assert found["times"]["from nothing"] == 40.0
    assert found["ahead"]["from nothing"] == pytest.approx(7.5 / 7.0)


def test_what_the_peer_takes_beyond_its_budget_is_no_merit_of_ours() -> None:
    found = compared(CURVES, PEER, 1000.0)
    assert (found["peer_secs"], found["own_secs"]) == (1000.0, 300.0)
    assert found["ahead"]["as it comes"] == 6.0 / 4.0, "the network after 1,100 s is too late"


def test_a_form_without_a_network_in_time_is_told_as_such() -> None:
    found = compared({PEER: _points((10.0, LAST)), "as it comes": _points((40.0, 5.0)), "from nothing": []}, PEER, 10.0)
    assert found["times"] == {"as it comes": 40.0, "from nothing": None}
    assert found["ahead"] == {"as it comes": None, "from nothing": None}


def test_every_model_has_runs_of_the_peer_and_our_budgets_up_to_its_time(tmp_path: Path) -> None:
    found = list(runs([MODEL, "b.py:b"], 100.0, (15.0, 100.0, 300.0), tmp_path))
    of_first = [(each.form, each.budget_secs) for each in found if each.model == MODEL]
    assert of_first == [
        *((peer, 100.0) for peer in PEERS),
        *((form, secs) for form in FORMS for secs in (15.0, 100.0)),
    ]
    assert len({each.folder for each in found}) == len(found) == 12


def test_another_method_needs_no_other_run_of_the_peer(tmp_path: Path) -> None:
    fleet, pruner = (list(runs([MODEL], 60.0, (60.0,), tmp_path, method=each)) for each in ("fleet", "pruner"))
    assert [one == other for one, other in zip(fleet, pruner, strict=True)] == [True, True, False, False]
    limited = list(runs([MODEL], 60.0, (60.0,), tmp_path, batch=8))
    assert [one == other for one, other in zip(fleet, limited, strict=True)] == [False, True, True, True], (
        "on our engine it keeps its own"
    )
    assert len({each.folder for each in (*fleet, *pruner, *limited)}) == 7


def test_each_tuner_is_told_what_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, tuple[list[str], dict[str, str]]] = {}

    def run_json(command: list[str], *, env: dict[str, str], timeout_secs: float) -> dict[str, Any]:
        assert timeout_secs > 60.0
        asked[" ".join(command)] = (command, env)
        return {}

    monkeypatch.setattr("bench.tuning.tuner_runs.run_json", run_json)
    monkeypatch.setenv("FLEET_TUNE_SHIPPED", "mine")
    for piece in runs([MODEL], 60.0, (20.0, 60.0), tmp_path, 3, "pruner", 8):
        piece.take()
    (shipped, searched, *ours) = asked.values()
    for command, _ in (shipped, searched):
        assert command[1] == "bench.peers.metaschedule_network"
        assert command[4:8] == ["--budget-secs", "60.0", "--seed", "3"]
        moments = [secs for name, secs in itertools.pairwise(command) if name == "--moment"]
        assert moments == ["0.0", "7.5", "15.0", "30.0", "45.0"], "its first network, and those of shares of its time"
    assert shipped[0][shipped[0].index("--batch") + 1] == "8"
    assert "--batch" not in searched[0]
    assert ("--our-engine" in shipped[0], "--our-engine" in searched[0]) == (False, True)
    for command, environment in ours:
        assert command[command.index("--method") + 1] == "pruner"
        assert environment["XDG_CACHE_HOME"].startswith(str(tmp_path)), "nothing is found that another run has kept"
        is_whole = "--no-pretrained" not in command
        assert environment["FLEET_TUNE_SHIPPED"] == ("mine" if is_whole else "")
        store = environment["FLEET_TUNE_STORE"]
        assert store.startswith(str(tmp_path)) if is_whole else store == "", "shipped records are read into a store"
    assert len({environment["XDG_CACHE_HOME"] for _, environment in ours}) == len(ours)
    assert ["--no-pretrained" in command for command, _ in ours] == [False, False, True, True]


class Tuners:
    """Tuners that leave figures, and a harness that times their networks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, unscheduled: Mapping[str, int] | None = None) -> None:
        """``unscheduled``: kernels of which the peer has no valid trial in the end, by model."""
        self.ran: list[str] = []
        self._unscheduled = unscheduled or {}
        self.is_wrong = False
        monkeypatch.setattr(TunerRun, "take", self._take())
        monkeypatch.setattr(network_timing, "measure_sides", self._measured)

    def _take(self) -> Any:
        def take(piece: TunerRun) -> dict[str, Any]:
            self.ran.append(piece.form)
            figures = {"trials": 9, "device_secs": 4.0}
            if piece.form in PEERS:
                left = self._unscheduled.get(piece.model, 0)
                network = {**figures, "secs": piece.budget_secs, "unscheduled": left, "folder": "there"}
                return {"tasks": 3, "networks": [{**network, "secs": 20.0, "unscheduled": left + 1}, network]}
            store = {"shipped": 2} if piece.form == "as it comes" else None
            known: dict[str, Any] = {"store": store, "task_results": [{}, {}, {}], "folder": "here"}
            return {**figures, "elapsed_secs": piece.budget_secs + 5, **known}

        return take

    def _measured(self, model: str, names: list[str], **_options: Any) -> dict[str, Any]:
        assert model in (MODEL, OTHER)
        self.ran.append("timing")
        secs = {name: {"median": 1.0 if "comes 20" in name else 2.0, "count": 9} for name in names}
        errors = {name: 0.6 * (self.is_wrong and "metaschedule 100" in name) for name in names}
        return {name: {"secs": secs[name], "relative_error": errors[name]} for name in names}


def _run(
    work: Path, grid: str = "15", *, piece_count: int = 0, resume: bool = True, models: Sequence[str] = (MODEL,)
) -> Any:
    return run(models, PEER, 100.0, None, grid, "fleet", 1, 1.0, 0, work, resume, piece_count, math.inf)


def test_pieces_are_done_once_and_the_last_one_gives_the_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuners = Tuners(monkeypatch)
    assert _run(tmp_path, piece_count=1) is None
    assert tuners.ran == [PEER]
    missing = "\n  net.py:net: metaschedule on our engine, 100 s\n  net.py:net: as it comes, 15 s\n"
    assert missing in capsys.readouterr().err
    assert _run(tmp_path, piece_count=3) is None
    assert "  net.py:net: timing of the networks after 15 s\n" in capsys.readouterr().err
    found = _run(tmp_path)
    assert tuners.ran == [*PEERS, *FORMS, "timing"]
    assert found.ours == pytest.approx(100.0 / 20.0)
    assert found.details["means"]["from nothing"] == pytest.approx(dict.fromkeys(PEERS, 5.0))
    for against in found.details["models"][MODEL]["against"].values():
        assert against["ahead"] == {"as it comes": 2.0, "from nothing": 1.0}
    text = BENCHMARK.table(json.loads(found.to_json()))
    peer = "metaschedule on our engine, 2000.00 ms"
    assert f"| `net`, from nothing | {peer} | 100 | 100 | 20 | 5.0 | 5.0 | 1.00 |" in text
    assert "| `net`, as it comes | 20 | 9 | 4 | 1000.00 | 2 of 3 |" in text
    row = "| 5.0 (10) | 5.00, `net` (4) | 1.0 (1.5) | 1.00, `net` (1) | 5.0 |"
    assert f"| from nothing, against metaschedule | 1 {row}" in text
    assert _run(tmp_path) is not None
    assert len(tuners.ran) == 5
    assert _run(tmp_path, resume=False) is not None
    assert len(tuners.ran) == 10


def test_kernels_without_a_valid_trial_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The peer's users have such a network too: it counts."""
    Tuners(monkeypatch, {OTHER: 2})
    monkeypatch.setattr(time_to_quality, "compared", _with_own_secs)
    found = _run(tmp_path, models=(OTHER, MODEL))
    details = json.loads(found.to_json())["details"]
    assert found.ours == pytest.approx(5.0)
    assert details["own_means"]["as it comes"][PEER] == pytest.approx(math.sqrt(80 / 20 * 40 / 20), rel=1e-4)
    text = BENCHMARK.table({"details": details})
    assert "| as it comes, against metaschedule | 2 | 5.0 (20) | 5.00, `other` (4) |" in text
    assert "| `other`, as it comes | metaschedule, 2000.00 ms, 2 kernels without a valid trial | 100 | 80 |" in text
    assert "| `net`, as it comes | metaschedule, 2000.00 ms | 100 | 40 |" in text


def test_a_wrong_network_of_the_peer_counts_and_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its users have it too."""
    Tuners(monkeypatch).is_wrong = True
    found = _run(tmp_path)
    assert found.ours == pytest.approx(5.0)
    text = BENCHMARK.table({"details": json.loads(found.to_json())["details"]})
    assert "| `net`, as it comes | metaschedule, 2000.00 ms, outputs wrong by 60% | 100 |" in text
    assert "| `net`, as it comes | metaschedule on our engine, 2000.00 ms | 100 |" in text


def _with_own_secs(found: Any, peer: str, budget_secs: float) -> dict[str, Any]:
    """As if the peer had been as fast after 40 s, or after 80 s where kernels have no valid trial."""
    against = compared(found, peer, budget_secs)
    return {**against, "own_secs": 80.0 if against["unscheduled"] else 40.0}


@pytest.mark.parametrize("grid", ["", "a", "0,5", "101", "15,inf"])
def test_a_grid_that_is_none_is_refused(grid: str, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="grid"):
        _run(tmp_path, grid)


def test_one_method_is_compared_at_a_time() -> None:
    option = next(each for each in BENCHMARK.options if each.name == "method")
    context = click.Context(click.Command("time-to-quality"))
    assert time_to_quality._method(context, option, "pruner") == "pruner"
    with pytest.raises(click.BadParameter, match="one method"):
        time_to_quality._method(context, option, "fleet,pruner")
