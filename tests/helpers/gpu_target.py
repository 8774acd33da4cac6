"""The target of a GPU that tests build for."""

from __future__ import annotations

from devices.targets import resolve_target
from fleet_tune.base.domain import DeviceClass

_LIMITS = {"max_threads_per_block": 1024, "max_shared_memory_per_block": 49152, "thread_warp_size": 32}
H200 = DeviceClass("gpu", resolve_target({"kind": "cuda", "arch": "sm_90", **_LIMITS}))
