"""Every page in a real browser: it shows what it should, complains of nothing, and leaves a
picture.
"""

import pytest
from playwright.sync_api import expect

from tests.builders_browser import PASSWORD, Visitor

pytestmark = pytest.mark.browser


def test_login_lets_the_right_password_in_and_says_why_not_otherwise(stranger: Visitor) -> None:
    page = stranger.open("/nodes/", "Log in")
    stranger.picture("login")
    page.get_by_label("Name").fill("ada")
    page.get_by_label("Password").fill("not this one")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("password is wrong")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Nodes")).to_be_visible()


def test_the_queue_says_for_every_waiting_job_why_it_waits(ada: Visitor) -> None:
    page = ada.open("/", "Queue")
    expect(page.get_by_text("It waits for alpha, held by convnet-digits-large.")).to_be_visible()
    expect(page.get_by_text("not-for-ada")).to_have_count(0)
    ada.picture("queue")


def test_the_queue_filters_as_one_types(ada: Visitor) -> None:
    page = ada.open("/", "Queue")
    page.get_by_label("Search").press_sequentially("recurrent")
    expect(page.get_by_role("link", name="convnet-digits-large")).to_have_count(0)
    expect(page.get_by_role("link", name="recurrent-sequences")).to_be_visible()
    assert "search=recurrent" in page.url
    page.get_by_label("Search").fill("no such job")
    expect(page.get_by_text("No job fits these filters")).to_be_visible()
    assert ada.complaints == []


def test_the_queue_fits_a_phone(ada_on_a_phone: Visitor) -> None:
    ada_on_a_phone.open("/", "Queue")
    ada_on_a_phone.picture("queue-phone")
    assert ada_on_a_phone.overflow_px() == 0


def test_the_queue_is_dark_at_night_until_a_person_wants_light(ada_at_night: Visitor) -> None:
    page = ada_at_night.open("/", "Queue")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(16, 21, 28)"
    ada_at_night.picture("queue-dark")
    page.get_by_role("button", name="Switch to light mode").click()
    page.reload()
    assert page.evaluate(ground) == "rgb(245, 246, 248)"


def test_the_form_shows_what_is_wrong_beside_the_field_and_then_takes_the_job(ada: Visitor) -> None:
    page = ada.open("/submit/", "Submit a job")
    ada.picture("submit")
    page.get_by_label("Name").fill("from-a-browser")
    page.get_by_role("textbox", name="Command").fill("python train.py")
    page.get_by_label("Steps per epoch").fill("many")
    page.get_by_role("button", name="Submit the job").click()
    expect(page.locator("#id_steps_per_epoch_error")).to_contain_text("must be a whole number")
    ada.complaints.clear()  # the browser notes the 422
    ada.picture("submit-refused")
    page.get_by_label("Steps per epoch").fill("200")
    page.get_by_role("button", name="Submit the job").click()
    expect(page.get_by_role("heading", name="from-a-browser", exact=True)).to_be_visible()
    assert ada.complaints == []


@pytest.mark.parametrize("visitor", ["ada", "ada_at_night", "ada_on_a_phone"])
def test_the_form_takes_an_array_and_says_what_is_wrong_with_it(
    request: pytest.FixtureRequest, visitor: str
) -> None:
    person: Visitor = request.getfixturevalue(visitor)
    page = person.open("/submit/", "Submit a job")
    page.get_by_label("Name").fill("sweep")
    page.get_by_role("textbox", name="Command").fill("python train.py")
    page.get_by_label("Array").fill("9-0%3")
    page.get_by_role("button", name="Submit the job").click()
    expect(page.locator("#id_array_error")).to_contain_text("9-0 runs backwards; write 0-9")
    person.complaints.clear()  # the browser notes the 422
    person.picture(f"submit-array-refused-{visitor}")
    assert person.overflow_px() == 0
    page.get_by_label("Array").fill("0-9%3")
    page.get_by_role("button", name="Submit the job").click()
    expect(page.get_by_role("heading", name="sweep[0-9]", exact=True)).to_be_visible()
    person.picture(f"array-{visitor}")
    assert person.overflow_px() == 0


def test_a_job_shows_progress_log_history_and_cost(ada: Visitor) -> None:
    page = ada.open(f"/jobs/{ada.server.ids['running']}/", "convnet-digits-large")
    expect(page.get_by_role("progressbar").first).to_have_attribute("value", "49.17")
    expect(page.get_by_label("Last lines of the log")).to_contain_text("step 1160 loss")
    expect(page.get_by_label("Placements")).to_contain_text("migrated")
    expect(page.get_by_label("Progress").first).to_be_visible()
    ada.picture("job")


def test_a_job_that_is_cancelled_asks_first(ada: Visitor) -> None:
    page = ada.open(f"/jobs/{ada.server.ids['waiting']}/", "recurrent-sequences")
    page.get_by_role("button", name="Hold").click()
    ada.picture("confirm")
    page.get_by_role("button", name="Leave it as it is").click()
    expect(page.get_by_text("It waits for alpha")).to_be_visible()
    page.get_by_role("button", name="Hold").click()
    page.get_by_role("button", name="Hold the job").click()
    expect(page.get_by_text("The job is on hold")).to_be_visible()
    page.get_by_role("button", name="Release").click()
    expect(page.get_by_text("The job is released")).to_be_visible()
    assert ada.complaints == []


