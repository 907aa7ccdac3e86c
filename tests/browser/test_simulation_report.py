"""A study's report as a file on somebody's disk: it draws itself, asks nobody for anything, and
fits a phone.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from controlplane.simulation.study.study import Study, run_study
from tests.builders_outcomes import a_study_document

pytestmark = pytest.mark.browser

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two policies, one with a hostile label."""
    policies = [{"name": "fifo", "label": HOSTILE}, {"name": "edf"}]
    return run_study(
        Study.of(a_study_document(policies=policies)),
        tmp_path_factory.mktemp("report"),
        processes=0,
    )


@pytest.fixture
def said() -> list[str]:
    """What the page said on the console, what went wrong in it, and what it asked of others."""
    return []


@pytest.fixture(params=["wide", "phone", "dark"])
def page(
    request: pytest.FixtureRequest, browser: Browser, report: Path, said: list[str]
) -> Iterator[Page]:
    """The report, opened as a file on a screen of each sort."""
    scheme: Literal["dark", "light"] = "dark" if request.param == "dark" else "light"
    width = 390 if request.param == "phone" else 1300
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on(
        "request", lambda asked: said.append(asked.url) if asked.url != report.as_uri() else None
    )
    page.goto(report.as_uri())
    yield page
    context.close()


def test_every_chart_is_drawn_and_nothing_is_asked_of_anybody(page: Page, said: list[str]) -> None:
    expect(page.locator(".chart .plot-container")).to_have_count(5)
    assert said == []


def test_the_page_is_no_wider_than_its_window(page: Page) -> None:
    expect(page.locator("#timeline .plot-container")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_the_timeline_of_another_policy_is_drawn_when_it_is_chosen(
    page: Page, said: list[str]
) -> None:
    page.locator("#timeline-choice").select_option(label="edf")
    expect(page.locator("#timeline .point").first).to_be_visible()
    expect(page.locator("thead")).to_contain_text(HOSTILE)
    assert said == []
