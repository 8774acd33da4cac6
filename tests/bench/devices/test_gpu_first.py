"""The pieces of the first half hour on a GPU: each keeps what it found, and the same call goes on where it ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.devices.gpu_first import PIECES, Piece, run
from bench.peers.example import load_example


def piece(name: str, code: str, limit_secs: float = 60) -> Piece:
    return Piece(name, "a test", ("-c", code, "{fleet}", "{work}"), limit_secs)


def test_a_piece_leaves_its_result_and_its_log(tmp_path: Path) -> None:
    says = "import sys, json; print('on the way'); print(json.dumps({'fleet': sys.argv[1], 'work': sys.argv[2]}))"
    assert run([piece("one", says)], tmp_path, 60, Path("a.toml")) == {"one": "done"}
    assert json.loads((tmp_path / "one.json").read_text()) == {"fleet": "a.toml", "work": f"{tmp_path}/work/one"}
    assert "on the way" in (tmp_path / "one.log").read_text()


def test_what_has_a_result_is_not_run_again_and_what_failed_is(tmp_path: Path) -> None:
    fails = piece("bad", "raise SystemExit('no device')")
    states = run([piece("good", "print('{}')"), fails], tmp_path, 60, Path("a.toml"))
    assert states["good"] == "done"
    assert "no device" in states["bad"]
    again = run([piece("good", "raise SystemExit(1)"), piece("bad", "print('{}')")], tmp_path, 60, Path("a.toml"))
    assert again == {"good": "there already", "bad": "done"}


def test_a_piece_that_takes_too_long_is_interrupted_and_has_no_result(tmp_path: Path) -> None:
    code = (
        "import signal, sys, pathlib\n"
        "signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path(sys.argv[2] + '.stopped').touch(), sys.exit(143)))\n"
        "pathlib.Path(sys.argv[2] + '.began').parent.mkdir(parents=True, exist_ok=True)\n"
        "signal.pause()"
    )
    states = run([piece("slow", code, limit_secs=3)], tmp_path, 60, Path("a.toml"))
    assert states["slow"].startswith("failed: not done after 3 s")
    assert (tmp_path / "work" / "slow.stopped").exists()
    assert not (tmp_path / "slow.json").exists()


def test_no_piece_is_begun_without_time(tmp_path: Path) -> None:
    assert run([piece("one", "print('{}')")], tmp_path, 1, Path("a.toml")) == {"one": "no time left"}


def test_output_that_is_no_result_is_a_failure(tmp_path: Path) -> None:
    assert run([piece("one", "print('hello')")], tmp_path, 60, Path("a.toml"))["one"].startswith(
        "failed: one: its last"
    )


@pytest.mark.parametrize("piece", PIECES, ids=lambda each: each.name)
def test_the_pieces_name_networks_that_exist(piece: Piece) -> None:
    for each in piece.args:
        file, _, function = each.partition(":")
        if file.endswith(".py"):
            assert f"def {function}() -> Example:" in Path(file).read_text()


def test_the_operators_are_one_network() -> None:
    network, inputs = load_example("bench/networks/gpu_kernels.py:operators")
    outputs = network(*inputs)
    assert len(outputs) > 20
