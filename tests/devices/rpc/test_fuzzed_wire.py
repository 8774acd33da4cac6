"""What strangers send: a client's greeting to a server, a server's and a tracker's answers to a client."""

from __future__ import annotations

import contextlib
import json
import math
import socket
import struct
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from devices.rpc import handshake
from devices.rpc.handshake import ClientHello, ConnectedClient, HandshakeError
from devices.rpc.keys import new_key
from devices.rpc.tracker import MAGIC, ServerAddress, TrackerClient, TrackerError
from tests.helpers.fuzz import changed, damaged, json_values
from tests.helpers.properties import examples

WORDS = b"client:key -timeout=60 -name=me -challenge=00 -proof=00"
GREETING = struct.pack("<ii", handshake.MAGIC, len(WORDS)) + WORDS
ANSWER = b"server:key -challenge=00 -proof=00"
SECRET = new_key()


def framed(body: bytes) -> bytes:
    return struct.pack("<i", len(body)) + body


@given(st.one_of(damaged(GREETING), damaged(WORDS).map(lambda words: GREETING[:4] + framed(words))))
@example(GREETING)
@examples(200)
def test_any_greeting(said: bytes) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    with listening, socket.create_connection(listening.getsockname()) as client, listening.accept()[0] as server:
        client.sendall(said)
        client.shutdown(socket.SHUT_WR)
        with contextlib.suppress(HandshakeError):
            heard = None
            greeting = ClientHello(server)
            while heard is None:
                server.setblocking(True)
                heard = greeting.heard()
            assert isinstance(heard, ConnectedClient)
            assert heard.timeout_secs is None or (heard.timeout_secs >= 0 and math.isfinite(heard.timeout_secs))
            assert not heard.knows(SECRET)


@given(
    st.one_of(
        damaged(struct.pack("<i", handshake.MAGIC) + framed(ANSWER)),
        damaged(ANSWER).map(lambda words: struct.pack("<i", handshake.MAGIC) + framed(words)),
    ),
    st.sampled_from([None, SECRET]),
    st.booleans(),
)
@examples(200)
def test_any_servers_answer(said: bytes, secret: bytes | None, demanded: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(said)
        theirs.shutdown(socket.SHUT_WR)
        with contextlib.suppress(HandshakeError, OSError):
            shown = handshake.watch(ours, 30, secret, demanded)
            assert not demanded  # nobody here proves a key
            assert shown in ("", None)


def asked(said: bytes, ask: Any) -> Any:
    """What our client makes of a tracker that says this."""
    ours, theirs = socket.socketpair()
    with theirs, ours:
        theirs.sendall(struct.pack("<i", MAGIC) + said)
        theirs.shutdown(socket.SHUT_WR)
        return ask(TrackerClient.over(ours, "a tracker", 30))


ADDRESS = [0, ["host", 9090, "key:1"]]
SUMMARY = [0, {"server_info": [{"key": "server:cpu"}], "queue_info": {"cpu": {"free": 1}}}]
WHOLE = (ADDRESS, SUMMARY)
ANSWERS = st.one_of(
    *(changed(whole, json_values()).map(lambda value: framed(json.dumps(value).encode())) for whole in WHOLE),
    *(damaged(framed(json.dumps(whole).encode())) for whole in WHOLE),
)


@given(ANSWERS)
@example(framed(json.dumps([0, ["a..b", 9090, "key:1"]]).encode()))
@examples(200)
def test_any_trackers_answer(said: bytes) -> None:
    with contextlib.suppress(TrackerError):
        address = asked(said, lambda tracker: tracker.request("cpu", "user", 30))
        assert isinstance(address, ServerAddress)
        address.host.encode("idna")  # as whoever connects does
        assert " " not in address.match_key
    with contextlib.suppress(TrackerError):
        assert all(isinstance(key, str) for key in asked(said, lambda tracker: tracker.pending()))
    with contextlib.suppress(TrackerError):
        listed, free = asked(said, lambda tracker: tracker.count("cpu"))
        assert isinstance(listed, int)
        assert isinstance(free, int)
