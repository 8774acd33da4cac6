"""The key of a device server: who gets in with it, who does not, and who waits for whom meanwhile. Real servers."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from devices.client.rpc_device import RpcDevice
from devices.client.session import RpcSession, ServerKey, SessionRefusedError
from devices.device_factory import fleet_file_errors, open_device
from devices.rpc import handshake
from devices.rpc.handshake import ClientHello
from devices.rpc.keys import new_key, proof, proves, read_key, read_or_make_key
from devices.server.server import DeviceServer
from fleet_tune.base.config.fleet_file import DeviceConfig, default_fleet, load_fleet
from fleet_tune.base.errors import DeviceKeyError, DeviceUnreachableError, FleetFileError

ROOT = Path(__file__).parents[3]
SECRET = new_key()
REFUSED = struct.pack("<i", 0xFF273)


@pytest.fixture(scope="module")
def keyed() -> Iterator[DeviceServer]:
    with DeviceServer(threads=1, secret=SECRET) as server:
        yield server


def session(server: DeviceServer, key: ServerKey) -> RpcSession:
    return RpcSession("127.0.0.1", server.port, timeout_secs=30, server_key=key)


def asked(server: DeviceServer, words: str) -> bytes:
    """The first four bytes of the server's answer to a client that says these words; none where it hangs up."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.sendall(struct.pack("<ii", handshake.MAGIC, len(words)) + words.encode())
        with contextlib.suppress(ConnectionResetError):
            return client.recv(4)
    return b""


def test_who_has_the_key_is_served_and_nobody_else(keyed: DeviceServer) -> None:
    from tvm import rpc

    opened = session(keyed, ServerKey(SECRET, demanded=True))
    assert opened.ours
    assert opened.gives_sign_of_life(30)
    opened.close()
    with pytest.raises(SessionRefusedError, match=r"asks for a key; .* key_file = "):
        session(keyed, ServerKey())
    with pytest.raises(SessionRefusedError, match=r"has another key; .* key_file = ") as refused:
        session(keyed, ServerKey(new_key()))
    assert SECRET.decode() not in str(refused.value)
    with pytest.raises(Exception, match=r"RPC|key|match"):  # TVM's own client
        rpc.connect("127.0.0.1", keyed.port)


def test_a_proof_opens_one_session_and_only_for_the_number_it_was_given_for(keyed: DeviceServer) -> None:
    assert asked(keyed, "client:") == REFUSED
    assert asked(keyed, f"client: -challenge= -proof={proof(SECRET, 'client', '')}") == REFUSED
    own = "00" * 16
    assert asked(keyed, f"client: -challenge={own} -proof={proof(SECRET, 'client', own)}") == REFUSED
    with socket.create_connection(("127.0.0.1", keyed.port), timeout=30) as watching:
        shown = handshake.watch(watching, 30, SECRET, True)
        assert shown is not None
        assert asked(keyed, f"client:another-key{shown}") == REFUSED  # a wrong key of TVM's; the number is used up
        assert asked(keyed, f"client:{shown}") == REFUSED
        watching.sendall(b"?")
        assert watching.recv(1) == b"?"


def test_the_key_is_nowhere_to_be_read(keyed: DeviceServer) -> None:
    child = psutil.Process(keyed.child_pid)
    assert SECRET.decode() not in " ".join([*child.cmdline(), *child.environ().values()])
    assert SECRET.decode() not in repr(ServerKey(SECRET))


def test_a_server_without_a_key_is_not_the_one_of_a_key_file(server: DeviceServer) -> None:
    with pytest.raises(SessionRefusedError, match="asks for no key"):
        session(server, ServerKey(SECRET, demanded=True))
    session(server, ServerKey(SECRET)).close()  # the key of this user's own servers, which this one does not ask for


def test_a_client_that_speaks_slowly_holds_up_nobody(keyed: DeviceServer) -> None:
    said = struct.pack("<ii", handshake.MAGIC, 100) + b"client:"
    slow = [socket.create_connection(("127.0.0.1", keyed.port), timeout=30) for _ in range(3)]
    for byte in said:
        # Each of them is in the middle of a handshake while others are served from beginning to end.
        for client in slow:
            client.sendall(bytes([byte]))
        assert asked(keyed, "client:") == REFUSED
    session(keyed, ServerKey(SECRET)).close()
    for client in slow:
        client.close()


def test_strangers_make_room_for_others(keyed: DeviceServer) -> None:
    # More than there may be connections, of clients that say nothing and of clients that watch and prove nothing.
    strangers = []
    for number in range(150):
        client = socket.create_connection(("127.0.0.1", keyed.port), timeout=30)
        if number % 2:
            body = b"client:fleet-tune-watch"
            client.sendall(struct.pack("<ii", handshake.MAGIC, len(body)) + body)
            assert client.recv(4) == struct.pack("<i", handshake.MAGIC)
        strangers.append(client)
    session(keyed, ServerKey(SECRET)).close()
    for client in strangers:
        client.close()


