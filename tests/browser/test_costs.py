"""The page of energy and cost in a real browser."""

import pytest
from playwright.sync_api import expect

from tests.builders_browser import Visitor

pytestmark = pytest.mark.browser


def test_costs_are_drawn_and_listed(grace: Visitor) -> None:
    page = grace.open("/costs/", "Energy and cost")
    expect(page.locator("#costs[aria-busy=false]")).to_be_visible()
    expect(page.locator("#costs .bars .point").nth(2)).to_be_attached()
    grace.picture("costs")
    page.get_by_label("Summed up by", exact=True).select_option("job")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("link", name="convnet-digits-large")).to_be_visible()
    grace.picture("costs-by-job")


def test_members_see_their_own_teams_costs_only(ada: Visitor) -> None:
    page = ada.open("/costs/?by=job", "Energy and cost")
    expect(page.get_by_text("your teams' work only")).to_be_visible()
    expect(page.get_by_text("not-for-ada")).to_have_count(0)


def test_the_file_of_costs_can_be_downloaded(grace: Visitor) -> None:
    page = grace.open("/costs/?by=node", "Energy and cost")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download CSV").click()
    assert download.value.suggested_filename.startswith("costs-demo-by-node-")


def test_a_time_without_work_says_so(grace: Visitor) -> None:
    page = grace.open("/costs/?from=2020-01-01&to=2020-01-02", "Energy and cost")
    expect(page.get_by_text("No energy in this time")).to_be_visible()
    grace.picture("costs-empty")


def test_costs_fit_a_phone(ada_on_a_phone: Visitor) -> None:
    page = ada_on_a_phone.open("/costs/", "Energy and cost")
    expect(page.locator("#costs[aria-busy=false]")).to_be_visible()
    ada_on_a_phone.picture("phone-costs")
    assert ada_on_a_phone.overflow_px() == 0


def test_costs_are_dark_at_night(ada_at_night: Visitor) -> None:
    page = ada_at_night.open("/costs/?period=30d", "Energy and cost")
    expect(page.locator("#costs[aria-busy=false]")).to_be_visible()
    ada_at_night.picture("costs-dark")
