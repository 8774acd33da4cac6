"""An embedded Ray cluster: only the processes that a run uses are started; all end with the driver, and listen on
loopback.

``ray.init`` always starts a dashboard's server, an autoscaler's monitor and a log monitor: seconds of processor time
and 250 MB that a run does not use. Its agents load what a dashboard needs. An agent whose raylet was killed, as it is
when the driver is, also goes on for a minute, in which it reports to the cluster's server, which is gone too.
``ray.init`` has no setting for any of this. Where a version of Ray has other names for these parts, it starts as it
always does.

Ray serves every client that reaches it, and runs its code. On Linux it listens on all addresses, since machines may
join; where its own address is that of loopback, it listens there alone."""

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
# Ray takes its installation for one without a dashboard where this cannot be imported.
_DASHBOARD = "ray.dashboard.optional_deps"


@contextlib.contextmanager
def only_what_is_used() -> Iterator[None]:
    """Patch Ray while ``ray.init`` starts a cluster on this machine."""
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
            # Ray would replace the address of loopback by this machine's.
            stack.enter_context(mock.patch.object(services, "resolve_ip_for_localhost", lambda host: host))
        yield


def _not_started(*_arguments: object, **_options: object) -> None:
    pass


def _with_mortal_agents(start: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``start``: agents that its commands name end with their parent."""

    def started(command: list[str], *arguments: Any, **options: Any) -> Any:
        return start([_with_parent(part) for part in command], *arguments, **options)

    return started


def _with_parent(part: str) -> str:
    """Put our script before Ray's in ``--..._agent_command=PYTHON -u SCRIPT ...``; return other parts as they are."""
    if not part.startswith(_AGENTS) or " " in str(_WITH_PARENT):
        return part
    return part.replace(" -u ", f" -u {_WITH_PARENT} ", 1)
