"""An embedded Ray cluster. Only the processes that a run uses are started. All of them end with the driver, and listen
on loopback.

``ray.init`` always starts a dashboard's server, an autoscaler's monitor and a log monitor: seconds of processor time
and 250 MB that a run does not use. Its agents load what a dashboard needs. ``ray.init`` has no setting for any of this.

The kernel ends Ray's servers with the driver, but not the processes that the raylet starts. An agent runs on for a
minute and reports to the cluster's server. A worker that is just starting runs on for half a minute, waits for its
raylet and makes the cluster's folder again. So a script of ours starts these processes; it has the kernel end them with
the raylet.

If a version of Ray has other names for these parts, it starts as usual.

Ray serves every client that reaches it, and runs the client's code. On Linux it listens on all addresses, since
machines may join. If its own address is the loopback address, it listens only there."""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from actors.clusters.waiting_signals import Start, let_signals_through

LOOPBACK = "127.0.0.1"
_WITH_PARENT = subprocess.list2cmdline([str(Path(__file__).with_name("with_parent.py"))])
_UNUSED = ("start_api_server", "start_monitor", "start_log_monitor")
# Options of the raylet that contain a command, with the text behind which our script is inserted in the command.
_STARTS = {
    "--dashboard_agent_command=": re.compile(r" -u "),
    "--runtime_env_agent_command=": re.compile(r" -u "),
    "--python_worker_command=": re.compile(r" (?=\S*setup_worker\.py)"),
}
_LOOK_SECS = 0.1
# If this module cannot be imported, Ray assumes an installation without a dashboard.
_DASHBOARD = "ray.dashboard.optional_deps"


@contextlib.contextmanager
def only_what_is_used(start: Start) -> Iterator[None]:
    """Patch Ray while ``ray.init`` starts a cluster on this machine. ``start`` is given the servers that Ray starts."""
    with contextlib.ExitStack() as stack:
        if _DASHBOARD not in sys.modules:
            sys.modules[_DASHBOARD] = None  # type: ignore[assignment]
            stack.callback(sys.modules.pop, _DASHBOARD, None)
        with contextlib.suppress(ImportError, AttributeError):
            node_module = importlib.import_module("ray._private.node")
            node = node_module.Node
            services = importlib.import_module("ray._private.services")
            started = services.start_ray_process
            for name in _UNUSED:
                if hasattr(node, name):
                    stack.enter_context(mock.patch.object(node, name, _not_started))
            stack.enter_context(mock.patch.object(services, "start_ray_process", _with_mortal_children(started, start)))
            utils = importlib.import_module("ray._private.utils")
            name, set_by_ray = "set_kill_on_parent_death_linux", utils.set_kill_on_parent_death_linux
            stack.enter_context(mock.patch.object(utils, name, partial(_end_with, os.getpid(), set_by_ray)))
            # Ray would replace the loopback address with this machine's address.
            stack.enter_context(mock.patch.object(services, "resolve_ip_for_localhost", lambda host: host))
            for module, name in ((node_module, "wait_for_persisted_port"), (services, "get_node")):
                if hasattr(module, name):
                    stack.enter_context(mock.patch.object(module, name, partial(_beside, getattr(module, name))))
        yield


@contextlib.contextmanager
def ended_by_signals(start: Start) -> Iterator[None]:
    """Let signals end ``ray.init`` until its native code connects to the servers. If the servers ended during that
    step, the native code would end this process too. The step is short once the servers run."""
    worker = importlib.import_module("ray._private.worker")
    connect = worker.connect

    def connected(*arguments: Any, **options: Any) -> Any:
        start.commit()
        return connect(*arguments, **options)

    with mock.patch.object(worker, "connect", connected), start.ends_with_signals():
        yield


def _not_started(*_arguments: object, **_options: object) -> None:
    pass


def _end_with(driver: int, set_by_ray: Callable[[], None]) -> None:
    """Prepare a process that the driver has just forked: it ends with the driver, even if the driver was killed before
    the kernel was told."""
    let_signals_through()
    set_by_ray()
    if os.getppid() != driver:
        os._exit(1)


def _beside(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Return what ``function`` returns. It waits for a server in native code, up to half a minute. So it runs in its
    own thread, and a signal can end the start meanwhile."""
    called: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def call() -> None:
        try:
            called.set_result(function(*arguments, **options))
        except BaseException as error:
            called.set_exception(error)

    calling = threading.Thread(target=call, daemon=True, name="start")
    calling.start()
    while calling.is_alive():
        calling.join(_LOOK_SECS)
    return called.result()


def _with_mortal_children(started_by_ray: Callable[..., Any], start: Start) -> Callable[..., Any]:
    """Wrap the function with which Ray starts a server, so that processes that the raylet starts end with the raylet.
    ``start`` is given each server."""

    def started(command: list[str], name: str, *arguments: Any, **options: Any) -> Any:
        with start.undivided():
            information = started_by_ray([_with_parent(part) for part in command], name, *arguments, **options)
            start.servers[name] = information.process
        return information

    return started


def _with_parent(part: str) -> str:
    """Put our script before Ray's in ``--..._command=PYTHON [-u] SCRIPT ...``; return other parts as they are."""
    for option, before in _STARTS.items():
        if part.startswith(option):
            return before.sub(lambda found: f"{found[0]}{_WITH_PARENT} ", part, count=1)
    return part
