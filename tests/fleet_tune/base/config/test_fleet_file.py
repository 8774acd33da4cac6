from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fleet_tune.base.config.fleet_file import (
    BuildConfig,
    DeviceConfig,
    FleetConfig,
    LocalConnection,
    MeasureConfig,
    RecordedConnection,
    RpcConnection,
    TrackerConnection,
    default_fleet,
    load_fleet,
    parse_connection,
    with_listed,
)
from fleet_tune.base.config.values import duration
from fleet_tune.base.domain import StopRule
from fleet_tune.base.errors import FleetFileError, UserError
from fleet_tune.base.timeouts import BOARD, CPU, GPU, DeviceTimeouts


def _load(tmp_path: Path, text: str) -> FleetConfig:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    return load_fleet(path)


def _mistake(tmp_path: Path, text: str) -> tuple[str, str]:
    """Problem without the path, and next step."""
    with pytest.raises(FleetFileError) as caught:
        _load(tmp_path, text)
    return caught.value.problem.replace(f"{tmp_path / 'fleet.toml'}", "FILE"), caught.value.next_step


FULL = """\
# two devices
[[device]]
name = "laptop"
threads = 2

[[device]]
name = "jetson-1"
connect = "tracker://10.0.0.1:9190/orin"
device_class = "orin"
threads = 8
[device.target]
kind = "cuda"
arch = "sm_87"

[build]
workers = 4
timeout_secs = 30
"""


def test_how_long_a_device_is_waited_for_is_its_own(tmp_path: Path) -> None:
    slow = "= 8\nconnect_secs = 60\nupload_secs = 300.5\nsilence_secs = 20\ncandidate_secs = 7\nprobe_secs = 9\n"
    slow += "oracle_secs = 5\n"
    fleet = _load(tmp_path, FULL.replace("= 8", slow) + '[[device]]\nname = "last"\n')
    timeouts = {device.name: device.timeouts for device in fleet.devices}
    assert timeouts["jetson-1"] == DeviceTimeouts(60.0, 300.5, 20.0, 7.0, 9.0, 5.0)
    assert timeouts["last"] == CPU == DeviceTimeouts(15.0, 60.0, 3.0, 10.0, 60.0, 150.0)
    assert timeouts["last"].sending_secs(40e6) == 100.0


@pytest.mark.parametrize(
    ("connect", "target", "kind"),
    [
        ("local", "native", CPU),
        ("127.0.0.1:9090", "native", CPU),
        ("local", "nvidia/nvidia-a100", GPU),
        ("local", {"kind": "cuda", "arch": "sm_90"}, GPU),
        ("127.0.0.1:9090", "nvidia/jetson-agx-orin-64gb", BOARD),
        ("10.0.0.2:9090", "native", BOARD),
        ("tracker://10.0.0.2:9190/orin", {"kind": "cuda", "arch": "sm_87"}, BOARD),
    ],
)
def test_what_nobody_says_is_what_is_usual_for_the_kind(connect: str, target: Any, kind: DeviceTimeouts) -> None:
    assert DeviceConfig(name="a", connect=connect, target=target).timeouts == kind
    mine = DeviceConfig(name="a", connect=connect, target=target, candidate_secs=77.0).timeouts
    assert mine == replace(kind, candidate_secs=77.0)


def test_a_count_makes_devices_of_one_key(tmp_path: Path) -> None:
    text = FULL.replace("= 8", "= 8\ncount = 3") + '[[device]]\nname = "last"\n'
    fleet = _load(tmp_path, text)
    assert [device.name for device in fleet.devices] == ["laptop", "jetson-1-1", "jetson-1-2", "jetson-1-3", "last"]
    assert {device.connect for device in fleet.devices[1:4]} == {"tracker://10.0.0.1:9190/orin"}
    assert {device.count for device in fleet.devices} == {1}
    assert fleet.where("jetson-1-3", "threads").endswith("line 10")
    assert fleet.where("last", "name").endswith("line 20")


def test_who_has_some_devices_has_all_of_a_key_with_its_first_and_else_none(tmp_path: Path) -> None:
    fleet = _load(tmp_path, FULL.replace("= 8", '= 8\ncount = "all"'))
    assert [device.name for device in fleet.devices] == ["laptop", "jetson-1-1"]
    listed = {"jetson-1": 3}
    laptop, jetsons = fleet.only({"laptop"}), fleet.only({"jetson-1-1"})
    assert [device.name for device in with_listed(laptop, listed).devices] == ["laptop"]
    assert [device.name for device in with_listed(jetsons, listed).devices] == [
        "jetson-1-1",
        "jetson-1-2",
        "jetson-1-3",
    ]
    assert jetsons.chosen == {"jetson-1-1"}


