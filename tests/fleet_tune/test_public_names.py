"""The public names of the package, wherever they are defined."""

from __future__ import annotations

import fleet_tune

_PUBLIC = {
    *("Candidate", "DeviceClass", "Measurement", "Outcome", "Record", "Task", "Workload"),
    *("FleetTuneError", "UserError", "__version__"),
    *("TuneResult", "load", "stream", "tune"),
}


def test_public_names_are_importable_from_the_package() -> None:
    assert set(fleet_tune.__all__) == _PUBLIC
    for name in _PUBLIC:
        assert getattr(fleet_tune, name) is not None
