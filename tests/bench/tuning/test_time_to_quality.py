"""Time to the peer's latency, by curves made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.result import BenchError
from bench.tuning import time_to_quality
from bench.tuning.time_to_quality import FORMS, PEER, PEERS, TunerRun, compared, run, runs

MODEL = "net.py:net"


def _points(*points: tuple[float, float]) -> list[dict[str, float]]:
    return [{"secs": secs, "trials": 10 * secs, "latency": latency} for secs, latency in points]


def test_the_first_network_that_is_as_fast_counts() -> None:
    found = compared(
        {
            PEER: _points((60.0, 9.0), (1200.0, 6.0), (300.0, 7.0)),
            "as it comes": _points((120.0, 4.0), (40.0, 6.0), (30.0, 6.1), (1300.0, 1.0)),
            "from nothing": _points((40.0, 8.0), (1000.0, 6.5)),
        },
        PEER,
    )
    assert found["peer_secs"] == 1200.0
    assert found["times"] == {"as it comes": 40.0, "from nothing": None}
    assert found["ahead"] == {"as it comes": 1.5, "from nothing": pytest.approx(6.0 / 6.5)}


def test_a_form_without_a_network_in_time_is_told_as_such() -> None:
    found = compared({PEER: _points((10.0, 6.0)), "as it comes": _points((40.0, 5.0)), "from nothing": []}, PEER)
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


class Tuners:
    """Tuners that leave figures, and a harness that times their networks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: list[str] = []
        monkeypatch.setattr(TunerRun, "tune", self._tune())
        monkeypatch.setattr(time_to_quality, "measure_sides", self._measured)

    def _tune(self) -> Any:
        def tune(piece: TunerRun) -> dict[str, Any]:
            self.ran.append(piece.form)
            network = {"secs": piece.budget_secs, "trials": 9, "folder": "there"}
            if piece.form in PEERS:
                return {"networks": [{**network, "secs": 20.0}, network]}
            return {"elapsed_secs": piece.budget_secs + 5, "trials": 3, "folder": "here"}

        return tune

    def _measured(self, model: str, names: list[str], **_options: Any) -> dict[str, Any]:
        assert model == MODEL
        return {name: {"secs": {"median": 1.0 if "comes 20" in name else 2.0}} for name in names}


def test_pieces_are_done_once_and_the_last_one_gives_the_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuners = Tuners(monkeypatch)
    arguments: tuple[Any, ...] = ([MODEL], 100.0, "15", tmp_path)
    assert run(*arguments, 1, 1, 1.0, 0) is None
    assert tuners.ran == [PEER]
    missing = "3 pieces are missing, the same command goes on: net.py:net: metaschedule on our engine, 100 s"
    assert missing in capsys.readouterr().err
    found = run(*arguments, 0, 1, 1.0, 0)
    assert tuners.ran == [*PEERS, *FORMS]
    assert found is not None
    assert found.ours == pytest.approx(100.0 / 20.0)
    for against in found.details["models"][MODEL]["against"].values():
        assert against["ahead"] == {"as it comes": 2.0, "from nothing": 1.0}
    row = "| `net`, from nothing | metaschedule on our engine, 2000.00 ms | 100 | 20 | 5.0 | 1.00 |"
    assert row in time_to_quality.table(json.loads(found.to_json()))
    assert run(*arguments, 0, 1, 1.0, 0) is not None
    assert len(tuners.ran) == 4


@pytest.mark.parametrize("grid", ["", "a", "0,5"])
def test_a_grid_that_is_none_is_refused(grid: str, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="grid"):
        run([MODEL], 100.0, grid, tmp_path, 0, 1, 1.0, 0)
