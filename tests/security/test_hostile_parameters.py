"""Whatever stands behind the question mark of a page's address: an answer, never a server error, on
every database.
"""

from urllib.parse import quote

import pytest
from django.test import Client

from tests.builders import a_cluster, a_job, a_team, a_user
from tests.builders_agents import a_node_with_agent

pytestmark = pytest.mark.django_db

NUMBERS = ("0", "-1", "abc", "1e9", "9" * 30, "1.5", "\uff11", "last", "")
TEXTS = (
    "\0", "a\0b", "%", "_", "\\", "%25", "ß", "İ", "\N{SLICE OF PIZZA}", "\u202e", "x" * 5000,
    "' OR 1=1 --", "<script>", "{}",
    "../..", "\t\n",
)  # fmt: skip
NO_UTF8 = "%ff%fe"
PAGES = {
    "/": ("state", "team", "mine", "search", "page"),
    "/submit/": ("from",),
    "/nodes/": ("page",),
    "/timeline/": ("cluster", "span", "page"),
    "/timeline/figure.json": ("cluster", "span", "page"),
    "/rounds/": ("page",),
    "/kinds/": ("search",),
    "/costs/": ("cluster", "period", "from", "to", "by", "page"),
    "/costs/figure.json": ("cluster", "period", "from", "to", "by"),
    "/costs/costs.csv": ("cluster", "period", "from", "to", "by"),
    "/simulations/": ("page",),
    "/simulations/new/": ("from",),
    "/simulations/compare/": ("id",),
    "/admin/jobs/job/": ("q", "p", "o", "state__exact"),
    "/login/": ("next",),
    "/what-if/": ("cluster", "policy"),
    "/api/v1/jobs/": ("search", "state", "team", "limit", "offset"),
    "/api/v1/nodes/": ("limit", "offset", "cluster"),
}


@pytest.fixture
def operator() -> Client:
    cluster, team = a_cluster(), a_team("vision")
    person = a_user("grace", operator=True)
    for name in ("train ß", "100%_done", "\N{SLICE OF PIZZA}", "plain"):
        a_job(cluster=cluster, team=team, user=person, name=name)
    a_node_with_agent(cluster)
    client = Client()
    client.force_login(person)
    return client


@pytest.mark.parametrize("path", PAGES)
def test_no_parameter_of_a_page_breaks_the_server(operator: Client, path: str) -> None:
    for name in PAGES[path]:
        for value in (*map(quote, NUMBERS + TEXTS), NO_UTF8):
            answer = operator.get(f"{path}?{name}={value}")
            assert answer.status_code in (200, 302, 400, 404), (name, value, answer.status_code)


@pytest.mark.parametrize(
    "path", ["/?search=%00", "/?%00=1", "/shared/simulations/a%00b/", "/admin/jobs/job/?q=%00"]
)
def test_an_address_with_a_nul_character_is_refused_as_a_page(operator: Client, path: str) -> None:
    answer = operator.get(path)
    assert answer.status_code == 400
    assert b"<html" in answer.content
    assert answer["Cache-Control"] == "no-store"
    assert operator.get(path.replace("%00", "%2500")).status_code in (200, 302, 404)


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("%", "100%_done"),
        ("_", "100%_done"),
        ("\N{SLICE OF PIZZA}", "\N{SLICE OF PIZZA}"),
        ("ß", "train ß"),
    ],
)
def test_a_search_means_what_it_says(operator: Client, search: str, found: str) -> None:
    """The database's wildcards are letters as others are."""
    rows = operator.get("/", {"search": search}).context["rows"]
    assert [row.job.name for row in rows] == [found]