def test_a_fleet_file_is_read(tmp_path: Path) -> None:
    fleet = _load(tmp_path, FULL)
    assert fleet.devices == (
        DeviceConfig(name="laptop", threads=2),
        DeviceConfig(
            name="jetson-1",
            connect="tracker://10.0.0.1:9190/orin",
            device_class="orin",
            threads=8,
            target={"kind": "cuda", "arch": "sm_87"},
        ),
    )
    assert fleet.build == BuildConfig(workers=4, timeout_secs=30.0)
    assert fleet.devices[0].target == "native"
    assert fleet.devices[0].connection == LocalConnection()
    assert fleet.devices[1].connection == TrackerConnection("10.0.0.1", 9190, "orin")
    assert pickle.loads(pickle.dumps(fleet)) == fleet


def test_a_device_may_be_driven_from_another_host_whose_paths_are_its_own(tmp_path: Path) -> None:
    text = '[[device]]\nname = "here"\nconnect = "127.0.0.1:9090"\nkey_file = "my.key"\n'
    text += '[[device]]\nname = "there"\nconnect = "localhost:9090"\nvia = "10.0.0.7"\nkey_file = "~/my.key"\n'
    here, there = _load(tmp_path, text).devices
    assert (here.via, here.key_file) == (None, str(tmp_path / "my.key"))
    assert (there.via, there.key_file) == ("10.0.0.7", "~/my.key")


@pytest.mark.parametrize(
    ("connect", "target", "at_home", "shares"),
    [
        ("local", "native", True, True),
        ("local", "nvidia/nvidia-a100", True, False),  # its kernels run on cores of its own
        ("127.0.0.1:9090", "native", True, True),
        ("[::1]:9090", "native", True, True),
        ("localhost:9091", "nvidia/jetson-agx-orin-64gb", True, False),  # through a tunnel
        ("tracker://localhost:9190/orin", "nvidia/jetson-agx-orin-64gb", True, False),
        ("10.0.0.2:9090", "native", False, False),
        ("recorded:a.ftd", "native", False, False),
    ],
)
def test_what_an_address_means_may_depend_on_the_host(connect: str, target: str, at_home: bool, shares: bool) -> None:
    device = DeviceConfig(name="a", connect=connect, target=target)
    assert (device.is_dialled_at_home, device.shares_host) == (at_home, shares)


def test_how_devices_are_watched_is_read(tmp_path: Path) -> None:
    assert _load(tmp_path, FULL).measure == MeasureConfig()
    text = f"{FULL}[measure]\ncheck_every_secs = 30.0\nrealtime = false\n"
    assert _load(tmp_path, text).measure == MeasureConfig(check_every_secs=30.0, realtime=False)


def test_a_rule_gets_the_warm_up_and_the_flush_of_the_file(tmp_path: Path) -> None:
    rule = StopRule(max_batches=7)
    assert MeasureConfig().applied_to(rule) == rule
    text = f"{FULL}[measure]\nwarm_up_secs = 0.5\nflush_cache_bytes = 1_000_000\n"
    expected = StopRule(max_batches=7, warm_up_secs=0.5, flush_bytes=1_000_000)
    assert _load(tmp_path, text).measure.applied_to(rule) == expected


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("max_cv = 0.01", StopRule(max_cv=0.01)),
        ("max_cv = 0", StopRule(max_cv=0.0)),
        ("min_batches = 2\nmax_batches = 4", StopRule(min_batches=2, max_batches=4)),
        ("min_batches = 20", StopRule(min_batches=20, max_batches=20)),
        ("max_batches = 2", StopRule(min_batches=2, max_batches=2)),
        ("max_batches = 50", StopRule(max_batches=50)),
    ],
)
def test_a_rule_gets_the_bound_and_the_counts_of_the_file(tmp_path: Path, keys: str, expected: StopRule) -> None:
    assert _load(tmp_path, f"{FULL}[measure]\n{keys}").measure.applied_to(StopRule()) == expected


