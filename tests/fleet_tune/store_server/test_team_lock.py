"""One service of a team keeps networks tuned with its store."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import psycopg
import pytest

from fleet_tune.base.config.retune_file import RetuneConfig, load_retune
from fleet_tune.base.errors import RetuneError
from fleet_tune.base.records.sharing.team_lock import TeamLock
from fleet_tune.retuning.service import held as held_by_service
from fleet_tune.store_server.server_folder import OWNER
from tests.helpers.team_server import START_SECS, Served, emptied

pytestmark = pytest.mark.timeout(120)


def test_one_service_of_a_team_keeps_networks_tuned_with_its_store(served: Served) -> None:
    now = 0.0
    with (
        emptied(served),
        contextlib.closing(TeamLock(served.address("alice"), lambda: now)) as first,
        contextlib.closing(TeamLock(served.address("bob"), lambda: now)) as second,
    ):
        assert (first.other(), second.other(), first.other()) == ("", "alice", "")
        # Its connection is cut, and another one is faster.
        with psycopg.connect(served.folder.key_of(OWNER), autocommit=True) as owner:
            owner.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'alice'")
        deadline = time.monotonic() + START_SECS
        while second.other():
            assert time.monotonic() < deadline
        assert first.other() == "", "the server may not know yet that it was cut"
        now = 121.0
        assert first.other() == "bob"
        second.close()
        assert (first.other(), second.other()) == ("", "alice")


def test_a_service_ends_where_another_one_has_the_teams_store(served: Served, tmp_path: Path) -> None:
    def config(name: str) -> RetuneConfig:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "fleet.toml").write_text('[[device]]\nname = "a"\nconnect = "a:1"\n')
        text = f'folder = "kept"\nfleet = "fleet.toml"\nstore = "{served.address(name)}"\n'
        (folder / "retune.toml").write_text(f'{text}[[network]]\nname = "n"\npath = "n.onnx"\ncalls_per_day = 1\n')
        return load_retune(folder / "retune.toml")

    with emptied(served), pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path / "alice"))
        first = config("alice")
        patch.setenv("XDG_DATA_HOME", str(tmp_path / "bob"))  # on another machine
        second = config("bob")
        with held_by_service(first) as check_sole_owner:
            check_sole_owner()
            refused = r"another service \(with the key alice\) .* postgresql://bob@"
            with pytest.raises(RetuneError, match=refused), held_by_service(second):
                pass
        with held_by_service(second) as check_sole_owner:
            check_sole_owner()
