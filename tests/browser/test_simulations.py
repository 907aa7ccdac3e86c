"""Simulations and what-if in a real browser: nothing is complained of, and the report draws itself
in its frame.
"""

from typing import Literal

import pytest
from playwright.sync_api import Page, expect

from tests.builders_browser import Visitor

pytestmark = pytest.mark.browser
NAME = "FIFO against the optimiser"
PATIENCE_MS = 90_000
"""The first question starts a solver, which compiles; a report is some megabytes of script."""


def _drawn(page: Page) -> None:
    """Wait until the report has drawn its charts in the whole width of its frame; then back to the
    top.
    """
    page.locator("iframe.report").scroll_into_view_if_needed()
    expect(page.frame_locator("iframe.report").locator(".main-svg").first).to_be_attached(
        timeout=PATIENCE_MS
    )
    page.frames[1].wait_for_function("innerWidth > 300")
    page.evaluate("scrollTo(0, 0)")


def test_simulations_are_listed_with_how_far_they_are(ada: Visitor) -> None:
    page = ada.open("/simulations/", "Simulations")
    expect(page.get_by_role("link", name=NAME)).to_be_visible()
    expect(page.get_by_label("Progress of half way")).to_have_attribute("value", "0.4000")
    ada.picture("simulations")


def test_a_report_draws_itself_in_a_frame_that_may_do_nothing_else(ada: Visitor) -> None:
    page = ada.open(f"/simulations/{ada.server.ids['simulation']}/", NAME)
    expect(page.get_by_label("Results")).to_contain_text("randomized_greedy")
    _drawn(page)
    origin = page.frames[1].evaluate(
        "[self.origin, (() => { try { return document.cookie } catch (e) { return e.name } })()]"
    )
    assert origin == ["null", "SecurityError"]
    ada.picture("simulation")