def test_a_caller_can_name_the_line_of_any_key(tmp_path: Path) -> None:
    fleet = _load(tmp_path, FULL)
    file = tmp_path / "fleet.toml"
    assert fleet.where("laptop", "threads") == f"{file}, line 4"
    assert fleet.where("jetson-1", "target") == f"{file}, line 11"
    assert fleet.where("laptop", "target") == f"{file}, line 2", "not set: the line of its table"
    assert default_fleet().where("local", "target") == "the default fleet"


@pytest.mark.parametrize(
    ("text", "problem", "next_step"),
    [
        (FULL.replace("threads = 8", "thread = 8"), "FILE, line 10: unknown key 'thread' in [[device]]", "threads?"),
        (FULL.replace("workers", "worker"), "FILE, line 16: unknown key 'worker' in [build]", "did you mean workers?"),
        (f"{FULL}[bild]", "FILE, line 18: unknown key 'bild'", "did you mean build?"),
        (f"x = 1\n{FULL}", "FILE, line 1: unknown key 'x'", "tables known here: device, build, measure"),
        (FULL.replace("= 8", "= 0"), "FILE, line 10: threads = 0 is not valid", "a whole number from 1"),
        (FULL.replace("= 8", '= "8"'), 'FILE, line 10: threads = "8" is not valid', "a whole number from 1"),
        (FULL.replace("= 8", "= true"), "FILE, line 10: threads = true is not valid", "a whole number from 1"),
        (FULL.replace("= 30", "= -1"), "FILE, line 17: timeout_secs = -1 is not valid", "a number of seconds"),
        (FULL.replace("= 30", "= nan"), "FILE, line 17: timeout_secs = NaN is not valid", "a number of seconds"),
        (FULL.replace('"laptop"', '"my laptop"'), 'FILE, line 3: name = "my laptop" is not valid', "give letters"),
        (FULL.replace("9190/orin", "9190"), 'connect = "tracker://10.0.0.1:9190" is not valid', '"local", "host'),
        (FULL.replace("kind =", "kin ="), 'FILE, line 11: target = {"kin": "cuda"', 'kind = "llvm"'),
        (FULL.replace('name = "laptop"\n', ""), "FILE, line 2: this [[device]] has no name", "add name: letters"),
        (
            FULL.replace("jetson-1", "laptop"),
            "FILE, line 7: name = 'laptop' is used already (FILE, line 3)",
            "own name",
        ),
        (
            f'{FULL}[[device]]\nname = "a"\nconnect = "localhost:9090"\n'
            '[[device]]\nname = "b"\nconnect = "127.0.0.1:9090"',
            'FILE, line 23: connect = "127.0.0.1:9090" is the address of another device already (FILE, line 20)',
            "one server is one device",
        ),
        (FULL.replace("= 2\n", "= 2\ncount = 2\n"), "FILE, line 5: count = 2 is not valid", "only with connect ="),
        (
            FULL.replace("= 2\n", '= 2\ncount = "all"\n'),
            'FILE, line 5: count = "all" is not valid',
            "only with connect =",
        ),
        (
            FULL.replace("= 8", "= 8\nsilence_secs = 0.5"),
            "FILE, line 11: silence_secs = 0.5 is not valid",
            "from 1 to 3600",
        ),
        (
            FULL.replace("= 8", "= 8\nupload_secs = nan"),
            "FILE, line 11: upload_secs = NaN is not valid",
            "at most 3600",
        ),
        (FULL.replace("= 8", '= 8\ncount = "some"'), 'FILE, line 11: count = "some" is not valid', 'or "all"'),
        (FULL.replace("= 8", "= 8\ncount = 0"), "FILE, line 11: count = 0 is not valid", "a whole number from 1"),
        (
            FULL.replace("= 8", "= 8\ncount = 2").replace('"laptop"', '"jetson-1-2"'),
            "FILE, line 7: name = 'jetson-1-2' is used already (FILE, line 3)",
            "own name",
        ),
        (FULL.replace("= 8", '= 8\nvia = "höst"'), 'FILE, line 11: via = "höst" is not valid', "fleet-tune-host:NAME"),
        (FULL.replace("= 8", '= 8\nvia = "a b"'), 'FILE, line 11: via = "a b" is not valid', "fleet-tune-host:NAME"),
        (
            FULL.replace("= 8", '= 8\nvia = "lab"\nkey_file = "my.key"'),
            'FILE, line 12: key_file = "my.key" is of host lab and is not relative to this file',
            "the absolute path that it has there, or one that begins with ~/",
        ),
        (
            '[[device]]\nname = "a"\nvia = "lab"\nconnect = "recorded:a.ftd"',
            'FILE, line 4: connect = "recorded:a.ftd" is of host lab',
            "the absolute path",
        ),
        (
            FULL.replace("= 8", '= 8\nvia = "lab"\ncount = "all"'),
            'FILE, line 12: count = "all" is of host lab and cannot be counted from here',
            "give the number",
        ),
        (
            FULL.replace("workers", "total_workers").replace("= 4", "= 0"),
            "FILE, line 16: total_workers = 0",
            "to 65536",
        ),
        (f"{FULL}[measure]\nwarm_up_secs = 2", "FILE, line 19: warm_up_secs = 2 is not valid", "from 0 to 1"),
        (f"{FULL}[measure]\nflush_cache_bytes = -1", "FILE, line 19: flush_cache_bytes = -1", "from 0 to 268435456"),
        (f"{FULL}[measure]\nflush_cache_bytes = 1e6", "FILE, line 19: flush_cache_bytes = 1000000.0", "a whole number"),
        (f"{FULL}[measure]\nmax_cv = 3", "FILE, line 19: max_cv = 3 is not valid", "a number from 0 to 1"),
        (f"{FULL}[measure]\nmax_cv = nan", "FILE, line 19: max_cv = NaN is not valid", "a number from 0 to 1"),
        (f"{FULL}[measure]\nmin_batches = 0", "FILE, line 19: min_batches = 0 is not valid", "from 1 to 1000"),
        (f"{FULL}[measure]\nmax_batches = 2.5", "FILE, line 19: max_batches = 2.5 is not valid", "a whole number"),
        (
            f"{FULL}[measure]\nmax_batches = 2\nmin_batches = 5",
            "FILE, line 19: max_batches = 2 is not valid",
            "not less than min_batches",
        ),
        (f"{FULL}[measure]\nwarmup_secs = 2", "FILE, line 19: unknown key 'warmup_secs' in [measure]", "warm_up_secs"),
        ('[device]\nname = "a"', 'FILE, line 1: device = {"name": "a"} is not valid', "double brackets"),
        ("[[build]]", "FILE, line 1: build = [{}] is not valid", "single brackets"),
        ("device = [7]", "FILE, line 1: device = 7 is not valid", "double brackets"),
        ("[build]\n", "the fleet file FILE has no device", "add a table [[device]]"),
        ("", "the fleet file FILE has no device", "add a table [[device]]"),
        ('[[device]]\nname "a"', "FILE, line 2: not valid TOML", "correct this line"),
        ('[[device]]\nname = "a', "FILE, line 2: not valid TOML", "correct this line"),
        ('[[device]]\nname = """a\n\n', "FILE, line 2: not valid TOML", "correct this line"),
        ('[[device]]\nname = "a"\nname = "b"', "FILE, line 3: not valid TOML", "correct this line"),
    ],
)
def test_a_mistake_is_told_with_line_key_and_next_step(tmp_path: Path, text: str, problem: str, next_step: str) -> None:
    told, advice = _mistake(tmp_path, text)
    assert problem in told
    assert next_step in advice
    assert "\n" not in told + advice


