"""A real server with its own database and a real browser, shared by the browser tests."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, StorageState, sync_playwright

from tests.builders_browser import Server, Visitor, chromium, log_in, serving, visit


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """uvicorn on a free port over a seeded SQLite file."""
    with serving(tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium())
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def cookies(browser: Browser, server: Server) -> dict[str, StorageState]:
    """Everybody's login, made once."""
    return {name: log_in(browser, server, name) for name in ("ada", "grace")}


@pytest.fixture
def ada(browser: Browser, server: Server, cookies: dict[str, StorageState]) -> Iterator[Visitor]:
    """A member of the team `vision`."""
    yield from visit(browser, server, cookies["ada"])


@pytest.fixture
def grace(browser: Browser, server: Server, cookies: dict[str, StorageState]) -> Iterator[Visitor]:
    """An operator."""
    yield from visit(browser, server, cookies["grace"])


@pytest.fixture
def ada_on_a_phone(
    browser: Browser, server: Server, cookies: dict[str, StorageState]
) -> Iterator[Visitor]:
    """The member with a narrow window."""
    yield from visit(
        browser, server, cookies["ada"], viewport={"width": 390, "height": 844}, has_touch=True
    )


@pytest.fixture
def ada_at_night(
    browser: Browser, server: Server, cookies: dict[str, StorageState]
) -> Iterator[Visitor]:
    """The member whose system is in dark mode."""
    yield from visit(browser, server, cookies["ada"], color_scheme="dark")


@pytest.fixture
def stranger(browser: Browser, server: Server) -> Iterator[Visitor]:
    """Somebody who is not logged in."""
    yield from visit(browser, server, None)
