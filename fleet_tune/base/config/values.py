"""Checks of options, keys and arguments of the Python API: numbers in their ranges, paths, flags.

Every wrong value gives one line that says what is allowed and where the value is given. The module needs no other
packages, because a board checks its options with it.
"""

from __future__ import annotations

import numbers
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fleet_tune.base.errors import RequestError

# Limits that fit the tables and timers of all libraries below: 31 years, and more trials than anybody will make.
MOST_SECS = 1e9
MOST_TRIALS = 10**9
MAX_SEED = 2**32 - 1
MAX_PORT = 65535
_MOST_DIGITS = 18
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%\w]+\]|[\w.-]+):(\d{1,5})", re.ASCII)
_MOST_HOST = 253  # characters of a name in the DNS
_SHOWN_CHARACTERS = 60


def shown(value: object) -> str:
    """Return any value as text for a message: one short line."""
    try:
        text = repr(value)
    except Exception:  # a number with more digits than Python writes, or somebody's own __repr__
        return f"a {type(value).__name__}"
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."


def whole_number(what: str, value: Any, low: int, high: int, option: str) -> int:
    """Return ``value`` as a whole number from ``low`` to ``high``. Raise :class:`RequestError`."""
    if isinstance(value, numbers.Integral) and not isinstance(value, bool) and low <= int(value) <= high:
        return int(value)
    raise RequestError(
        f"{what} is a whole number from {low} to {high}, not {shown(value)}", f"give another with {option}"
    )


def seconds(what: str, value: Any, option: str) -> float:
    """Return ``value`` as a number of seconds: above 0, and finite. Raise :class:`RequestError`."""
    if _is_real(value) and 0 < value <= MOST_SECS and float(value) > 0:
        return float(value)
    raise RequestError(
        f"{what} is a positive, finite number of seconds, at most {MOST_SECS:g}, not {shown(value)}",
        f"give one with {option}, as 90s, 5m or 1h30m",
    )


def number(what: str, value: Any, low: float, high: float, option: str) -> float:
    """Return ``value`` as a number from ``low`` to ``high``. Raise :class:`RequestError`."""
    if _is_real(value) and low <= value <= high:
        return float(value)
    raise RequestError(
        f"{what} is a number from {low:g} to {high:g}, not {shown(value)}", f"give another with {option}"
    )


def share(what: str, value: Any, option: str) -> float:
    """Return ``value`` as a number from 0 to 1. Raise :class:`RequestError`."""
    return number(what, value, 0, 1, option)


def _is_real(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def path(what: str, value: Any, option: str) -> Path:
    """Return ``value`` as a path that a system call takes. Raise :class:`RequestError`."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else value
    if not isinstance(text, str) or not text or "\0" in text:
        raise RequestError(f"{what} is a path, not {shown(value)}", f"give one with {option}")
    return Path(text)


def flag(what: str, value: Any, option: str) -> bool:
    """Return ``value`` if it is True or False. Raise :class:`RequestError`."""
    if isinstance(value, bool):
        return value
    raise RequestError(f"{what} is true or false, not {shown(value)}", f"see {option}")


def callback(what: str, value: Any, option: str) -> None:
    """Raise :class:`RequestError` if ``value`` is neither None nor callable."""
    if value is not None and not callable(value):
        raise RequestError(f"{what} is a function, not {shown(value)}", f"see {option}")


def cluster_address(value: Any) -> str | None:
    """Return ``value`` as the address of a Ray cluster; ``None`` stands for no cluster. Raise
    :class:`RequestError`."""
    if value is None or (isinstance(value, str) and value == "auto"):
        return value
    match = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if match is None or not is_host(match[1].strip("[]")) or not 1 <= int(match[2]) <= MAX_PORT:
        raise RequestError(
            f"the address of a Ray cluster is HOST:PORT, or auto for the one of this machine, not {shown(value)}",
            "give another with --address, or none for an embedded cluster",
        )
    return str(value)


def listening_host(value: Any) -> str:
    """Return ``value`` as an address on which to listen. Raise :class:`RequestError`."""
    if not isinstance(value, str) or not is_host(value):
        raise RequestError(
            f"the address of the metrics is one of this machine, as 0.0.0.0 for all of them, not {shown(value)}",
            "give another with --metrics-host",
        )
    return value


def gateway(value: Any) -> str:
    """Return ``value`` as the address of a push gateway. Raise :class:`RequestError`."""
    text = value if isinstance(value, str) else ""
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        well = parts.scheme in ("http", "https") and is_host(parts.hostname or "") and (parts.port or 1) >= 1
    except ValueError:  # an invalid port
        well = False
    if not well:
        raise RequestError(
            f"the address of a push gateway is HOST:PORT or its URL, not {shown(value)}",
            "give another with --metrics-push",
        )
    return text


def is_host(text: str) -> bool:
    """Return true if ``text`` can be the name or address of a host. For other text, such as ``a..b``, a look-up raises
    an error other than OSError."""
    try:
        return 0 < len(text.encode("idna")) <= _MOST_HOST and text.isprintable() and not re.search(r"\s", text)
    except UnicodeError:
        return False


def digits(text: str, low: int, high: int) -> int:
    """Return the whole number that ``text`` writes in digits. Raise ValueError if it is not one from ``low`` to
    ``high``."""
    if re.fullmatch(rf"\d{{1,{_MOST_DIGITS}}}", text, re.ASCII) is None or not low <= int(text) <= high:
        raise ValueError(f"{shown(text)} is not a number from {low} to {high}")
    return int(text)


_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_NUMBER = r"(\d{1,18}(?:\.\d{1,18})?)"
_DURATION = re.compile(rf"(?:{_NUMBER}d)?(?:{_NUMBER}h)?(?:{_NUMBER}m)?(?:{_NUMBER}s?)?", re.ASCII)


def duration(text: str) -> float:
    """Return the seconds of ``300``, ``5m``, ``1h30m``, ``1.5h``, ``2d``. Raise :class:`RequestError` for anything
    else or 0."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is not None:
        parts = zip(match.groups(), _UNITS.values(), strict=True)
        secs = sum(float(number) * unit for number, unit in parts if number is not None)
        if 0 < secs <= MOST_SECS:
            return secs
    raise RequestError(f"{shown(text)} is not a duration", "give seconds, or a form like 90s, 5m or 1h30m")
