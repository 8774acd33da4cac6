from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest

from fleet_tune.base.device_state import Admin
from fleet_tune.base.errors import FleetOrdersError
from fleet_tune.base.records.orders import FleetOrders, orders_path


@pytest.fixture
def orders(tmp_path: Path) -> FleetOrders:
    return FleetOrders(orders_path(tmp_path / "fleet.toml"))


def test_orders_lie_beside_the_fleet_file(tmp_path: Path) -> None:
    assert orders_path(tmp_path / "lab.toml") == tmp_path / "lab.orders.db"


def test_a_fleet_that_never_had_an_order_has_none_and_gets_no_file(orders: FleetOrders) -> None:
    assert (orders.since(0), orders.latest(), orders.last_records()) == ([], {}, None)
    assert not orders.path.exists()


def test_orders_come_in_order_after_a_cursor_and_the_last_one_holds(orders: FleetOrders) -> None:
    orders.give("a", Admin.DRAINING, "new kernel")
    orders.give("b", Admin.RETIRED, "sold")
    orders.give("a", Admin.ACTIVE, "")
    assert [(o.seq, o.device_id, o.admin, o.reason) for o in orders.since(1)] == [
        (2, "b", Admin.RETIRED, "sold"),
        (3, "a", Admin.ACTIVE, ""),
    ]
    assert {name: order.admin for name, order in orders.latest().items()} == {"a": Admin.ACTIVE, "b": Admin.RETIRED}
    assert FleetOrders(orders.path).since(3) == []


def test_the_last_run_whose_records_still_exist_is_found(orders: FleetOrders, tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / f"{name}.db").touch()
        orders.note_run(name, tmp_path / f"{name}.db")
    assert orders.last_records() == tmp_path / "three.db"
    (tmp_path / "three.db").unlink()
    assert orders.last_records() == tmp_path / "two.db"


def test_several_writers_at_once_lose_no_order(orders: FleetOrders) -> None:
    def give(name: str) -> None:
        for _ in range(10):
            orders.give(name, Admin.DRAINING, "")

    threads = [threading.Thread(target=give, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(orders.since(0)) == 40


def test_what_is_no_file_of_orders_is_refused_and_left_alone(orders: FleetOrders) -> None:
    orders.path.write_text("not a database " * 100)
    before = orders.path.read_bytes()
    for use in (lambda: orders.since(0), lambda: orders.give("a", Admin.RETIRED, "")):
        with pytest.raises(FleetOrdersError, match=r"fleet\.orders\.db"):
            use()
    assert orders.path.read_bytes() == before


def test_another_database_and_a_newer_version_are_refused(orders: FleetOrders) -> None:
    with sqlite3.connect(orders.path) as connection:
        connection.execute("CREATE TABLE notes (text)")
    with pytest.raises(FleetOrdersError, match="something else"):
        orders.give("a", Admin.RETIRED, "")
    with sqlite3.connect(orders.path) as connection:
        connection.execute("PRAGMA user_version=9")
    connection.close()
    with pytest.raises(FleetOrdersError, match="version 9"):
        orders.since(0)


def test_a_folder_in_the_place_of_the_file_is_told(orders: FleetOrders) -> None:
    os.mkdir(orders.path)
    with pytest.raises(FleetOrdersError, match="unable to open"):
        orders.give("a", Admin.DRAINING, "")


def test_a_file_that_its_first_writer_could_not_fill_has_no_orders(orders: FleetOrders) -> None:
    orders.path.touch()  # the disk was full
    assert (orders.since(0), orders.latest(), orders.last_records()) == ([], {}, None)
    orders.give("a", Admin.DRAINING, "")
    assert [order.device_id for order in orders.since(0)] == ["a"]


def test_what_a_killed_writer_left_is_undone_by_the_next_reader(orders: FleetOrders, tmp_path: Path) -> None:
    orders.give("a", Admin.DRAINING, "")
    with contextlib.closing(sqlite3.connect(orders.path, isolation_level=None)) as killed:
        killed.execute("PRAGMA cache_size=1")
        killed.execute("BEGIN IMMEDIATE")
        for number in range(500):  # more than fits into the cache: pages are in the file, the old ones in the journal
            killed.execute("INSERT INTO orders VALUES (NULL, ?, 'draining', ?, 0.0)", (f"d{number}", "x" * 500))
        journal = Path(f"{orders.path}-journal")
        left = FleetOrders(tmp_path / "left" / orders.path.name)
        left.path.parent.mkdir()
        shutil.copy(orders.path, left.path)
        shutil.copy(journal, f"{left.path}-journal")
    assert [order.device_id for order in left.since(0)] == ["a"]
