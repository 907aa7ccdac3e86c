"""Names, reasons and logs that attack: shown as text on every page, under a policy that nothing
violates.
"""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.builders_browser import Visitor

pytestmark = pytest.mark.browser
PAYLOAD = "<img src=x onerror=window.pwned=1><script>window.pwned=1</script><b id=injected>"
MAKE = """
from clusters.models import Node
from jobs.models import Assignment
from clusters.models.nodes import State
from jobs.models import Job
from tests.builders import a_job
from tests.builders_pages import a_log, an_assignment
payload = {payload!r}
source = Job.objects.get(pk={running!r})
node = source.assignments.first().node
job = a_job(
    source.cluster, team=source.team, user=source.user, name=payload, state="failed",
    failure_reason=payload + "\\x1b[31m",
)
done = an_assignment(job, node, live=False, reason=payload)
a_log(done, payload + "\\x1b[2J\\x1b]0;x\\x07 \\u202egnp.exe \\x00\\n" + "x" * 100_000 + "\\n")
Node.objects.filter(pk=node.pk).update(
    reason=payload, state=State.CORDONED, name="<a href='//x'>n</a>"
)
print(job.pk, node.name)
"""
HARMLESS = """
from clusters.models import Node
from jobs.models import Job
Job.objects.filter(pk={job!r}).update(name='harmless again')
Node.objects.filter(name="<a href='//x'>n</a>").update(name={was!r})
"""
WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(event.violatedDirective + " " + event.blockedURI);
});
"""


@pytest.fixture
def watched(grace: Visitor) -> Iterator[Visitor]:
    """An operator whose pages note what would be against the policy; none is."""
    grace.page.add_init_script(WATCH)
    yield grace
    assert grace.complaints == []


def assert_harmless(page: Page) -> None:
    assert page.evaluate("window.pwned") is None, "a text ran as a script"
    expect(page.locator("#injected")).to_have_count(0)
    assert page.evaluate("window.violations") == []


def test_texts_of_others_are_only_text(watched: Visitor) -> None:
    ids = watched.server.ids
    made = watched.server.do(MAKE.format(payload=PAYLOAD, running=ids["running"]))
    job, was = made.split()
    for path in (
        "/",
        "/?state=failed",
        f"/jobs/{job}/",
        f"/submit/?from={job}",
        "/nodes/",
        "/timeline/",
        "/rounds/",
        "/kinds/",
    ):
        watched.page.goto(watched.server.url + path)
        watched.page.wait_for_load_state("load")
        if path == "/timeline/":
            expect(watched.page.locator("#gantt[aria-busy=false]")).to_be_visible()
            expect(watched.page.locator("#gantt a")).to_have_count(0)
            lanes = watched.page.locator("#gantt .ytick", has_text="<a href='//x'>n</a>")
            expect(lanes.first).to_be_visible()
        assert_harmless(watched.page)
    watched.page.goto(f"{watched.server.url}/jobs/{job}/")
    log = watched.page.get_by_label("Last lines of the log")
    expect(log).to_contain_text("window.pwned=1")
    assert "\x1b" not in (log.text_content() or "")
    watched.server.do(HARMLESS.format(job=job, was=was))


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/submit/",
        "/jobs/{running}/",
        "/nodes/",
        "/timeline/",
        "/rounds/",
        "/rounds/{round}/",
        "/kinds/",
        "/costs/",
    ],
)
def test_no_page_breaks_the_policy_nor_tries_to(watched: Visitor, path: str) -> None:
    page = watched.page
    page.goto(watched.server.url + path.format(**watched.server.ids))
    page.wait_for_load_state("load")
    if path == "/timeline/":
        expect(page.locator("#gantt .bars .point").first).to_be_attached()
        page.locator("#gantt .bars .point path").first.hover(force=True)
        assert "rgb" in page.evaluate(
            "getComputedStyle(document.querySelector('#gantt .main-svg')).backgroundColor"
        )
    assert_harmless(page)
