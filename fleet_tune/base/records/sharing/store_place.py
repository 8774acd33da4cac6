"""Names of stores as people write them: a file, or the address of a PostgreSQL server with a local copy in a file."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from fleet_tune.base.errors import RequestError

_SCHEMES = ("postgresql://", "postgres://")


@dataclass(frozen=True)
class StorePlace:
    """``path``: the file. ``server``: address, with the key, of the server whose copy the file is; empty for none."""

    path: Path
    server: str = field(default="", repr=False)  # no log may show its password

    @property
    def shown(self) -> str:
        """The name as people see it, without the password."""
        return shown(self.server) if self.server else str(self.path)


def place_of(name: str) -> StorePlace:
    """Return the place of the store with this name: a path, an address, or ``@`` and the path of a file that has the
    address. Raise :class:`RequestError`."""
    if name.startswith("@"):
        name = _read_key_file(Path(name[1:]))
    if not is_address(name):
        return StorePlace(Path(name).absolute())
    try:
        parts = urlsplit(name)
        same = f"{parts.hostname or ''}:{parts.port or 5432}/{parts.path.strip('/')}"
    except ValueError as error:
        raise RequestError(
            f"--store is no address of a server: {error}", "postgresql://user@host:port/database"
        ) from error
    try:
        folder = user_data() / "teams"
    except RuntimeError as error:
        raise RequestError("this user has no home for the copy of a team's store", "set XDG_DATA_HOME") from error
    label = re.sub(r"[^A-Za-z0-9.-]+", "-", parts.hostname or "local")
    digest = hashlib.blake2b(same.encode(), digest_size=4).hexdigest()
    return StorePlace(folder / f"{label}-{digest}.db", name)


def is_address(name: str) -> bool:
    """Return true if this is the address of a server, and no path."""
    return name.startswith(_SCHEMES)


def shown(address: str) -> str:
    """Return an address as people see it: without the password, and without options."""
    parts = urlsplit(address)
    user = f"{parts.username}@" if parts.username else ""
    port = f":{parts.port}" if parts.port else ""
    return f"postgresql://{user}{parts.hostname or ''}{port}{parts.path}"


def user_data() -> Path:
    """Return the folder of this user's stores. Raise RuntimeError if the user has no home."""
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return (data / "fleet-tune").absolute()


def _read_key_file(path: Path) -> str:
    """Return the address in a key file. Raise :class:`RequestError`, also if other users may read the file."""
    try:
        if path.stat().st_mode & 0o077:
            raise RequestError(f"others may read the key file {path}", f"chmod 600 {path}")
        name = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"the key file {path} cannot be read: {error}", "give --store another one") from error
    if not is_address(name):
        raise RequestError(
            f"the key file {path} has no address of a server", "postgresql://user:password@host:port/database"
        )
    return name
