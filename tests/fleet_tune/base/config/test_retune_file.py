"""The file of fleet-tune retune: what it asks for, and how its mistakes are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet_tune.base.config.retune_file import RetuneConfig, load_retune, parse_hours
from fleet_tune.base.errors import FleetFileError, RetuneFileError
from fleet_tune.base.precision import Precision

EXAMPLES = Path(__file__).parents[4] / "examples"
SHORT = """\
folder = "kept"
[[network]]
name = "mlp"
path = "networks.py:mlp"
calls_per_day = 1000
"""


def _load(tmp_path: Path, text: str) -> RetuneConfig:
    path = tmp_path / "retune.toml"
    path.write_text(text)
    return load_retune(path)


def test_what_is_not_said_has_its_default(tmp_path: Path) -> None:
    config = _load(tmp_path, SHORT)
    assert config.folder == tmp_path / "kept"
    assert config.store == tmp_path / "kept" / "store.db"
    assert config.store_mb == 4096
    assert config.networks[0].path == str(tmp_path / "networks.py:mlp")
    assert (config.time.share, config.time.hours, config.time.span) == (0.1, None, 600.0)
    assert config.publish.versions == 5
    assert [device.connect for device in config.fleet.devices] == ["local"]
    assert config.hook == ()


def test_paths_are_those_of_the_file_and_durations_as_people_write_them(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text('[[device]]\nname = "a"\n[[device]]\nname = "b"\nconnect = "h:1"\n')
    text = 'fleet = "fleet.toml"\nstore = "/team/store.db"\nhook = ["./deploy.sh", "x"]\n' + SHORT
    text += 'inputs = "in.npz"\nprecision = "int8w"\n'
    text += 'shapes = "n=1..8"\nshapes_weights = "lengths.txt"\n'
    (tmp_path / "lengths.txt").write_text("4 1\n")
    text += 'classes = ["orin"]\n[time]\nhours = "22:00-06:00"\nspan = "90s"\npayback = 3600\n'
    text += '[watch]\nage = "2d"\n'
    config = _load(tmp_path, text)
    assert config.store == Path("/team/store.db")
    assert config.store_mb is None  # of others too: it is never pruned unasked
    assert config.hook == (str(tmp_path / "./deploy.sh"), "x")
    assert config.networks[0].inputs == str(tmp_path / "in.npz")
    assert config.networks[0].shapes_weights == str(tmp_path / "lengths.txt")
    assert config.networks[0].classes == ("orin",)
    assert config.networks[0].precision is Precision.INT8W
    assert (config.time.span, config.time.payback, config.watch.age) == (90.0, 3600.0, 172800.0)
    assert [device.name for device in config.fleet.devices] == ["a", "b"]
    only = config.fleet.only({"b"})
    assert [device.name for device in only.devices] == ["b"]
    assert only.where("b", "connect").endswith("fleet.toml, line 5")


def test_the_store_may_be_a_teams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    url = "postgresql://alice:secret@db.example/kernels"
    (tmp_path / "alice.key").write_text(url)
    (tmp_path / "alice.key").chmod(0o600)
    by_file, named = (_load(tmp_path, f'store = "{name}"\n{SHORT}') for name in ("@alice.key", url))
    assert by_file.server == named.server == url
    assert by_file.store == named.store
    assert named.store.parent == tmp_path / "home" / "fleet-tune" / "teams"
    assert named.store_mb is None
    assert "secret" not in repr(named)
    for text, problem in (("store_mb = 9\n", "is pruned there"), ("", "cannot be read")):
        with pytest.raises(RetuneFileError, match=problem):
            _load(tmp_path, f'{text}store = "@{"alice" if text else "none"}.key"\n{SHORT}')


def test_the_example_is_right() -> None:
    config = load_retune(EXAMPLES / "retune.toml")
    assert [network.name for network in config.networks] == ["resnet18", "mlp"]


def test_hours_may_pass_midnight() -> None:
    assert parse_hours("22:00-06:30") == (79200.0, 23400.0)


@pytest.mark.parametrize(
    ("text", "problem", "next_step"),
    [
        (SHORT.replace('"kept"', "7"), "line 1: folder = 7 is not valid", "give the path of a folder for versions"),
        (SHORT.replace("folder", "folde"), "line 1: unknown key 'folde'", "did you mean folder? keys and tables known"),
        (
            SHORT.replace("calls_per_day", "calls"),
            "line 5: unknown key 'calls' in [[network]]",
            "keys known here: name",
        ),
        (
            SHORT.replace("calls_per_day = 1000", ""),
            "line 2: this [[network]] has no calls_per_day",
            "add calls_per_day",
        ),
        (SHORT.replace("1000", "0"), "line 5: calls_per_day = 0 is not valid", "a number above 0"),
        (SHORT + SHORT.partition("\n")[2], 'line 7: name = "mlp" is used already', "its own name"),
        ('folder = "x"\n', "retune.toml has no network", "add a table [[network]]"),
        (
            SHORT + 'precision = "auto"\n',
            'line 6: precision = "auto" and max_error belong together',
            "give a max_error too",
        ),
        (SHORT + "max_error = 0.01\n", 'line 6: precision = "auto" and max_error', "give the precision auto too"),
        (SHORT + 'precision = "auto"\nmax_error = 3.0\n', "line 7: max_error = 3.0 is not valid", "at most 0.1"),
        (SHORT + 'shapes = "n=8..1"\n', "line 6: the bounds of the dimension 'n' are", 'write "n=1..8"'),
        (SHORT + 'shapes_weights = "n=8:1"\n', "line 6: weights say", "give shapes too"),
        (SHORT + 'shapes = "n=1..8"\nshapes_weights = "no.txt"\n', "line 7: there is no file", "give shapes_weights a"),
        (SHORT + "[time]\nshare = 0\n", "line 7: share = 0 is not valid", "above 0, at most 1"),
        (SHORT + '[time]\nhours = "22-6"\n', 'line 7: hours = "22-6" is not valid', "two different times"),
        (SHORT + '[time]\nspan = "soon"\n', 'line 7: span = "soon" is not valid', "as 90s, 10m"),
        (SHORT + "[publish]\ndevices = 0\n", "line 7: devices = 0 is not valid", "from 1 to 64"),
        (SHORT + "[watch]\nslower = -1\n", "line 7: slower = -1 is not valid", "a share above 0"),
        ('address = "here"\n' + SHORT, 'line 1: address = "here" is not valid', "HOST:PORT"),
        ("folder = \n", "line 1: not valid TOML", "correct this line"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_place(tmp_path: Path, text: str, problem: str, next_step: str) -> None:
    with pytest.raises(RetuneFileError) as caught:
        _load(tmp_path, text)
    assert problem in caught.value.problem
    assert next_step in caught.value.next_step
    assert "\n" not in str(caught.value)


def test_the_fleet_file_tells_its_own_mistakes(tmp_path: Path) -> None:
    with pytest.raises(FleetFileError, match=r"fleet\.toml"):
        _load(tmp_path, 'fleet = "fleet.toml"\n' + SHORT)
