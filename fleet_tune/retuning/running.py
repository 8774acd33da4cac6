"""The service as a process: its signals, log and metrics; and functions that other processes may call while it runs."""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from fleet_tune.base.config.retune_file import RetuneConfig, load_retune
from fleet_tune.base.errors import RetuneError, RetuneFileError, UserError
from fleet_tune.base.records.files.lock_file import LockedError, release_lock, take_lock
from fleet_tune.retuning.children import LOGS, ProcessStepRunner
from fleet_tune.retuning.service import (
    LOCK_FILE,
    Service,
    call_hook,
    check_networks,
    differences,
    held,
    repository_of,
    rules_of,
)
from fleet_tune.retuning.state_file import STATE_FILE, load_state
from fleet_tune.retuning.version_repository import PublishedVersion
from policies.retuning.retuner import Retuner

LOG_BYTES, LOG_FILES = 1 << 20, 5
_AGAIN_SECS = 30.0
_LOG = logging.getLogger("fleet_tune.retuning")


def run_service(config: RetuneConfig, once: bool = False) -> int:
    """Run the service until SIGINT or SIGTERM and return the signal's number, 0 for none. ``once``: see
    :meth:`Service.run`. Raises :class:`UserError`."""
    stop = threading.Event()
    signals: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        signals.append(number)
        stop.set()

    problems = check_networks(config, ProcessStepRunner(config, stop))
    if len(problems) == len(config.networks):
        raise RetuneFileError(f"no network of {config.source.path} can be read: {problems[0]}", "correct its path")
    changes = ConfigWatch(config)
    with contextlib.ExitStack() as outer:
        check_sole_owner = outer.enter_context(
            held(config)
        )  # before the log is opened: a second service must change nothing
        for number in (signal.SIGINT, signal.SIGTERM):
            outer.callback(signal.signal, number, signal.signal(number, on_signal))
        outer.enter_context(_logged(config.folder / LOGS))
        has_served = False
        while True:
            try:
                _serve(changes, stop, check_sole_owner, once)
            except UserError as error:
                if not has_served or once or isinstance(error, RetuneError):  # another service has the store
                    raise
                # A running service goes on after an error of a changed file, or one that may pass, such as a full disk.
                _LOG.error("nothing is kept tuned, and it is tried again in %.0f s: %s", _AGAIN_SECS, error)
                stop.wait(_AGAIN_SECS)
                changes()
            has_served = True
            if stop.is_set() or once:
                break
        if signals:
            _LOG.info("ended by %s", signal.Signals(signals[0]).name)
    return signals[0] if signals else 0


def _serve(changes: ConfigWatch, stop: threading.Event, check_sole_owner: Callable[[], None], once: bool) -> None:
    """Keep the networks of the file tuned until the service is stopped, or the file changes. Raises
    :class:`UserError`."""
    config, steps = changes.config, ProcessStepRunner(changes.config, stop)
    with contextlib.ExitStack() as stack:
        service = Service(config, steps, changes, check_sole_owner)
        if config.metrics_port is not None:
            from fleet_tune.retuning.metrics import RetuneMetrics

            stack.callback(RetuneMetrics(service, steps, config.metrics_port, config.metrics_host).close)
        _LOG.info("keeping %d networks tuned in %s", len(config.networks), config.folder)
        service.run(once)


class ConfigWatch:
    """Watch on the service's own file and its fleet file. A call returns true if a file has changed since it was read.

    ``config`` is the present content. If a changed file cannot be read, or names another folder or store, this is
    reported once and the last content stays.
    """

    def __init__(self, config: RetuneConfig) -> None:
        self.config = config
        self._stamps = self._looked()

    def __call__(self) -> bool:
        stamps = self._looked()
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        path = self.config.source.path
        try:
            config = load_retune(path)
        except UserError as error:
            _LOG.warning("the file is used as it was: %s", error)
            return False
        if (config.folder, config.store) != (self.config.folder, self.config.store):
            _LOG.warning("%s names another folder or store: start the service again for it", path)
            return False
        self.config = config
        self._stamps = self._looked()  # it may name another fleet file
        return True

    def _looked(self) -> list[tuple[int, int] | None]:
        stamps: list[tuple[int, int] | None] = []
        for path in (self.config.source.path, self.config.fleet_path):
            try:
                status = None if path is None else path.stat()
            except OSError:
                status = None
            stamps.append(None if status is None else (status.st_mtime_ns, status.st_size))
        return stamps


@contextlib.contextmanager
def _logged(folder: Path) -> Iterator[None]:
    """Write the log to stderr, and to files of at most 6 MB together."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = logging.handlers.RotatingFileHandler(folder / "service.log", maxBytes=LOG_BYTES, backupCount=LOG_FILES)
    handlers: list[logging.Handler] = [kept, logging.StreamHandler()]
    level = _LOG.level
    _LOG.setLevel(logging.INFO)
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        _LOG.addHandler(handler)
    try:
        yield
    finally:
        _LOG.setLevel(level)
        for handler in handlers:
            _LOG.removeHandler(handler)
            handler.close()


def read_only(config: RetuneConfig) -> Retuner:
    """Return a state machine with the state of a service from its file. The service may run meanwhile. Raises
    :class:`RetuneError`."""
    return Retuner(rules_of(config), load_state(config.folder / STATE_FILE), differences)


def is_running(config: RetuneConfig) -> bool:
    """Return true if a service keeps networks tuned in this folder."""
    path = config.folder / LOCK_FILE
    if not path.exists():
        return False
    try:
        release_lock(take_lock(path))
    except LockedError:
        return True
    except OSError:
        return False
    return False


def roll_back(
    config: RetuneConfig, network: str, device_class: str, to: int | None
) -> tuple[PublishedVersion, PublishedVersion, str]:
    """See :meth:`fleet_tune.retuning.version_repository.VersionRepository.roll_back`. The third value is the reason why
    the hook failed, empty if it did not. A service that runs notices the change when it looks at the files next."""
    repository = repository_of(config)
    before, after = repository.roll_back(network, device_class, to)
    steps = ProcessStepRunner(config, threading.Event())
    return before, after, call_hook(config, steps, repository, network, device_class, before.number)