def test_a_greeting_is_taken_in_byte_by_byte_and_no_more_of_it_than_it_has() -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listening:
        ours = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
        with ours, theirs:
            greeting = ClientHello(theirs)
            words = b"client:key -name=me -timeout=5"
            for byte in struct.pack("<ii", handshake.MAGIC, len(words)) + words[:-1]:
                ours.sendall(bytes([byte]))
                assert greeting.heard() is None
            ours.sendall(words[-1:] + b"what TVM says then")
            client = greeting.heard()
            assert client is not None
            assert (client.key, client.name, client.timeout_secs, client.watches) == ("key", "me", 5.0, False)
            assert theirs.recv(100) == b"what TVM says then"


def test_key_files(tmp_path: Path) -> None:
    file = tmp_path / "new" / "device.key"
    key = read_or_make_key(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert read_or_make_key(file) == key == read_key(file)
    assert proves(key, proof(key, "a", "b"), "a", "b")
    assert not proves(key, proof(key, "a", "b"), "b", "a")
    assert not proves(key, "é", "a")
    file.chmod(0o640)
    with pytest.raises(DeviceKeyError, match="others can read"):
        read_key(file)
    short = tmp_path / "short"
    short.touch(mode=0o600)
    short.write_text("secret\n")
    with pytest.raises(DeviceKeyError, match="holds 6 bytes"):
        read_or_make_key(short)
    long = tmp_path / "long"
    long.touch(mode=0o600)
    long.write_bytes(b"x" * 5000)
    with pytest.raises(DeviceKeyError, match="too many bytes"):
        read_key(long)
    os.mkfifo(tmp_path / "pipe", 0o600)
    for wrong in (tmp_path, tmp_path / "pipe", tmp_path / "none", Path("a\0b")):
        with pytest.raises(DeviceKeyError, match=r"cannot read|is not a file"):
            read_key(wrong)
    with pytest.raises(DeviceKeyError, match="cannot make the key file"):
        read_or_make_key(short / "device.key")


def test_a_local_device_has_a_key_that_was_made_for_it(native_target: str) -> None:
    before = set(psutil.Process().children())
    with open_device(DeviceConfig(name="local", target=native_target, threads=1)) as device:
        assert device.ping() > 0
        (server,) = set(psutil.Process().children()) - before
        (port,) = {c.laddr.port for c in server.net_connections() if c.status == psutil.CONN_LISTEN}
        with pytest.raises(SessionRefusedError, match="asks for a key"):
            RpcSession("127.0.0.1", port, timeout_secs=30)


def test_a_served_board_and_a_fleet_file_with_its_key(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fleet_tune", "device", "serve", "--port", "0", "--threads", "1"]
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")}
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment) as board:
        try:
            assert board.stdout is not None
            ready = re.search(r":(\d+) \(1 threads\); clients need the key in (.*)\n", board.stdout.readline())
            assert ready is not None
            (tmp_path / "board.key").write_bytes(Path(ready[2]).read_bytes())
            (tmp_path / "board.key").chmod(0o600)
            (tmp_path / "other.key").write_bytes(new_key())
            (tmp_path / "other.key").chmod(0o600)

            def board_with(key_file: str) -> str:
                file = tmp_path / "fleet.toml"
                file.write_text(f'[[device]]\nname = "board"\nconnect = "127.0.0.1:{ready[1]}"\n{key_file}\n')
                fleet = load_fleet(file)
                with fleet_file_errors(fleet, "board"), open_device(fleet.devices[0]) as device:
                    with contextlib.suppress(DeviceUnreachableError):
                        device.ping()
                    return device.fingerprint().tvm_version

            assert board_with('key_file = "board.key"')
            with pytest.raises(FleetFileError, match=r'line 4: device .* has another key; .*key_file = "FILE"'):
                board_with('key_file = "other.key"')
            with pytest.raises(FleetFileError, match=r"line 4: device .* cannot read the key file .*none.key"):
                board_with('key_file = "none.key"')
        finally:
            board.terminate()


def test_a_refused_device_is_lost_and_says_which_option_it_wants(keyed: DeviceServer, native_target: str) -> None:
    device = RpcDevice(DeviceConfig(name="d", target=native_target), "127.0.0.1", keyed.port)
    with pytest.raises(DeviceUnreachableError, match='key_file = "FILE"'):
        device.ping()
    with pytest.raises(DeviceKeyError, match="asks for a key"):
        device.fingerprint()
    assert default_fleet().devices[0].key_file is None


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ('connect = "local"\nkey_file = "k"', r"line 4: key_file = \"k\" is not valid"),
        ('connect = "h:1"\nkey_file = ""', "line 4: key_file = "),
        ('connect = "h:1"\nkey_file = 5', "line 4: key_file = 5"),
    ],
)
def test_wrong_key_files_of_a_fleet_file(tmp_path: Path, lines: str, problem: str) -> None:
    (tmp_path / "fleet.toml").write_text(f'[[device]]\nname = "d"\n{lines}\n')
    with pytest.raises(FleetFileError, match=problem):
        load_fleet(tmp_path / "fleet.toml")
