"""The benchmarks of devices: their tables, and the proxy that cuts networks."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
from pathlib import Path

import pytest

from bench.result import BenchResult, spread
from bench.devices.faulty_proxy import FaultyProxy
from bench.tables import write_tables


def test_tables_of_overhead_and_recovery(tmp_path: Path) -> None:
    secs = spread([0.001, 0.002, 0.004])
    side = {"overhead_secs": secs, "wall_secs": spread([0.25])}
    sides = dict.fromkeys(("ours", "ours, checked", "peer", "peer, linked"), side)
    overhead = BenchResult("rpc-overhead", 0.002, 0.1, 50.0, "s", {"sides": sides})
    faults = {"crash": {"secs": spread([0.21]), "outcome": "run_error", "asked_secs": 3.0}}
    recovery = BenchResult("device-recovery", 0.2, None, None, "s", {"faults": faults})
    results = {each.bench: json.loads(each.to_json()) for each in (overhead, recovery)}
    path = tmp_path / "benchmarks.md"
    path.write_text("".join(f"<!-- bench:{name} -->\n<!-- /bench:{name} -->\n" for name in results))
    write_tables(path, results, dict.fromkeys(results, "python -m bench"))
    text = path.read_text()
    assert "| fleet-tune | 2.0 (1.0 to 4.0) | 250.0 (250.0 to 250.0) |" in text
    assert "Ratio: 50." in text
    assert "| crash | `run_error` | 0.2 (0.2 to 0.2) | 3 |" in text


def _echo(listening: socket.socket) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(100):
            connection.sendall(data)


def test_the_proxy_cuts_what_it_is_told_to() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_echo, args=(listening,), daemon=True).start()
        with FaultyProxy(listening.getsockname()[1]) as proxy:

            def connect() -> socket.socket:
                return socket.create_connection(("127.0.0.1", proxy.port), timeout=60)

            def answers(connection: socket.socket) -> bool:
                connection.sendall(b"x")
                return connection.recv(1) == b"x"

            def is_silent(connection: socket.socket) -> bool:
                connection.sendall(b"x")
                return not select.select([connection], [], [], 0.2)[0]

            first = connect()
            assert answers(first)
            proxy.order("hole")
            second = connect()
            assert answers(second)
            assert is_silent(first)
            proxy.order("down")
            third = connect()
            assert is_silent(second)
            assert is_silent(third)
            proxy.order("up")
            fourth = connect()
            assert answers(fourth)
            proxy.order("reset")
            with pytest.raises(ConnectionResetError):
                fourth.recv(1)
            with pytest.raises(ValueError, match="no order 'cut'"):
                proxy.order("cut")
            for each in (first, second, third, fourth):
                each.close()
