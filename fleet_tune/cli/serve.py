"""``fleet-tune device serve``: the command for boards, which have Python, numpy and apache-tvm and nothing else.

This module therefore imports nothing else (not even click). The rest of the command line passes its arguments on to it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from fleet_tune.base.config import values
from fleet_tune.base.errors import UserError
from fleet_tune.base.ports import SERVER_PORT

if TYPE_CHECKING:
    from devices.host.limits.confinement import SessionLimits
    from devices.server.registration import TrackerAddress

PROGRAM = "fleet-tune device serve"
# The rule that ends a measurement. It runs beside the kernel, in the device server. It is given by name, so that a
# board loads the rule's module only.
_STOP_DECISION = "policies.measuring.adaptive_stopping:decide"
_MOST_BYTES = 1 << 62
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class ServeOptionError(UserError):
    """The command line is wrong: give other options."""


class _Parser(argparse.ArgumentParser):
    """Raises mistakes as :class:`ServeOptionError`, without argparse's usage text."""

    def error(self, message: str) -> NoReturn:
        raise ServeOptionError(message, f"{PROGRAM} --help lists what is accepted")


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    options = _Parser(
        prog=PROGRAM,
        allow_abbrev=False,
        description="Serve this machine as a device until Ctrl-C or SIGTERM.",
        epilog="Whoever reaches the port and has the key can run code here as this user, or as --user. What they send "
        "is plain text: listen on other addresses than 127.0.0.1 only in a network that you trust.",
    )
    add = options.add_argument
    add(
        "--bind",
        "--host",
        type=_host,
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address to listen on (default: 127.0.0.1)",
    )
    add(
        "--port",
        type=_WholeNumber(0, 65535),
        default=SERVER_PORT,
        help=f"port to listen on; 0 takes a free one (default: {SERVER_PORT})",
    )
    add("--threads", type=_WholeNumber(1, 4096), help="threads that a kernel runs on (default: all usable cores)")
    add(
        "--key-file",
        metavar="FILE",
        help="file of the key that clients must have; made where there is none (default: "
        "~/.config/fleet-tune/device.key)",
    )
    add("--no-key", action="store_true", help="serve every client that reaches the port, TVM's own clients too")
    add(
        "--tracker",
        metavar="HOST:PORT",
        help="TVM RPC tracker to register at, and to register at again when it restarts",
    )
    add("--key", metavar="KEY", help="with --tracker: what kind of device this is")
    add(
        "--advertise",
        type=_host,
        metavar="HOST",
        help="with --tracker: the host that clients are told (default: the one listened on)",
    )
    add("--user", metavar="NAME", help="run what clients reach as this user (needs root)")
    add("--max-upload", type=_size, metavar="SIZE", help="bytes of files that a session may have here (default: 256M)")
    add(
        "--no-realtime",
        action="store_true",
        help="do not time kernels at real-time priority (default: where this user may)",
    )
    add("--memory", type=_size, metavar="SIZE", help="bytes that a session may allocate (default: 3/4 of the memory)")
    return options


def main(arguments: Sequence[str]) -> int:
    """Serve until stopped. Return the exit code: 0, or 2 for a mistake, which is reported in two lines."""
    try:
        _serve(parser().parse_args(list(arguments)))
    except UserError as error:
        for label, text in (("error", error.problem), ("next", error.next_step)):
            print(f"{label}: {' '.join(text.split())}", file=sys.stderr)
        return 2
    except SystemExit as ended:  # --help
        return int(ended.code or 0)
    return 0


def _serve(options: argparse.Namespace) -> None:
    if (options.tracker is None) != (options.key is None):
        raise ServeOptionError("--tracker and --key go together", "give both, or none to be reached directly")
    if options.advertise is not None and options.tracker is None:
        raise ServeOptionError(
            "--advertise is what a tracker tells clients", "give --tracker and --key too, or leave it"
        )
    if options.no_key and options.key_file is not None:
        raise ServeOptionError("--no-key and --key-file contradict each other", "give one of them")
    from devices.server import server

    server.serve(
        options.bind,
        options.port,
        threads=options.threads,
        decide=_STOP_DECISION,
        announce=lambda line: print(line, flush=True),
        key_file=None if options.no_key else _key_file(options.key_file),
        tracker=None if options.tracker is None else _tracker(options),
        limits=_limits(options),
        user=options.user,
        realtime=not options.no_realtime,
        log=lambda line: print(line, file=sys.stderr, flush=True),
    )


def _key_file(given: str | None) -> Path:
    from devices.rpc.keys import default_key_file

    return default_key_file() if given is None else Path(given)


def _tracker(options: argparse.Namespace) -> TrackerAddress:
    from devices.server.registration import TrackerAddress

    host, port = _address(options.tracker)
    if not re.fullmatch(r"[^\s:/]+", options.key):
        raise ServeOptionError(f"--key {options.key!r} is not a key", "give a word without colons and slashes")
    # A server that listens on one address advertises that one. If it listens on all, the tracker uses the address from
    # which the server connects.
    everywhere = options.bind in ("0.0.0.0", "::")
    return TrackerAddress(host, port, options.key, options.advertise or (None if everywhere else options.bind))


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        if values.is_host(host) and colon:
            return host, values.digits(port, 1, values.MAX_PORT)
    except ValueError:
        pass
    raise ServeOptionError(f"--tracker {values.shown(text)} is no address", "give HOST:PORT, as in 192.168.1.2:9190")


def _limits(options: argparse.Namespace) -> SessionLimits:
    from devices.host.limits.confinement import SessionLimits, default_limits

    usual = default_limits()
    return SessionLimits(options.max_upload or usual.upload_bytes, options.memory or usual.memory_bytes)


def _host(text: str) -> str:
    if values.is_host(text):
        return text
    raise argparse.ArgumentTypeError(f"{values.shown(text)} is not the name or address of a host")


class _WholeNumber:
    """Parses a whole number within limits; argparse puts the message of the error into its own."""

    def __init__(self, low: int, high: int) -> None:
        self._low = low
        self._high = high

    def __call__(self, text: str) -> int:
        try:
            return values.digits(text, self._low, self._high)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error


def _size(text: str) -> int:
    """Return the number of bytes of ``1000``, ``64M``, ``2G``."""
    match = re.fullmatch(r"([0-9]{1,18})([KMG]?)", text.strip().upper())
    size = int(match[1]) * _UNITS[match[2]] if match is not None else 0
    if not 0 < size <= _MOST_BYTES:
        raise argparse.ArgumentTypeError(f"{values.shown(text)} is not a size: give bytes, or a number with K, M or G")
    return size
