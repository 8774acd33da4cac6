"""The key of a device server: a secret that its clients have too. It is never sent and never logged.

Server and client prove to each other that they know it (:mod:`devices.rpc.handshake`): each sends a fresh random
number, and the other side answers with its HMAC-SHA256 under the key. So a listener or a fake server does not learn the
key, and a recorded handshake cannot be used again. The rest of the connection is TVM's, in plain text.

A key is kept in a file that only its owner can read. This module needs only Python.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from fleet_tune.base.errors import DeviceKeyError

_KEY_BYTES = 32
_LEAST_BYTES, _MOST_BYTES = 16, 4096


def new_key() -> bytes:
    """Return a fresh key."""
    return secrets.token_hex(_KEY_BYTES).encode()


def new_challenge() -> str:
    """Return a number that was never used before, in hexadecimal digits."""
    return secrets.token_hex(16)


def proof(key: bytes, *said: str) -> str:
    """Return the answer to ``said`` that only somebody who knows ``key`` can give, in hexadecimal digits."""
    return hmac.new(key, "\n".join(said).encode(), hashlib.sha256).hexdigest()


def proves(key: bytes, given: str, *said: str) -> bool:
    """Return true if ``given`` is the proof of ``said``; takes the same time for every wrong proof."""
    return hmac.compare_digest(given.encode(errors="replace"), proof(key, *said).encode())


def default_key_file() -> Path:
    """Return ``~/.config/fleet-tune/device.key``, for the servers and the runs of one user. Raises DeviceKeyError if
    the user has no home folder."""
    try:
        base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    except RuntimeError as error:
        raise DeviceKeyError("this user has no home folder to keep a key in", "name a file with --key-file") from error
    return Path(base) / "fleet-tune" / "device.key"


def read_key(path: Path) -> bytes:
    """Return the key in the file at ``path``.

    Raises DeviceKeyError if it cannot be read, is not a regular file, others may access it, or it has too few or too
    many bytes for a key.
    """
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise DeviceKeyError(f"the key file {path} is not a file", "give the file that the server made")
            if found.st_mode & 0o077:
                raise DeviceKeyError(f"others can read the key file {path}", f"chmod 600 {path}")
            key = file.read(_MOST_BYTES + 1).strip()
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        reason = getattr(error, "strerror", None) or error
        raise DeviceKeyError(
            f"cannot read the key file {path} ({reason})", "copy the server's key file here"
        ) from error
    if not _LEAST_BYTES <= len(key) <= _MOST_BYTES:
        raise DeviceKeyError(
            f"the key file {path} holds {len(key) if len(key) <= _MOST_BYTES else 'too many'} bytes",
            f"a key has {_LEAST_BYTES} to {_MOST_BYTES}: copy the server's key file here; where this is the server, "
            "remove the file, and it makes a new one",
        )
    return key


def read_or_make_key(path: Path) -> bytes:
    """Return the key in the file at ``path``. If there is no file, make one that only its owner can read. Raises
    DeviceKeyError."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                file.write(new_key() + b"\n")
        except OSError:
            path.unlink()
            raise
    except (OSError, ValueError) as error:
        if isinstance(error, ValueError) or not path.exists():
            reason = getattr(error, "strerror", None) or error
            raise DeviceKeyError(
                f"cannot make the key file {path} ({reason})", "name another file with --key-file"
            ) from error
    return read_key(path)


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe would wait for its other end
