"""``fleet-tune store``: the server of a team's store, and its keys."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType

import click

from fleet_tune.cli.options import WholeNumber, json_option
from fleet_tune.report.json_output import json_line

# Limits of PostgreSQL: the largest bigint, and its number of processes.
_MOST_RECORDS, _MOST_CONNECTIONS = 2**63 - 1, 2**18 - 1
_folder = click.argument("folder", type=click.Path(path_type=Path))


@click.group(short_help="A team's store on a server.")
def store() -> None:
    """The store of a team on a server: see 'tune --store postgresql://...'."""


@store.command(short_help="Serve a store until Ctrl-C or SIGTERM.")
@_folder
@click.option(
    "--bind", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on; '*': every one."
)
@click.option("--port", type=WholeNumber(1, 65535), default=5432, show_default=True)
@click.option("--host", default="", metavar="NAME", help="Name by which others reach it, for their keys.")
def serve(folder: Path, bind: str, port: int, host: str) -> int:
    """Serve the store in FOLDER until Ctrl-C or SIGTERM: a PostgreSQL of its own, made where there is none."""
    from fleet_tune.base.config import values
    from fleet_tune.base.errors import RequestError
    from fleet_tune.store_server.postgres_server import PostgresServer

    if host and not values.is_host(host):
        raise RequestError(f"--host {values.shown(host)} is not the name or address of a host", "give another")
    if bind == "*" and not host:
        import socket

        host = socket.gethostname()
    ended: list[int] = []
    serving: list[PostgresServer] = []

    def end(number: int, _: FrameType | None) -> None:
        if not serving:  # the server is being made or started: the exception cleans up
            raise SystemExit(128 + number)
        ended.append(number)
        serving[0].ask_to_end()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with PostgresServer(folder, bind, port, host) as server:
            serving.append(server)
            shown, at = server.folder.address
            encrypted = "" if server.folder.encrypts else "; nothing is encrypted: there was no openssl"
            click.echo(f"serving {folder} on {shown}:{at}{encrypted}; 'fleet-tune store key' makes keys")
            status = server.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if ended:
        return 128 + ended[0]
    click.echo(f"error: PostgreSQL has ended with status {status}", err=True)
    click.echo(f"next: look at {folder / 'server.log'}", err=True)
    return 2


@store.command(short_help="Make or change a key of a store.")
@_folder
@click.argument("name")
@click.option(
    "--records",
    type=WholeNumber(0, _MOST_RECORDS),
    metavar="N",
    help="Most records that it may add. Default: no limit.",
)
@click.option(
    "--connections",
    type=WholeNumber(1, _MOST_CONNECTIONS),
    metavar="N",
    help="Most connections at a time. Default: no limit.",
)
@click.option("--remove", is_flag=True, help="Remove the key; its records stay.")
@json_option
def key(folder: Path, name: str, records: int | None, connections: int | None, remove: bool, as_json: bool) -> None:
    """Make the key NAME for the store that is served from FOLDER, or change its limits; print its file."""
    from fleet_tune.store_server.keys import put_key, remove_key
    from fleet_tune.store_server.server_folder import ServerFolder

    served = ServerFolder(folder.absolute())
    if remove:
        remove_key(served, name)
        told, body = f"the key {name} is removed", {"key": name, "removed": True, "file": None}
    else:
        path = put_key(served, name, records, connections)
        told = f"{path}: give it to who uses it, for --store @FILE"
        body = {"key": name, "removed": False, "file": str(path)}
    click.echo(json_line(body) if as_json else told)


@store.command("keys", short_help="Print the keys of a store.")
@_folder
@json_option
def keys_command(folder: Path, as_json: bool) -> None:
    """Print the keys of the store that is served from FOLDER, what they have added and what they may."""
    from fleet_tune.store_server.keys import keys
    from fleet_tune.store_server.server_folder import ServerFolder

    found = keys(ServerFolder(folder.absolute()))
    if as_json:
        body = {
            each.name: {"records": each.records, "most_records": each.most_records, "connections": each.connections}
            for each in found
        }
        click.echo(json_line({"keys": body}))
        return
    for each in found:
        most = "" if each.most_records is None else f" of {each.most_records}"
        click.echo(f"{each.name}: {each.records}{most} records, {each.connections or 'any number of'} connections")
