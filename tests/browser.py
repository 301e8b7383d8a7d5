"""A real browser: Chromium as the system has it, driven by Playwright, logged in to the Airflow of a home."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from weir.embedded_airflow import ADMIN, AirflowRecord, password
from weir.layout import Home

CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
SLOW_MS = 60_000
"""How long a page may take on a crowded machine before a test gives up."""


@contextmanager
def open_browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.fail("there is no Chromium: install it (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def log_in(
    browser: Browser, home: Home, user: str = ADMIN, scheme: Literal["light", "dark"] = "light", width: int = 1360, height: int = 900
) -> Page:
    """A page of a new visit, logged in; its base address is Airflow's."""
    record = AirflowRecord.read(home.airflow_record)
    assert record is not None
    context = browser.new_context(base_url=record.address, color_scheme=scheme, viewport={"width": width, "height": height})
    context.set_default_timeout(SLOW_MS)
    page = context.new_page()
    page.goto("/auth/login/")
    page.fill("input[name=username]", user)
    page.fill("input[name=password]", password(home, user))
    page.click("button[type=submit]")
    page.wait_for_url(lambda address: "/auth/login" not in address)
    return page
