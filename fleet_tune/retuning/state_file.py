"""The file of the service's state. The whole file is written after each step."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from fleet_tune.base.errors import DiskFullError, RetuneError
from fleet_tune.base.records.files.atomic_file import write_atomically
from fleet_tune.base.records.stores.stored_speeds import PROBE
from policies.retuning.state import ServiceState

STATE_FILE = "state.json"
_SCHEMA = 1
_ADAPTER: TypeAdapter[ServiceState] = TypeAdapter(ServiceState)
_NO_SPACE = 28


def load_state(path: Path) -> ServiceState:
    """Return the state in a file, or a new state if there is no file. Raises :class:`RetuneError` if the file cannot be
    read, or is of a newer version."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return ServiceState(probe=PROBE)
    except OSError as error:
        raise RetuneError(f"cannot read {path}: {error.strerror}", "see to its permissions") from error
    try:
        state = _ADAPTER.validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise RetuneError(
            f"{path} cannot be read: {first['msg']} ({where or 'the whole file'})",
            "move it away: versions, records and the store stay, what was spent and seen is forgotten",
        ) from error
    if state.schema_version > _SCHEMA:
        raise RetuneError(f"{path} is of a newer version of fleet-tune", "install that version")
    if state.probe != PROBE:  # the baselines were timed beside another probe: they are timed anew
        for deployment in state.deployments:
            deployment.baselines.clear()
        state.probe = PROBE
    return state


def save_state(path: Path, state: ServiceState) -> None:
    """Write the file atomically. Raises :class:`DiskFullError`, :class:`RetuneError`; the old file is kept then."""
    try:
        write_atomically(path, _ADAPTER.dump_json(state, indent=1))
    except OSError as error:
        if error.errno == _NO_SPACE:
            raise DiskFullError(f"no space left on the disk of {path}", "free some") from error
        raise RetuneError(f"{path} cannot be written: {error.strerror}", "see to the folder's permissions") from error
