"""Steps of the service, each in a child process, whose end frees all libraries and memory of the step."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from devices.host.owned_folder import owned_folder
from devices.networks.user_file import locate
from fleet_tune.base.config.retune_file import NetworkConfig, RetuneConfig
from fleet_tune.base.config.shape_options import shapes_given
from fleet_tune.base.errors import OutputFolderError, UserError
from fleet_tune.base.precision import Conversion
from fleet_tune.retuning.step_runner import (
    HOOK_SECS,
    PRUNE_SECS,
    OtherNetworkError,
    PairedRun,
    StepError,
    StoppedError,
    TuneOutcome,
    VersionComparison,
)
from policies.retuning.rules import Moment
from policies.retuning.slowdown import Baseline, Timed
from policies.retuning.state import DeviceAnswer

LOGS = "logs"
KEEP_BEST = 500
"""Number of best candidates of each task and origin that pruning keeps in a store."""
_LOOK_SECS = 0.25
# Time between SIGTERM and SIGKILL, in which a run stores its records and ends its cluster.
_GRACE_SECS = 30.0
_LAST_CHARACTERS = 300
_PIECE = 1 << 20


class ProcessStepRunner:
    """See :class:`fleet_tune.retuning.step_runner.StepRunner`. ``stop`` is set when the service has to end."""

    def __init__(self, config: RetuneConfig, stop: threading.Event) -> None:
        self._config = config
        self._stop = stop
        self._digests: dict[Path, tuple[tuple[int, int], str]] = {}
        self._fleet = None if config.fleet_path is None else str(config.fleet_path)

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def moment(self) -> Moment:
        return moment_at(time.time())

    def wait(self, secs: float) -> None:
        self._stop.wait(min(secs, threading.TIMEOUT_MAX))

    def digest(self, network: NetworkConfig) -> str:
        """Return a digest of the network's files, the function's name, the precision, the bounds and typical extents of
        its dynamic dimensions, and its entry points.

        The files are the network's own file, the file of inputs, and for ONNX the files beside the network whose names
        begin with its name (weights of a large model). Files that a Python file imports are not read.
        """
        try:
            file, function = locate(network.path)
            beside = sorted(file.parent.glob(f"{_escaped(file.name)}*")) if file.suffix == ".onnx" else [file]
            files = [*beside, *([] if network.inputs is None else [Path(network.inputs)])]
            parts = [self._file_digest(each) for each in files if each.is_file() or each == file]
        except UserError as error:
            raise StepError(error.problem) from error
        except OSError as error:
            raise StepError(f"{error.filename}: {error.strerror}") from error
        # Another precision is another network.
        conversion = None if network.precision is None else Conversion(network.precision, network.max_error)
        parts += [] if conversion is None else [conversion.options]
        shapes = shapes_given(network.shapes, network.shapes_weights)
        if shapes is not None:
            parts += [*map(str, shapes.dimensions), ", ".join(map(str, shapes.typical.values()))]
            parts += map(str, shapes.entry_points)
        return hashlib.blake2b("|".join([function, *parts]).encode(), digest_size=16).hexdigest()

    def _file_digest(self, file: Path) -> str:
        """Return the digest of a file, which is read again only if its time or size has changed."""
        status = file.stat()
        stamp = (status.st_mtime_ns, status.st_size)
        known = self._digests.get(file)
        if known is not None and known[0] == stamp:
            return known[1]
        content = hashlib.blake2b(digest_size=16)
        with file.open("rb") as opened:
            while piece := opened.read(_PIECE):
                content.update(piece)
        self._digests[file] = stamp, content.hexdigest()
        return content.hexdigest()

    def ask(self, devices: Sequence[str], limit_secs: float) -> list[DeviceAnswer]:
        answers = self._step("ask", limit_secs, devices=list(devices), address=self._config.address)
        found = {each["name"]: DeviceAnswer(**each) for each in answers}
        return [found.get(name, DeviceAnswer(name, problem="it is not in the fleet file any more")) for name in devices]

    def tune(
        self, network: NetworkConfig, devices: Sequence[str], folder: Path, secs: float, limit_secs: float
    ) -> TuneOutcome:
        answer = self._step(
            "tune",
            limit_secs,
            network=network.path,
            inputs=network.inputs,
            shapes=network.shapes,
            shapes_weights=network.shapes_weights,
            trust=network.trust,
            precision=network.precision,
            max_error=network.max_error,
            devices=list(devices),
            out=str(folder),
            store=self._config.server or str(self._config.store),
            address=self._config.address,
            secs=secs,
            metrics_host=None if self._config.metrics_port is None else self._config.metrics_host,
        )
        return TuneOutcome(**{**answer, "folder": None if answer["folder"] is None else Path(answer["folder"])})

    def compare(self, last: Path, new: Path, device: str, to_the_end: bool, limit_secs: float) -> VersionComparison:
        answer = self._step(
            "compare",
            limit_secs,
            device=device,
            last=str(last),
            new=str(new),
            to_the_end=to_the_end,
            address=self._config.address,
        )
        return VersionComparison(tuple(PairedRun(**turn) for turn in answer["turns"]), answer["last_problem"])

    def check(self, folder: Path, device: str, against: Baseline | None, limit_secs: float) -> tuple[Timed, ...]:
        watch = self._config.watch
        answer = self._step(
            "check",
            limit_secs,
            device=device,
            folder=str(folder),
            against=None if against is None else dataclasses.asdict(against),
            slower=watch.slower,
            drift=watch.drift,
            address=self._config.address,
        )
        return tuple(Timed(**pair) for pair in answer)

    def prune(self, store: Path, most_mb: int) -> int:  # noqa: ARG002
        count: int = self._step("prune", PRUNE_SECS, fleet=False, store=str(store), keep_best=KEEP_BEST)
        return count

    def hook(self, words: Sequence[str], about: dict[str, str]) -> str:
        logs = self._config.folder / LOGS
        log = logs / "hook.log"
        try:
            logs.mkdir(parents=True, exist_ok=True)
            log.unlink(missing_ok=True)  # processes that an earlier hook has started may still write to it
            # A file instead of a pipe: a process that the hook starts in the background, say a server, holds it open.
            with log.open("wb") as output:
                child = subprocess.Popen(
                    list(words),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env={**os.environ, **about},
                )
        except OSError as error:
            return f"{error.filename or words[0]}: {error.strerror}"
        if self._waited_for(child, HOOK_SECS, keeps_background=True):
            return f"it took more than {HOOK_SECS:g} s"
        if child.returncode and self._stop.is_set():
            raise StoppedError
        last = " ".join(log.read_text(errors="replace").split())[-_LAST_CHARACTERS:]
        return "" if child.returncode == 0 else f"it ended with code {child.returncode}: {last}"

    def _step(self, step: str, limit_secs: float, *, fleet: bool = True, **arguments: Any) -> Any:
        """Return the answer of a child. Its output replaces that of the last child for the same step in ``logs``."""
        try:
            return self._answer(
                step, limit_secs, {"step": step, **arguments, **({"fleet": self._fleet} if fleet else {})}
            )
        except OSError as error:  # no space on the disk, or no process can be started
            raise StepError(f"its process cannot be started: {error.strerror}") from error

    def _answer(self, step: str, limit_secs: float, order: Mapping[str, Any]) -> Any:
        logs = self._config.folder / LOGS
        logs.mkdir(parents=True, exist_ok=True)
        log = logs / f"{step}.log"
        with owned_folder("retune") as folder:
            order_file, answer_file = folder / "order.json", folder / "answer.json"
            order_file.write_text(json.dumps(order))
            with log.open("wb") as output:
                child = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "fleet_tune.retuning.child",
                        str(order_file),
                        str(answer_file),
                        str(os.getpid()),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C in a terminal reaches only the service, which then ends the child
                )
            late = self._waited_for(child, limit_secs)
            if self._stop.is_set():
                raise StoppedError
            if late:
                raise StepError(f"it took longer than {limit_secs:.0f} s, and was ended")
            try:
                answer = json.loads(answer_file.read_text())
            except (OSError, ValueError):
                raise StepError(f"its process ended with code {child.returncode}; see {log}") from None
        if "problem" in answer:
            is_other = answer.get("kind") == OutputFolderError.__name__
            raise (OtherNetworkError if is_other else StepError)(answer["problem"])
        return answer["answer"]

    def _waited_for(self, child: subprocess.Popen[bytes], limit_secs: float, *, keeps_background: bool = False) -> bool:
        """Wait until the child ends, or end it when its time is over or the service stops. Return true if it took too
        long. Processes that the child has started are killed, except with ``keeps_background`` if the child ended by
        itself."""
        deadline = time.monotonic() + limit_secs
        late = ended = False
        try:
            while child.poll() is None:
                late = time.monotonic() >= deadline
                if late or self._stop.is_set():
                    child.send_signal(signal.SIGTERM)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(_GRACE_SECS)
                    break
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(_LOOK_SECS)
            else:
                ended = True
            return late
        finally:
            if not (ended and keeps_background):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)  # the child, and all processes that it has started
            child.wait()


def moment_at(unix_secs: float) -> Moment:
    """Return a moment: the time, and the local time of day on this machine."""
    local = time.localtime(unix_secs)
    return Moment(unix_secs, 3600.0 * local.tm_hour + 60.0 * local.tm_min + local.tm_sec + unix_secs % 1.0)


def _escaped(name: str) -> str:
    """Return a glob pattern that matches this name alone."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