def test_one_that_runs_shows_how_far_it_is(ada: Visitor) -> None:
    page = ada.open("/simulations/", "Simulations")
    page.get_by_role("link", name="half way").click()
    expect(page.get_by_text("2 of 5 runs done")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    ada.picture("simulation-running")


def test_the_form_shows_what_belongs_to_what_is_chosen_and_takes_a_study(ada: Visitor) -> None:
    page = ada.open("/simulations/new/", "Simulate")
    page.get_by_label("Name", exact=True).fill("from a browser")
    expect(page.get_by_label("Cluster file")).to_be_hidden()
    page.get_by_label("Cluster", exact=True).select_option("written")
    expect(page.get_by_label("Cluster file")).to_be_visible()
    expect(page.get_by_label("Trace file")).to_be_hidden()
    page.get_by_label("Jobs", exact=True).select_option("csv")
    expect(page.get_by_label("Trace file")).to_be_visible()
    page.get_by_label("Jobs", exact=True).select_option("history")
    expect(page.get_by_label("Days of history")).to_be_visible()
    page.get_by_label("Jobs", exact=True).select_option("poisson")
    page.get_by_label("Seeds").fill("many")
    ada.picture("simulate")
    page.get_by_role("button", name="Simulate").click()
    expect(page.get_by_text("must be whole numbers such as 1, 2, 3")).to_be_visible()
    ada.complaints.clear()  # the browser notes the 422
    ada.picture("simulate-refused")
    page.get_by_label("Seeds").fill("1")
    page.get_by_role("button", name="Simulate").click()
    expect(page.get_by_role("heading", name="from a browser", exact=True)).to_be_visible()
    expect(page.get_by_text("waits for a worker").first).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Cancel it").click()
    expect(page.get_by_text("cancelled before it was done")).to_be_visible()
    assert ada.complaints == []


def test_a_link_shows_it_to_whoever_has_it_until_it_is_taken_back(
    ada: Visitor, stranger: Visitor
) -> None:
    page = ada.open(f"/simulations/{ada.server.ids['simulation']}/", NAME)
    page.get_by_role("button", name="Share").click()
    page.get_by_role("button", name="Share it").click()
    link = page.get_by_role("link", name="/shared/simulations/").get_attribute("href")
    assert link is not None
    visited = stranger.open(link.removeprefix(stranger.server.url), NAME)
    _drawn(visited)
    stranger.picture("simulation-shared")
    page.get_by_role("button", name="Take the link back").click()
    expect(page.get_by_text("The link no longer works")).to_be_visible()
    visited.reload()
    expect(visited.get_by_role("heading", name=NAME)).to_have_count(0)
    assert ada.complaints == []


def test_simulations_are_compared(ada: Visitor) -> None:
    page = ada.open(
        f"/simulations/compare/?id={ada.server.ids['simulation']}", "Compare simulations"
    )
    expect(page.get_by_label("Results")).to_contain_text("fifo")
    ada.picture("simulations-compared")


def test_what_if_shows_what_another_policy_would_do(grace: Visitor) -> None:
    page = grace.open("/what-if/", "What if?")
    page.get_by_label("One decision now").get_by_label("Policy").select_option("fifo")
    page.get_by_role("button", name="Ask it").click(timeout=PATIENCE_MS)
    expect(page.get_by_label("Both decisions")).to_be_visible(timeout=PATIENCE_MS)
    expect(page.locator("[data-chart][aria-busy=false]")).to_have_count(2, timeout=PATIENCE_MS)
    grace.picture("what-if")


RUN = "from controlplane.studies.running.runner import run_next; run_next()"


def test_choices_are_compared_to_the_end_of_the_queue_and_applied(grace: Visitor) -> None:
    page = grace.open("/what-if/", "What if?")
    page.locator("#policy_1").select_option("fifo")
    page.locator("#policy_2").select_option("edf")
    page.get_by_role("button", name="Compare to the end").click()
    expect(page.get_by_role("button", name="Cancel", exact=True)).to_be_visible()
    grace.server.do(RUN)
    expect(page.get_by_label("Choices")).to_contain_text("present", timeout=PATIENCE_MS)
    expect(page.locator("[data-chart][aria-busy=false]")).to_have_count(1, timeout=PATIENCE_MS)
    grace.picture("what-if-end")


@pytest.mark.parametrize("who", ["ada_on_a_phone", "ada_at_night"])
def test_values_of_time_are_compared(who: str, request: pytest.FixtureRequest) -> None:
    visitor: Visitor = request.getfixturevalue(who)
    page = visitor.open("/what-if/", "What if?")
    visitor.picture(f"what-if-form-{who}")
    page.get_by_role("button", name="Compare five values of time").click()
    expect(page.get_by_role("button", name="Cancel", exact=True)).to_be_visible()
    visitor.server.do(RUN)
    expect(page.locator("[data-chart][aria-busy=false]")).to_have_count(1, timeout=PATIENCE_MS)
    expect(page.get_by_text("not-for-ada")).to_have_count(0)
    visitor.picture(f"what-if-values-{who}")
    assert visitor.overflow_px() == 0


def test_what_if_on_a_phone_names_no_other_teams_jobs(ada_on_a_phone: Visitor) -> None:
    page = ada_on_a_phone.open("/what-if/", "What if?")
    page.get_by_role("button", name="Ask it").click(timeout=PATIENCE_MS)
    expect(page.get_by_label("Who would wait")).to_be_visible(timeout=PATIENCE_MS)
    expect(page.get_by_text("not-for-ada")).to_have_count(0)
    expect(page.locator("[data-chart][aria-busy=false]")).to_have_count(2, timeout=PATIENCE_MS)
    ada_on_a_phone.picture("what-if-phone")
    assert ada_on_a_phone.overflow_px() == 0


@pytest.mark.parametrize(
    "path", ["/simulations/", "/simulations/new/", "/simulations/{simulation}/"]
)
def test_simulations_fit_a_phone(ada_on_a_phone: Visitor, path: str) -> None:
    page = ada_on_a_phone.page
    page.goto(ada_on_a_phone.server.url + path.format(**ada_on_a_phone.server.ids))
    page.get_by_role("heading", level=1).wait_for()
    ada_on_a_phone.picture(f"phone{path.replace('/', '-').format(simulation='one').rstrip('-')}")
    assert ada_on_a_phone.overflow_px() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_can_be_read_on_a_phone(
    ada_on_a_phone: Visitor, scheme: Literal["light", "dark"]
) -> None:
    ada_on_a_phone.page.emulate_media(color_scheme=scheme)
    page = ada_on_a_phone.open(f"/simulations/{ada_on_a_phone.server.ids['simulation']}/", NAME)
    _drawn(page)
    report = page.frames[1]
    assert report.evaluate("document.documentElement.scrollWidth - innerWidth") == 0
    lane = report.locator("#timeline .ytick text").first
    expect(lane).to_have_css(
        "fill", report.evaluate("getComputedStyle(document.querySelector('dt')).color")
    )
    report.evaluate("document.getElementById('timeline').scrollIntoView()")
    ada_on_a_phone.picture(f"simulation-phone-{scheme}")


def test_simulations_are_dark_at_night(ada_at_night: Visitor) -> None:
    ada_at_night.open("/simulations/new/", "Simulate")
    ada_at_night.picture("simulate-dark")
    page = ada_at_night.open(f"/simulations/{ada_at_night.server.ids['simulation']}/", NAME)
    _drawn(page)
    ada_at_night.picture("simulation-dark")
