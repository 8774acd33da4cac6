"""Real Ray clusters, started as people start them: by the commands of ``cluster/README.md`` and its cluster files."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import psutil

from devices.host.children.parent import end_with_parent

ROOT = Path(__file__).parents[2]
RAY = Path(sys.executable).with_name("ray")
GUIDE = ROOT / "cluster" / "README.md"


def block(heading: str, containing: str = "", language: str = "sh") -> str:
    """The block of code below a heading of the guide that has this in it. Fails where that is not one."""
    [section] = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    [found] = [text for text in blocks if containing in text]
    return str(found)


def changed(text: str, changes: Mapping[str, str]) -> str:
    """``text`` with what a test has in the place of what the guide names. Fails where that is not in it."""
    for old, new in changes.items():
        assert old in text, f"{old!r} is not in:\n{text}"
        text = text.replace(old, new)
    return text


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a user with these files and this installation."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**others, "HOME": str(home), "PYTHONPATH": str(ROOT), "PATH": f"{RAY.parent}:{others['PATH']}"}


def shell(
    script: str, env: Mapping[str, str], cwd: Path = ROOT, timeout_secs: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """Run a block of the guide to its end."""
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_secs,
        check=False,
    )


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, outside of those that Ray keeps for its workers."""
    sockets: list[socket.socket] = []
    kept: list[socket.socket] = []
    try:
        while len(kept) < count:
            probe = socket.socket()
            sockets.append(probe)
            probe.bind(("127.0.0.1", 0))
            if not 10001 <= probe.getsockname()[1] <= 19999:
                kept.append(probe)
        return [probe.getsockname()[1] for probe in kept]
    finally:
        for probe in sockets:
            probe.close()


class Served:
    """The command at the end of a script, and what it starts, in a session of their own."""

    def __init__(self, script: str, env: Mapping[str, str], log: Path, cwd: Path = ROOT) -> None:
        *before, last = script.rstrip("\n").replace("\\\n", " ").splitlines()
        script = "\n".join([*before, re.sub(r"^(.*; *)?", r"\1exec ", last, count=1)])
        self.log = log
        with log.open("w") as output:
            self.process = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", script],
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=partial(end_with_parent, signal.SIGTERM),
            )

    def until(self, told: str, deadline_secs: float = 180.0) -> Served:
        """Itself, once it has told this."""
        wait_until(lambda: told in self.told() or self.process.poll() is not None, told, deadline_secs, self.told)
        assert told in self.told(), self.told()
        return self

    def told(self) -> str:
        return self.log.read_text()

    def family(self) -> list[psutil.Process]:
        """Return the processes that are left of it: its children, and those of its session, whatever their parent is by
        now."""
        found = set()
        with suppress(psutil.NoSuchProcess):
            found.update(psutil.Process(self.process.pid).children(recursive=True))
        for each in psutil.process_iter():
            with suppress(ProcessLookupError):
                if os.getsid(each.pid) == self.process.pid:
                    found.add(each)
        return [each for each in found if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]

    def kill(self) -> None:
        """All of it at once, as when its machine loses its power."""
        for each in self.family():
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self.process.wait(60)

    def end(self) -> None:
        """End them in order, and by force what is left after a while."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(45)
            wait_until(lambda: not self.family(), f"the end of {self.process.args!r}", 60, self.told)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self.kill()


def wait_until(
    condition: Callable[[], bool], what: str, deadline_secs: float, explain: Callable[[], str] = lambda: ""
) -> None:
    end = time.monotonic() + deadline_secs
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {deadline_secs:.0f} s\n{explain()}"
        time.sleep(0.2)


@dataclass
class Head:
    """The head node of a cluster as its users see it. ``home``: of the user who started it, with the token."""

    home: Path
    port: int
    dashboard_port: int
    node: Served
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.env = {**environment(self.home), "RAY_AUTH_MODE": "token"}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def dashboard(self) -> str:
        return f"http://127.0.0.1:{self.dashboard_port}"

    def ready(self) -> Head:
        """Itself, once it answers."""
        node = self.node
        wait_until(lambda: node.process.poll() is not None or self._answers(), "the head node", 120, node.told)
        assert node.process.poll() is None, node.told()
        return self

    def ray(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(RAY), *arguments],
            cwd=ROOT,
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def job(self, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.ray("job", verb, "--address", self.dashboard, *arguments)

    def get(self, path: str) -> dict[str, Any]:
        """The JSON answer of the dashboard, which `ray` takes too but prints as prose."""
        token = (self.home / ".ray" / "auth_token").read_text()
        with urlopen(Request(self.dashboard + path, headers={"Authorization": f"Bearer {token}"}), timeout=30) as reply:
            answer: dict[str, Any] = json.load(reply)
            return answer

    def _answers(self) -> bool:
        try:
            return bool(self.get("/api/version"))
        except OSError:
            return False

    def status(self, job: str) -> str:
        return str(self.get(f"/api/jobs/{job}")["status"])

    def logs(self, job: str) -> str:
        return self.job("logs", job).stdout