def test_a_dataset_is_found_from_the_folder_of_its_fleet_file(tmp_path: Path) -> None:
    text = '[[device]]\nname = "a"\nconnect = "recorded:sets/one.ftd"\n'
    text += '[[device]]\nname = "b"\nconnect = "recorded:/two.ftd"'
    assert _load(tmp_path, text).datasets == (tmp_path / "sets/one.ftd", Path("/two.ftd"))
    # With a real device among them, builds are real.
    assert _load(tmp_path, f'{text}\n[[device]]\nname = "c"').datasets == ()


def test_an_unreadable_fleet_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(FleetFileError, match="No such file"):
        load_fleet(tmp_path / "none.toml")
    with pytest.raises(FleetFileError, match="Is a directory"):
        load_fleet(tmp_path)
    (tmp_path / "fleet.toml").write_bytes(b"name = '\xff'")
    with pytest.raises(FleetFileError, match="UTF-8"):
        load_fleet(tmp_path / "fleet.toml")


def test_a_mark_in_front_of_the_text_is_none_of_it(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_bytes(b"\xef\xbb\xbf" + FULL.encode())
    fleet = load_fleet(tmp_path / "fleet.toml")
    assert fleet.where("laptop", "threads") == f"{tmp_path / 'fleet.toml'}, line 4"


def test_the_default_fleet_is_this_cpu_with_the_cores_that_may_be_used() -> None:
    fleet = default_fleet()
    assert [(d.connect, d.target, d.threads) for d in fleet.devices] == [
        ("local", "native", len(os.sched_getaffinity(0)))
    ]


def test_configurations_do_not_change_and_hold_no_unknown_field() -> None:
    device = DeviceConfig(name="a")
    with pytest.raises(ValidationError):
        device.threads = 3  # type: ignore[misc]
    with pytest.raises(ValidationError):
        DeviceConfig(name="a", thread=3)  # type: ignore[call-arg]
    with pytest.raises(ValidationError):
        FleetConfig(devices=())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("local", LocalConnection()),
        ("board-3.lan:9090", RpcConnection("board-3.lan", 9090)),
        ("[fe80::1]:9090", RpcConnection("fe80::1", 9090)),
        ("tracker://host:9190/orin", TrackerConnection("host", 9190, "orin")),
        ("recorded:some dir/set.ftd", RecordedConnection(Path("some dir/set.ftd"))),
        ("recorded:9090", RpcConnection("recorded", 9090)),
        ("replay:some dir/set.ftd", RecordedConnection(Path("some dir/set.ftd"))),  # the old word,
    ],
)
def test_connections(text: str, expected: object) -> None:
    assert parse_connection(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "host:",
        "recorded:",
        ":9090",
        "host:0",
        "host:65536",
        "http://host:80",
        "tracker://host/orin",
        "a b:1",
        "me@board:9090",
        "a..b:9090",  # of no such name does a look-up fail in order
        "[a..b]:9090",
        "tracker://a..b:9190/orin",
        f"{'a' * 64}.lan:9090",
        f"{'a.' * 200}lan:9090",
    ],
)
def test_what_is_no_connection_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        parse_connection(text)


