"""The origin of records that a device measures now."""

from __future__ import annotations

from devices.cuda import compiler
from fleet_tune.base.domain import Fingerprint
from fleet_tune.base.power_text import without_heat
from fleet_tune.base.records.stores.origin import Origin
from fleet_tune.runs.shared_store.upkeep import versions_now


def origin_of(fingerprint: Fingerprint) -> Origin:
    """Return the origin of records that devices with this fingerprint measure now."""
    is_cuda = fingerprint.abstraction.kind == "cuda"
    known = {
        "driver": fingerprint.driver,
        "microcode": fingerprint.microcode,
        "compiler": compiler.describe() if is_cuda else "",
        "power": without_heat(fingerprint.power),
    }
    machine = {name: version for name, version in known.items() if version}
    target = fingerprint.device_class.target
    return Origin(target, fingerprint.cpu_model, fingerprint.threads, versions_now(), machine)
