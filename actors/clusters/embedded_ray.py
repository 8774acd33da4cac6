"""An embedded Ray cluster with those of Ray's processes alone that a run uses, all of which end with the driver, and
listen on loopback.

``ray.init`` always starts a dashboard's server, an autoscaler's monitor and a log monitor, seconds of processor time
and 250 MB that nobody uses where no one asks for a dashboard, and has its agents load what a dashboard needs. And an
agent whose raylet was killed, as it is when the driver is, goes on for a minute: it tells the cluster's server, which
is gone too. None of it is a setting of ``ray.init``: where a version of Ray has other names for these parts, it starts
as it always does.

Ray serves whoever reaches it, code included. On Linux it listens on all addresses, since machines may join; where its
own address is that of loopback it listens there alone.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

LOOPBACK = "127.0.0.1"
_WITH_PARENT = Path(__file__).with_name("with_parent.py")
_UNUSED = ("start_api_server", "start_monitor", "start_log_monitor")
_AGENTS = ("--dashboard_agent_command=", "--runtime_env_agent_command=")
# Ray takes itself for an installation without a dashboard where this cannot be imported.
_DASHBOARD = "ray.dashboard.optional_deps"


@contextlib.contextmanager
def only_what_is_used() -> Iterator[None]:
    """While ``ray.init`` starts a cluster on this machine."""
    with contextlib.ExitStack() as stack:
        if _DASHBOARD not in sys.modules:
            sys.modules[_DASHBOARD] = None  # type: ignore[assignment]
            stack.callback(sys.modules.pop, _DASHBOARD, None)
        with contextlib.suppress(ImportError, AttributeError):
            node = importlib.import_module("ray._private.node").Node
            services = importlib.import_module("ray._private.services")
            started = services.start_ray_process
            for name in _UNUSED:
                if hasattr(node, name):
                    stack.enter_context(mock.patch.object(node, name, _not_started))
            stack.enter_context(mock.patch.object(services, "start_ray_process", _with_mortal_agents(started)))
            # Ray takes the address of loopback for a mistake, and this machine's in its place.
            stack.enter_context(mock.patch.object(services, "resolve_ip_for_localhost", lambda host: host))
        yield


def _not_started(*_arguments: object, **_options: object) -> None:
    pass


def _with_mortal_agents(start: Callable[..., Any]) -> Callable[..., Any]:
    """``start`` for commands of which parts say how agents are started: those then end with who starts them."""

    def started(command: list[str], *arguments: Any, **options: Any) -> Any:
        return start([_with_parent(part) for part in command], *arguments, **options)

    return started


def _with_parent(part: str) -> str:
    """``--..._agent_command=PYTHON -u SCRIPT ...`` with our script before Ray's; anything else as it is."""
    if not part.startswith(_AGENTS) or " " in str(_WITH_PARENT):
        return part
    return part.replace(" -u ", f" -u {_WITH_PARENT} ", 1)
