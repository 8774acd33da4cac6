"""The proxy that cuts networks."""

from __future__ import annotations

import contextlib
import select
import socket
import threading

import pytest

from bench.devices.faulty_proxy import FaultyProxy


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
