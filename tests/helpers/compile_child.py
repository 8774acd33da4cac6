"""A child process that compiles networks as the real one does, unless a schedule tells it what to do instead."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from devices.host.children.child import load_tvm

CHILD = "tests.helpers.compile_child"
CRASHES, WAITS, KILLED, STARVED = "it crashes", "it waits", "it is killed", "it gets no memory"


def main() -> None:
    load_tvm()
    from devices.networks.compiled import network_folder
    from devices.networks.processes import compile_worker

    real = network_folder.compile_network

    def compile_network(lowered: Any, best: Mapping[str, str | None], *others: Any) -> Path:
        if CRASHES in best.values():
            os.abort()
        if KILLED in best.values():
            os.kill(os.getpid(), signal.SIGKILL)
        if STARVED in best.values():
            raise MemoryError
        if WAITS in best.values():
            signal.pause()
        return real(lowered, best, *others)

    network_folder.compile_network = compile_network
    compile_worker.main()


if __name__ == "__main__":
    main()
