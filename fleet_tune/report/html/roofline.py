"""Places of a run's kernels under the roofline of their device: what its arithmetic and its memory allow.

A kernel whose data is in a cache may be above the slope, which is that of main memory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from devices.sketches.spaces import arguments_of
from devices.timing.arguments import nbytes
from fleet_tune.base.domain import Arithmetic, DeviceAbstraction, Fingerprint, Workload
from fleet_tune.base.records.datasets.dataset_codec import decode_value
from fleet_tune.base.records.stores.classes import FINGERPRINTS

_WIDTH, _HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 12, 12, 40


@dataclass(frozen=True)
class Place:
    """Place of a kernel."""

    name: str
    intensity: float
    """Operations for each byte of its arguments."""
    flops: float
    """Operations/s that it reaches."""
    roof_flops: float
    """Operations/s that its device allows at this intensity, with all data from main memory."""
    peak_flops: float
    """Operations/s that its device's arithmetic allows."""


def devices_in(meta: Mapping[str, str]) -> dict[str, DeviceAbstraction]:
    """Return the figures of each device class of a store, by its name. ``meta``: table of the store. A fingerprint that
    this version cannot read is left out."""
    found: dict[str, DeviceAbstraction] = {}
    try:
        fingerprints = json.loads(meta.get(FINGERPRINTS, "[]"))
    except ValueError:
        return {}
    for each in fingerprints:
        try:
            fingerprint = decode_value(each)
        except (ValueError, TypeError):
            continue
        if isinstance(fingerprint, Fingerprint):
            found[fingerprint.device_class.name] = fingerprint.abstraction
    return found


def place(workload: Workload, secs: float, device: DeviceAbstraction) -> Place | None:
    """Return the place of a kernel that takes ``secs``. None for one without operations, or whose program this version
    cannot read."""
    if not (workload.flop > 0 and math.isfinite(secs) and secs > 0):
        return None
    try:
        arguments = arguments_of(workload.module)
    except ValueError:
        return None
    moved = sum(map(nbytes, arguments))
    if not moved:
        return None
    peak = device.peak(_arithmetic({spec.dtype for spec in arguments}))
    intensity = workload.flop / moved
    roof = min(peak, intensity * device.bandwidth_bytes)
    return Place(workload.name, intensity, workload.flop / secs, roof, peak)


def _arithmetic(dtypes: set[str]) -> Arithmetic:
    """Return the arithmetic for products of operands of these types, if the device supports it."""
    if dtypes & {"int8", "uint8"}:
        return "int8"
    return "bfloat16" if "bfloat16" in dtypes else "float32"


def roofline(places: Sequence[Place], device: DeviceAbstraction, title: str) -> str:
    """Return an SVG element with the roof of a device and its kernels, at least one, on logarithmic axes."""
    peak = max(device.peak_flops, *(each.peak_flops for each in places))
    ridge = peak / device.bandwidth_bytes
    most_x = 10.0 ** math.ceil(math.log10(max(ridge, *(each.intensity for each in places)) * 1.1))
    least_x = 10.0 ** math.floor(math.log10(min(ridge, *(each.intensity for each in places)) / 1.1))
    most_y = 10.0 ** math.ceil(math.log10(max(peak, *(each.flops for each in places)) * 1.1))
    least_y = 10.0 ** math.floor(math.log10(min(each.flops for each in places) / 1.1))
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def across(x: float) -> str:
        return f"{_LEFT + width * math.log10(x / least_x) / math.log10(most_x / least_x):.1f}"

    def down(y: float) -> str:
        return f"{_TOP + height * (1 - math.log10(max(y, least_y) / least_y) / math.log10(most_y / least_y)):.1f}"

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">']
    for value in _powers(least_y, most_y):
        at = down(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{at}" dy="4" text-anchor="end">{value / 1e9:g}</text>')
    for value in _powers(least_x, most_x):
        parts.append(f'<text x="{across(value)}" y="{_HEIGHT - 22}" text-anchor="middle">{value:g}</text>')
    middle = _LEFT + width / 2
    text = "operations for each byte; upwards: GFLOP/s"
    parts.append(f'<text x="{middle:.0f}" y="{_HEIGHT - 4}" text-anchor="middle">{text}</text>')
    start = max(least_x, least_y / device.bandwidth_bytes)
    corners = [(start, start * device.bandwidth_bytes), (ridge, peak), (most_x, peak)]
    line = " ".join(f"{across(x)},{down(y)}" for x, y in corners)
    parts.append(f'<polyline class="curve" points="{line}"/>')
    for each in places:
        label = f"<title>{escape(each.name)}: {each.flops / 1e9:.1f} GFLOP/s</title>"
        parts.append(f'<circle cx="{across(each.intensity)}" cy="{down(each.flops)}" r="4">{label}</circle>')
    return "".join([*parts, "</svg>"])


def _powers(least: float, most: float) -> list[float]:
    first, last = round(math.log10(least)), round(math.log10(most))
    return [10.0**power for power in range(first, last + 1)]
