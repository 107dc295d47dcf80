"""The browser of all tests here."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, of the system or of Playwright."""
    from playwright.sync_api import sync_playwright  # of the session that runs these

    names = ("chromium", "google-chrome", "chromium-browser")
    found = next(filter(None, map(shutil.which, names)), None)
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()
