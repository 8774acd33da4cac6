"""What people want of the devices of a fleet file, as a session asks for it: see
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
    """Those of the devices that people have taken out of use. Raises FleetOrdersError."""
    if fleet.source is None:
        return set()
    orders = FleetOrders(orders_path(fleet.source.path))
    latest = await asyncio.to_thread(orders.latest)
    return {name for name, order in latest.items() if order.admin is not Admin.ACTIVE} & set(names)


async def noted(fleet: FleetConfig, run_id: str, store: Path) -> Path | None:
    """Where the orders for the fleet's devices are, after noting there that this run uses the fleet; None for a fleet
    without a file. A fleet file in a folder that cannot be written is no reason not to tune."""
    if fleet.source is None:
        return None
    path = orders_path(fleet.source.path)
    try:
        await asyncio.to_thread(FleetOrders(path).note_run, run_id, store)
    except FleetOrdersError as error:
        _LOG.warning("%s", error)
    return path
