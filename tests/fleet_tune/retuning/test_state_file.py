"""state.json as earlier versions of fleet-tune have written it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet_tune.base.records.stores.stored_speeds import PROBE
from fleet_tune.retuning.state_file import load_state, save_state
from policies.retuning.state import AskDevices, CheckVersion, ServiceState, TuneDeployment

_STATES = Path(__file__).with_name("states")


@pytest.mark.parametrize("name", ["new", "ask", "check", "tune"])
def test_a_stored_state_is_read_and_written_byte_for_byte(tmp_path: Path, name: str) -> None:
    stored = _STATES / f"state_{name}.json"
    state = load_state(stored)
    save_state(tmp_path / "state.json", state)
    assert (tmp_path / "state.json").read_bytes() == stored.read_bytes()


def test_a_state_with_the_ends_of_spans_is_read_without_them(tmp_path: Path) -> None:
    older, stored = tmp_path / "state.json", _STATES / "state_ask.json"
    text = stored.read_text()
    older.write_text(text.replace('"log_gain": 0.5', '"log_gain": 0.5, "at_unix_secs": 1750000000.0'))
    assert older.read_text() != text
    assert load_state(older) == load_state(stored)


def test_a_stored_action_is_read_as_what_it_was() -> None:
    actions = {name: load_state(_STATES / f"state_{name}.json").doing for name in ("ask", "check", "tune")}
    assert {name: None if doing is None else type(doing.action) for name, doing in actions.items()} == {
        "ask": AskDevices,
        "check": CheckVersion,
        "tune": TuneDeployment,
    }


def test_there_is_a_new_state_where_there_is_no_file(tmp_path: Path) -> None:
    assert load_state(tmp_path / "state.json") == ServiceState(probe=PROBE)


def test_what_was_timed_beside_another_probe_is_timed_anew(tmp_path: Path) -> None:
    stored = _STATES / "state_check.json"
    state = load_state(stored)
    assert any(each.baselines for each in state.deployments)
    older = tmp_path / "state.json"
    older.write_text(stored.read_text().replace('"probe": "3"', '"probe": "2"'))
    read = load_state(older)
    assert read.probe == PROBE
    assert [each.baselines for each in read.deployments] == [{} for _ in state.deployments]
    older.write_text(stored.read_text().replace(' "probe": "3",\n', ""))
    assert load_state(older) == read
