"""The server of a dashboard: read-only pages, which show what is new within a second."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, HTTPError, RequestHandler, StaticFileHandler

from fleet_tune.base.errors import RequestError, UserError
from fleet_tune.base.records.sharing.maintenance import StoreMaintenance
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.report.dashboard import pages
from fleet_tune.report.dashboard.runs import RunFolder
from fleet_tune.report.html.page import render_report
from fleet_tune.runs.shared_store.upkeep import store_at, versions_now

_T = TypeVar("_T")
_EVENTS = 200
_STATIC = Path(__file__).parent / "static"
_HERE = ("localhost", "127.0.0.1", "::1")
_POLICY = "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_POLICY_OF_REPORT = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
_PROBLEMS = {
    403: "This dashboard answers under its own address only.",
    404: "There is no such page. A run that was here may have been removed.",
}


class NoPageError(KeyError):
    """There is no page at a path."""


class Site(Protocol):
    """Content of a dashboard. Its methods block, and are called by several threads."""

    def page(self, path: str) -> tuple[str, str, str]:
        """Return the page at ``path``, which begins with a slash: its title, its main part, and the address of the list
        of runs, empty if there is none. Raises :class:`NoPageError` for a path without a page, UserError if the content
        cannot be read."""
        ...

    def report(self, path: str) -> str:
        """Return the report of the run whose page is at a path. Raises as :meth:`page`."""
        ...


class RunSite:
    """Pages of the runs in a folder."""

    def __init__(self, runs: RunFolder) -> None:
        self._runs = runs

    def page(self, path: str) -> tuple[str, str, str]:
        """See :class:`Site`."""
        names = self._runs.names()
        if path == "/" and list(names) != ["."]:
            return self._runs.title, pages.overview(self._runs.look_at_all()), ""
        name = _run_name(path)
        if name not in names:
            raise NoPageError(path)
        run = self._runs.look(name)
        with RecordReader(run.folder / "records.db") as reader:
            events = reader.devices.events(_EVENTS)
        up = "" if name == "." else "/"
        return run.folder.resolve().name, pages.run_page(run, events, f"/report/{quote(name)}"), up

    def report(self, path: str) -> str:
        """See :class:`Site`."""
        folder = self._runs.names().get(_run_name(path))
        if folder is None:
            raise NoPageError(path)
        return render_report(folder)


class StoreSite:
    """The page of a record store. ``store``: its file. Raises RecordStoreError if there is none."""

    def __init__(self, store: Path) -> None:
        self._store = store_at(store)

    def page(self, path: str) -> tuple[str, str, str]:
        """See :class:`Site`."""
        if path != "/":
            raise NoPageError(path)
        with StoreMaintenance(self._store) as reader:
            main = pages.store_page(reader.top(versions_now()), reader.statistics())
        return self._store.name, main, ""

    def report(self, path: str) -> str:
        """See :class:`Site`: a store has none."""
        raise NoPageError(path)


class RetuneSite:
    """The page of ``fleet-tune retune``. ``file``: its configuration."""

    def __init__(self, file: Path) -> None:
        from fleet_tune.base.config.retune_file import load_retune

        self._file, self._config = file, load_retune(file)

    def page(self, path: str) -> tuple[str, str, str]:
        """See :class:`Site`."""
        from fleet_tune.report.retuning import status_json
        from fleet_tune.retuning.children import moment_at
        from fleet_tune.retuning.running import is_running, read_only

        if path != "/":
            raise NoPageError(path)
        status = status_json(read_only(self._config), moment_at(time.time()), is_running(self._config))
        return self._file.name, pages.retune_page(json.loads(status)), ""

    def report(self, path: str) -> str:
        """See :class:`Site`: a service has none."""
        raise NoPageError(path)


def site_of(path: Path) -> Site:
    """Return the pages of a folder of runs, of a file of ``fleet-tune retune`` (``.toml``), or of a record store.

    Raises :class:`RequestError` for a folder without runs, and the errors of the file or the store.
    """
    if path.is_dir():
        folder = RunFolder(path)
        if not folder.names():
            next_step = "name the output folder of a run ('fleet-tune tune --out'), or a folder above such folders"
            raise RequestError(f"{path} has no run in it", next_step)
        return RunSite(folder)
    return RetuneSite(path) if path.suffix == ".toml" else StoreSite(path)


class _Handler(RequestHandler):
    """A page for GET requests to this dashboard's own address."""

    def initialize(self, site: Site, host: str) -> None:
        self._site, self._host = site, host

    def set_default_headers(self) -> None:
        self.set_header("Content-Security-Policy", _POLICY)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Cache-Control", "no-cache")

    def prepare(self) -> None:
        # Against DNS rebinding: a foreign page must not read this one under a host name that resolves to this machine.
        if self.request.host_name.strip("[]") not in (*_HERE, self._host) and self._host in _HERE:
            raise HTTPError(403)

    def write_error(self, status_code: int, **_: Any) -> None:
        self.finish(pages.whole_page(str(status_code), pages.problem(_PROBLEMS.get(status_code, self._reason)), "/"))

    async def _made(self, make: Callable[[str], _T], path: str) -> _T:
        try:
            return await asyncio.to_thread(make, path)
        except NoPageError:
            raise HTTPError(404) from None