def test_a_job_page_follows_what_happens_without_a_reload(ada: Visitor) -> None:
    job = ada.server.ids["running"]
    page = ada.open(f"/jobs/{job}/", "convnet-digits-large")
    page.locator("[data-live-status=live]").wait_for()
    ada.server.do(
        "from jobs.models import Assignment; from tests.builders_pages import"
        f" a_log\na_log(Assignment.objects.get(job={job!r}, state='running'), 'a line from"
        " afar\\n', offset=10**6)"
    )
    expect(page.get_by_label("Last lines of the log")).to_contain_text(
        "a line from afar", timeout=10_000
    )
    assert ada.complaints == []


def test_nodes_show_what_runs_on_each_gpu_and_mark_what_is_emulated(ada: Visitor) -> None:
    page = ada.open("/nodes/", "Nodes")
    bravo = page.get_by_role("article", name="bravo")
    expect(bravo.get_by_role("link", name="dense-diabetes")).to_have_count(2)
    expect(bravo).to_contain_text("another team's job")
    expect(bravo).to_contain_text("emulated")
    expect(page.get_by_role("button", name="Drain")).to_have_count(0)
    ada.picture("nodes")


def test_operators_cordon_nodes_and_change_roles(grace: Visitor) -> None:
    page = grace.open("/nodes/", "Nodes")
    charlie = page.get_by_role("article", name="charlie")
    charlie.get_by_role("button", name="Cordon").click()
    expect(page.get_by_text("charlie gets no new jobs")).to_be_visible()
    grace.picture("nodes-operator")
    charlie.get_by_role("button", name="Let it take work again").click()
    charlie.get_by_label("Role of charlie").select_option("both")
    charlie.get_by_role("button", name="Set role").click()
    expect(page.get_by_text("charlie now serves production and profiling")).to_be_visible()


def test_the_timeline_draws_past_and_expected_assignments(ada: Visitor) -> None:
    page = ada.open("/timeline/", "Timeline")
    expect(page.locator("#gantt[aria-busy=false]")).to_be_visible()
    expect(page.locator("#gantt .bars .point").nth(5)).to_be_attached()
    page.locator("#gantt .bars .point path").first.hover(force=True)
    ada.picture("timeline")


def test_rounds_say_why_they_ran_and_what_they_changed(ada: Visitor) -> None:
    page = ada.open("/rounds/", "Rounds")
    ada.picture("rounds")
    page.get_by_role("link", name="demo #13").click()
    expect(page.get_by_label("Changes")).to_contain_text("alpha (GPU 0, 1)")
    ada.picture("round")


def test_kinds_show_what_is_measured_on_which_type(ada: Visitor) -> None:
    page = ada.open("/kinds/", "Kinds")
    expect(page.get_by_role("row", name="convnet digits")).to_contain_text("measured")
    ada.picture("kinds")


@pytest.mark.parametrize(
    "path",
    [
        "/submit/",
        "/jobs/{running}/",
        "/nodes/",
        "/timeline/",
        "/rounds/",
        "/rounds/{round}/",
        "/kinds/",
    ],
)
def test_every_page_fits_a_phone(ada_on_a_phone: Visitor, path: str) -> None:
    page = ada_on_a_phone.page
    page.goto(ada_on_a_phone.server.url + path.format(**ada_on_a_phone.server.ids))
    page.wait_for_load_state("load")
    if path == "/timeline/":
        expect(page.locator("#gantt[aria-busy=false]")).to_be_visible()
    ada_on_a_phone.picture(f"phone-{path.strip('/').split('/')[0]}{'-one' if '{' in path else ''}")
    assert ada_on_a_phone.overflow_px() == 0


def test_the_administration_works_under_its_own_policy(grace: Visitor) -> None:
    page = grace.page
    page.goto(f"{grace.server.url}/admin/clusters/cluster/{grace.server.ids['cluster']}/change/")
    expect(page.locator("#id_policy")).to_be_visible()
    grace.picture("admin-cluster")


def test_the_apis_own_page_works_under_its_policy(ada: Visitor) -> None:
    page = ada.page
    page.goto(ada.server.url + "/api/docs/")
    expect(page.get_by_text("/api/v1/jobs/").first).to_be_visible(timeout=30_000)
    ada.picture("api-docs")


def test_an_unknown_job_is_answered_with_a_page(ada: Visitor) -> None:
    ada.open("/jobs/00000000-0000-0000-0000-000000000000/", "Nothing is here")
    ada.complaints.clear()  # the browser notes the 404
    ada.picture("not-found")


def test_operators_say_how_many_jobs_share_a_gpu_and_the_form_keeps_its_shape(
    grace: Visitor,
) -> None:
    page = grace.open("/nodes/", "Nodes")
    bravo = page.get_by_role("article", name="bravo")
    label, button = (
        bravo.get_by_text("Jobs per GPU of"),
        bravo.get_by_role("button", name="Set jobs per GPU of bravo"),
    )
    for part in (label, button, bravo.get_by_label("Jobs per GPU of bravo", exact=True)):
        box = part.first.bounding_box()
        assert box is not None
        assert box["height"] < 40  # on one line
    bravo.get_by_label("Jobs per GPU of bravo", exact=True).fill("100")
    button.click()
    expect(
        page.get_by_text("Jobs per GPU: must be from 1 (shared with nobody) to 16, not 100")
    ).to_be_visible()
    bravo.get_by_label("Jobs per GPU of bravo", exact=True).fill("2")
    button.click()
    expect(page.get_by_text("Up to 2 jobs may now share each GPU of bravo.")).to_be_visible()
    expect(bravo).to_contain_text("up to 2 jobs per GPU")
    grace.picture("nodes-slots")
