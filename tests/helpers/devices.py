"""Fingerprints of devices."""

from __future__ import annotations

from fleet_tune.base.domain import DeviceAbstraction, DeviceClass, Fingerprint

#: Two AVX-512 cores at 4 GHz: 2 cores x 16 lanes x 2 ports x 2 operations x 4e9.
CPU = DeviceAbstraction("cpu", 2, 16, 32, 48 << 10, 1 << 20, 32 << 20, 512e9, 40e9)
GPU = DeviceAbstraction("cuda", 80, 32, 65536, 48 << 10, 6 << 20, 0, 14e12, 9e11, 1024)


def make_fingerprint(
    device_class: DeviceClass, abstraction: DeviceAbstraction = CPU, *, probe_secs: float = 1e-3
) -> Fingerprint:
    """The fingerprint of a device of this class, with as many threads as cores."""
    return Fingerprint(device_class, abstraction, "some CPU", abstraction.cores, "0.27", probe_secs)
