"""The dashboard in a real browser: what is new appears, the keyboard suffices, a narrow screen too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fleet_tune.report.dashboard.test_server import TASK, append, record
from tests.helpers.dashboards import CHROMIUM, dashboard, needs_chromium
from tests.helpers.records import ok

pytestmark = needs_chromium
LONG = "a-run-with-a-name-that-is-far-too-long-for-the-screen-of-a-phone"
WAIT_MS = 60_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        yield opened
        opened.close()


def test_what_is_new_appears_and_the_keyboard_suffices(browser: Any, tmp_path: Path) -> None:
    from playwright.sync_api import expect

    for name in ("one", "two"):
        append(tmp_path / name, record(TASK, 1, 100.0, ok(3e-3)))
    problems: list[str] = []
    with dashboard(tmp_path) as (address, process):
        page = browser.new_page()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(address)
        live = page.get_by_role("status")
        expect(live).to_have_text("Live: what is new appears by itself.", timeout=WAIT_MS)
        page.keyboard.press("Tab")  # the table, which may be wider than the screen
        expect(page.get_by_role("region", name="Runs")).to_be_focused()
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="one")).to_be_focused()
        append(tmp_path / "one", record(TASK, 2, 105.0, ok(1e-3)))
        expect(page.get_by_role("row", name="one").get_by_role("cell").nth(3)).to_have_text("2", timeout=WAIT_MS)
        expect(page.get_by_role("link", name="one")).to_be_focused()  # still
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("one", timeout=WAIT_MS)
        summary = page.locator("#events summary")
        summary.focus()
        page.keyboard.press("Enter")
        append(tmp_path / "one", record(TASK, 3, 110.0, ok(5e-4)))
        expect(page.get_by_text("3 (3 ok)")).to_be_visible(timeout=WAIT_MS)
        assert page.locator("#events").get_attribute("open") is not None
        assert not problems
        process.kill()
        expect(live).to_contain_text("does not answer", timeout=WAIT_MS)
        page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_a_narrow_screen(browser: Any, tmp_path: Path, scheme: str) -> None:
    append(tmp_path / LONG, record(TASK, 1, 1.0, ok(3e-3)))
    with dashboard(tmp_path) as (address, _):
        page = browser.new_page(viewport={"width": 320, "height": 640}, color_scheme=scheme)
        for path in ("/", f"/{LONG}"):
            page.goto(address + path)
            assert page.evaluate("document.documentElement.scrollWidth") <= 320
            page.get_by_role("heading", level=1).wait_for()
        colours = page.evaluate(
            "[getComputedStyle(document.body).color, getComputedStyle(document.querySelector('td')).color]"
        )
        assert set(colours) == {"rgb(0, 0, 0)" if scheme == "light" else "rgb(255, 255, 255)"}
        page.close()


def test_a_page_says_all_without_scripts(browser: Any, tmp_path: Path) -> None:
    append(tmp_path, record(TASK, 1, 1.0, ok(3e-3)))
    with dashboard(tmp_path) as (address, _):
        context = browser.new_context(java_script_enabled=False)
        page = context.new_page()
        page.goto(address)
        assert "3.000 ms" in page.inner_text("main")
        assert "load the page again" in page.inner_text("header")
        context.close()