@pytest.mark.parametrize(
    ("text", "secs"),
    [("300", 300), ("5m", 300), ("1h30m", 5400), ("90s", 90), ("1.5h", 5400), ("2d", 172800), (" 1M30 ", 90)],
)
def test_durations(text: str, secs: float) -> None:
    assert duration(text) == secs


@pytest.mark.parametrize("text", ["", "0", "0m", "-5m", "5x", "m", "30m1h", "1e3", "inf", "5 m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="not a duration"):
        duration(text)


@given(st.integers(0, 48), st.integers(0, 59), st.integers(1, 59))
def test_the_parts_of_a_duration_add_up(hours: int, minutes: int, secs: int) -> None:
    assert duration(f"{hours}h{minutes}m{secs}s") == hours * 3600 + minutes * 60 + secs


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        ("a = " + "{a=" * 5000, "nested too deeply"),
        ("a = " + "9" * 5000, "too many digits"),
        ('[[device]]\nname = "a"\nthreads = ' + "9" * 400, "line 3: threads = 999"),
        ('[[device]]\nname = "a"\n[build]\ntimeout_secs = ' + "9" * 400, "line 4: timeout_secs = 999"),
        ('[[device]]\nname = "a"\n[build]\ntimeout_secs = nan', "line 4: timeout_secs = NaN"),
        ('[[device]]\nname = "a"\nconnect = "h:\u0663"', "line 3: connect = "),
        ('[[device]]\nname = "a"\nconnect = "recorded:a\\u0000b"', "line 3: connect = "),
        ("#" * (128 << 10) + "#", "has over 128 KiB"),
    ],
)
def test_what_no_fleet_file_has(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "fleet.toml").write_text(text)
    with pytest.raises(FleetFileError, match=problem) as caught:
        load_fleet(tmp_path / "fleet.toml")
    assert len(str(caught.value)) < 500


def test_a_value_of_very_many_lines_takes_no_minutes(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text('[[device]]\nname = "a"\nmany = [\n' + "1,\n" * 2_000 + "]\n")
    with pytest.raises(FleetFileError, match="unknown key 'many'"):
        load_fleet(tmp_path / "fleet.toml")
