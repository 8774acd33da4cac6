"""A child process that answers one request after another (:mod:`devices.host.warm_child`), seen from its parent. It is
started when it is needed; another one replaces it after a crash or a hang."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from devices.host.children.child import ChildProcess
from devices.host.children.exit_causes import ended_from_outside
from devices.host.quiet_windows.process_pauser import PauseRegistration
from devices.host.quiet_windows.quiet_window import QuietWindow
from fleet_tune.base.errors import UserError

_START_SECS = 120.0
# One child that is killed from outside before it is ready does not show a fault of the installation, but so many do.
_KILLS = 3
MEND_INSTALLATION = "check free memory (dmesg), and the installation: the versions of requirements.lock"
"""The next step if a child process does not start."""


class ChildStartError(UserError):
    """A child process could not be started: mend the installation, or free memory."""


class ChildLostError(Exception):
    """A child process ended, or gave no answer in time; the text says how, in one line.

    ``late``: true if it gave no answer in time.
    """

    def __init__(self, reason: str, late: bool) -> None:
        super().__init__(reason)
        self.late = late


class WarmProcess:
    """One child process at a time. Not thread-safe, except for :meth:`close`.

    Args:
        module: module that the child runs.
        does: its purpose, for errors ("lowers networks").
        arguments: its command line.
        env: variables on top of this process' own.
        answer_secs: seconds without an answer after which a child counts as hung.
        window: quiet window that stops the child; seconds in which it stands still do not count.
    """

    def __init__(
        self,
        module: str,
        does: str,
        arguments: Sequence[str],
        env: Mapping[str, str],
        *,
        answer_secs: float,
        window: QuietWindow | None = None,
    ) -> None:
        self._module = module
        self._does = does
        self._arguments = arguments
        self._env = env
        self._answer_secs = answer_secs
        self._window = window
        self._clock = time.monotonic if window is None else window.clock
        self._child: ChildProcess | None = None
        self._stoppable: PauseRegistration | None = None
        self._ready = False
        self._closed = False

    def start(self) -> None:
        """Start the child if there is none. This waits for the end of an open quiet window, but not until the child is
        ready. Raises :class:`ChildStartError`."""
        if self._closed:
            raise self._closed_error()
        if self._child is None:
            try:
                start = partial(ChildProcess, self._module, self._arguments, self._env)
                if self._window is None:
                    self._child = start()
                else:
                    self._child, self._stoppable = self._window.started(start)
            except OSError as error:  # no memory, no processes, no descriptors left
                raise ChildStartError(
                    f"the process that {self._does} cannot be started: {error}", "free memory, or end other processes"
                ) from error
            self._ready = False

    def send(self, request: Mapping[str, Any]) -> None:
        """Send a request. Raises :class:`ChildStartError`, after which the next request starts another child, and
        :class:`ChildLostError`."""
        child = self._ready_child()
        try:
            child.channel.send(request)
        except OSError as error:
            raise self._lost(error) from error

    def receive(self) -> dict[str, Any]:
        """Return the next answer. Raises :class:`ChildLostError`, and :class:`ChildStartError` after :meth:`close`."""
        child = self._ready_child()
        try:
            return child.channel.receive(self._answer_secs, self._clock)
        except (EOFError, OSError) as error:
            raise self._lost(error) from error

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return the answer; see :meth:`send` and :meth:`receive`."""
        self.send(request)
        return self.receive()

    def close(self) -> None:
        """End the child, also while another thread waits for its answer."""
        self._closed = True
        self.end()

    def end(self) -> None:
        """End the child; the next request starts another."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
        stoppable, self._stoppable = self._stoppable, None
        if stoppable is not None:
            stoppable.close()

    def _started(self) -> ChildProcess:
        self.start()
        child = self._child
        if child is None:  # closed by another thread
            raise self._closed_error()
        return child

    def _ready_child(self) -> ChildProcess:
        child = self._started()
        kills = 0
        while not self._ready:
            try:
                child.channel.receive(_START_SECS, self._clock)
            except (EOFError, OSError) as error:
                late = isinstance(error, TimeoutError)
                reason = f"not within {_START_SECS:g} s" if late else child.obituary()
                self.end()
                kills += 1
                if ended_from_outside(reason) and kills < _KILLS and not self._closed:
                    child = self._started()
                    continue
                raise ChildStartError(
                    f"the process that {self._does} did not start: {reason}", MEND_INSTALLATION
                ) from error
            else:
                self._ready = True
        return child

    def _closed_error(self) -> ChildStartError:
        return ChildStartError(f"the process that {self._does} is closed", "run again")

    def _lost(self, error: Exception) -> Exception:
        child, late = self._child, isinstance(error, TimeoutError)
        if self._closed or child is None:
            return self._closed_error()
        if late:
            reason = f"its process gave no answer within {self._answer_secs:g} s"
        else:
            how, _, _ = child.obituary().partition('; File "')  # a line of a stack says nothing
            reason = f"its process ended: {how}"
        self.end()
        return ChildLostError(reason, late)
