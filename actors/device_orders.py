"""The orders that people give for the devices of a fleet file, as a session reads them; see
:mod:`fleet_tune.base.records.orders`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path

from fleet_tune.base.config.fleet_file import FleetConfig
from fleet_tune.base.device_state import Admin
from fleet_tune.base.errors import FleetOrdersError
from fleet_tune.base.records.orders import FleetOrders, orders_path

_LOG = logging.getLogger(__name__)


async def out_of_use(fleet: FleetConfig, names: Iterable[str]) -> set[str]:
    """The devices among ``names`` that people have taken out of use. Raises FleetOrdersError."""
    if fleet.source is None:
        return set()
    orders = FleetOrders(orders_path(fleet.source.path))
    latest = await asyncio.to_thread(orders.latest)
    return {name for name, order in latest.items() if order.admin is not Admin.ACTIVE} & set(names)


async def note_run(fleet: FleetConfig, run_id: str, store: Path) -> Path | None:
    """Note that this run uses the fleet, and return the path of the fleet's orders; None for a fleet without a file. A
    folder that cannot be written causes only a warning."""
    if fleet.source is None:
        return None
    path = orders_path(fleet.source.path)
    try:
        await asyncio.to_thread(FleetOrders(path).note_run, run_id, store)
    except FleetOrdersError as error:
        _LOG.warning("%s", error)
    return path