class _Page(_Handler):
    async def get(self, path: str) -> None:
        try:
            title, main, up = await self._made(self._site.page, path)
        except UserError as error:  # damaged, or gone: it may come back
            title, main, up = "fleet-tune", pages.problem(str(error)), "/"
        # A browser that shows the page already asks for its main part only.
        self.write(main if self.get_argument("part", "") else pages.whole_page(title, main, up))


class _Report(_Handler):
    def set_default_headers(self) -> None:
        super().set_default_headers()
        self.set_header("Content-Security-Policy", _POLICY_OF_REPORT)

    async def get(self, path: str) -> None:
        try:
            self.write(await self._made(self._site.report, path))
        except UserError as error:
            self.write(pages.whole_page("fleet-tune", pages.problem(str(error)), "/"))


class _Static(StaticFileHandler):
    def set_extra_headers(self, path: str) -> None:  # noqa: ARG002
        self.set_header("X-Content-Type-Options", "nosniff")


async def serve(site: Site, host: str, port: int, ready: Callable[[int], None]) -> None:
    """Serve the pages of a site until this is cancelled.

    Args:
        site: the pages.
        host: address of this machine.
        port: 0 for any that is free.
        ready: is called with the port once it answers.

    Raises :class:`RequestError` if the port cannot be opened.
    """
    common = {"site": site, "host": host}
    application = Application(
        [
            (r"/static/(.*)", _Static, {"path": _STATIC}),
            (r"/report(/.*)", _Report, common),
            (r"(/.*)", _Page, common),
        ],
        log_function=lambda _: None,
    )
    try:
        sockets = bind_sockets(port, host)
    except OSError as error:
        problem = f"port {port} of {host} cannot be opened: {error.strerror or error}"
        raise RequestError(problem, "name another with --port") from error
    server = HTTPServer(application)
    server.add_sockets(sockets)
    ready(sockets[0].getsockname()[1])
    try:
        await asyncio.Event().wait()
    finally:
        server.stop()
        await server.close_all_connections()


async def serve_until_signal(site: Site, host: str, port: int, ready: Callable[[int], None]) -> int:
    """:func:`serve` until SIGINT or SIGTERM. Return the exit status of the command: 0 for Ctrl-C."""
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def end(number: int) -> None:
        if not ended.done():
            ended.set_result(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    serving = asyncio.ensure_future(serve(site, host, port, ready))
    serving.add_done_callback(lambda _: end(0))
    await ended
    serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving
    return 0 if ended.result() == signal.SIGINT else 128 + ended.result()


def _run_name(path: str) -> str:
    return path.removeprefix("/") or "."
