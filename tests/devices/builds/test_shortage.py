"""A build host without space: no candidate is to blame."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from devices.builds.builder import BuilderStartError, BuildWorker
from devices.builds.worker import serve
from devices.protocol import BuildRequest
from tests.helpers.tasks import make_candidate, make_task


class Full:
    """A compiler whose linker cannot write."""

    def build(self, _request: dict[str, Any]) -> dict[str, Any]:
        raise OSError(errno.ENOSPC, "No space left on device")


def answer() -> dict[str, Any]:
    """What a build process of that compiler answers."""
    sent: list[dict[str, Any]] = []
    requests: Iterator[dict[str, Any]] = iter([{}])
    channel: Any = SimpleNamespace(send=sent.append)
    compiler: Any = Full()
    with pytest.raises(StopIteration):
        serve(channel, lambda: next(requests), compiler)
    return sent[-1]


def test_a_full_disk_is_a_fault_of_the_builder(tmp_path: Any) -> None:
    told = answer()
    assert told["status"] == "short"
    child: Any = SimpleNamespace(
        channel=SimpleNamespace(send=lambda _: None, receive=lambda *_: told), obituary=lambda: "", kill=lambda: None
    )
    task = make_task()
    with pytest.raises(BuilderStartError, match=r"No space left on device.*TMPDIR"):
        BuildWorker(tmp_path)._build(child, BuildRequest(task, make_candidate(task, 1)))
