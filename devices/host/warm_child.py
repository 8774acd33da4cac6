"""Start of a child process that answers one request after another and stays warm, such as the builder's, the
describer's, and the one that lowers networks."""

from __future__ import annotations

import argparse
import queue
import shutil
from typing import Any

from devices.host.children.child import Channel, load_tvm, parent_channel, read_in_background
from devices.host.limits.memory import limit_memory
from devices.host.owned_folder import remove_abandoned

Requests = queue.SimpleQueue[dict[str, Any]]


def connect_to_parent() -> tuple[Channel, Requests]:
    """Return the channel to the parent and the queue of its requests, once TVM is loaded.

    The command line has the memory limit of this process, and may name a folder to remove when the parent is gone. This
    process ends with its parent.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory-limit", type=int, required=True, help="bytes of data that this process may have")
    parser.add_argument("--files", help="a folder to remove when the parent is gone")
    options = parser.parse_args()
    limit_memory(options.memory_limit)
    remove_abandoned()  # folders of processes that were killed here, which may be another machine than the run's
    channel = parent_channel()
    requests: Requests = queue.SimpleQueue()

    def clean_up() -> None:
        if options.files:
            shutil.rmtree(options.files, ignore_errors=True)

    read_in_background(channel, requests.put, clean_up)
    load_tvm()
    return channel, requests
