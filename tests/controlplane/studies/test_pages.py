"""The pages of simulations: the form, how far it is, results side by side, and what another policy
would decide.
"""

import re
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from controlplane.loop.live.solver import solve_here
from controlplane.loop.models import Round
from controlplane.studies.models import Simulation
from controlplane.studies.pages.selectors import results_table
from controlplane.studies.services import simulation_share
from jobs.models import Job
from tests.builders import a_cluster, a_node, a_team, a_user
from tests.builders_pages import Demo, a_busy_cluster
from tests.builders_studies import RESULTS, a_done_simulation, a_simulation

pytestmark = pytest.mark.django_db


@pytest.fixture(name="ada")
def _ada() -> User:
    return a_user("ada", team=a_team("vision"))


@pytest.fixture(name="browser")
def _browser(ada: User, client: Client) -> Client:
    client.force_login(ada)
    return client


def text(client: Client, path: str, status: int = 200) -> str:
    answer = client.get(path)
    assert answer.status_code == status
    return answer.content.decode()


def typed(**fields: Any) -> dict[str, Any]:
    """The form with what it shows at first, and these fields put over it."""
    return {
        "name": "by hand", "cluster": "written", "workload": "poisson", "jobs": "8",
        "options": "gap_s: 300", "seeds": "1..2",
        "cluster_yaml": "nodes: [{name: v, gpu_type: V100, gpus: 2}]\nenergy: {price_per_kwh: 0.2}",
        "policy_fifo": "1", "policy_randomized_greedy": "1",
        "parameters_randomized_greedy": "iterations: 10, mode: coded",
        **fields,
    }  # fmt: skip


def test_what_is_typed_becomes_a_study(browser: Client, ada: User) -> None:
    answer = browser.post("/simulations/new/", typed(team="vision", switch_launch_s="30"))
    made = Simulation.objects.get()
    assert answer["Location"] == f"/simulations/{made.pk}/"
    document = made.document
    assert [(p["name"], p["parameters"]) for p in document["policies"]] == [
        ("randomized_greedy", {"iterations": 10, "mode": "coded"}),
        ("fifo", {}),
    ]
    assert (document["seeds"], document["switches"], document["workload"]["jobs"]) == (
        [1, 2],
        {"launch_s": 30.0},
        8,
    )
    assert made.team is not None
    assert made.team.name == "vision"


def test_a_trace_may_be_a_file_or_pasted(browser: Client) -> None:
    lines = "arrival_s,run_s\n0,60\n10,60"
    trace = SimpleUploadedFile("trace.csv", lines.encode())
    for fields in ({"trace": trace}, {"trace_text": lines}):
        browser.post("/simulations/new/", typed(workload="csv", options="", jobs="", **fields))
    texts = [s.document["workload"]["text"].strip() for s in Simulation.objects.all()]
    assert texts == [lines, lines]


def test_gavels_generator_takes_its_tables_as_the_file_or_its_kinds_as_an_option(
    browser: Client,
) -> None:
    tables = '{"v100": {"(\'a\', 1)": {"null": 2.0}}}'
    kinds = (
        "kinds: [{id: a, throughputs: [{gpu_type: V100, gpus: 1, steps_per_s: 2, source:"
        " declared}]}]"
    )
    for fields in ({"trace_text": tables, "options": ""}, {"options": kinds}):
        browser.post("/simulations/new/", typed(workload="gavel_generator", **fields))
    workloads = [s.document["workload"] for s in Simulation.objects.order_by("created_at")]
    assert [sorted(w) for w in workloads] == [["jobs", "tables", "type"], ["jobs", "kinds", "type"]]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"workload": "gavel_generator", "options": ""}, "choose a file, or paste its text"),
        ({"seeds": "many"}, "must be whole numbers such as 1, 2, 3"),
        ({"jobs": "lots"}, "must be a number"),
        ({"cluster_yaml": "nodes: ["}, "line 1"),
        (
            {"cluster_yaml": "nodes: [{name: v, gpu_type: H100, gpus: 2}]"},
            "give the watts of a node with H100, such as power",
        ),
        ({"parameters_fifo": "speed: 2"}, "fifo: speed: no such parameter"),
        ({"parameters_fifo": "{"}, "fifo: line 1"),
        ({"parameters_fifo": "{"}, "write parameters as name: value"),
        ({"policy_fifo": None, "policy_randomized_greedy": None}, "tick at least one policy"),
        (
            {"switch_pairs_observed": "3"},
            "Part of the pairs that are measured, not estimated: must be",
        ),
        ({"workload": "csv"}, "choose a file, or paste its text"),
        (
            {
                "workload": "csv",
                "options": "",
                "jobs": "",
                "trace_text": "arrival_s,run_s\n0,60\nnever,60",
            },
            "line 3: arrival_s must be a number",
        ),
        (
            {
                "workload": "swf",
                "options": "",
                "jobs": "",
                "trace_text": "words, nothing but words",
            },
            "jobs cannot be used",
        ),
        ({"workload": "history"}, "a written one has no history"),
        ({"workload": "queue"}, "a written one has no queue"),
        ({"options": "colour: red"}, "colour"),
        ({"switch_launch_s": "-1"}, "Seconds to launch a job: must be"),
        ({"study": "just words"}, "must be a study"),
        ({"study": "name: x\ncluster: {live: nowhere}"}, "must be the name of a cluster"),
    ],
)
def test_what_is_wrong_stands_beside_its_field_and_nothing_is_lost(
    browser: Client, fields: dict[str, Any], words: str
) -> None:
    given = {name: value for name, value in typed(**fields).items() if value is not None}
    answer = browser.post("/simulations/new/", given)
    assert answer.status_code == 422
    page = answer.content.decode()
    assert words in page.replace("&#x27;", "'")
    assert 'value="by hand"' in page
    assert not Simulation.objects.exists()


def test_a_wrong_switch_is_named_once(browser: Client) -> None:
    page = browser.post("/simulations/new/", typed(switch_estimate_error="-1")).content.decode()
    assert page.count("must be &gt;= 0") == 1


def test_the_form_says_what_each_policy_takes(browser: Client) -> None:
    page = text(browser, "/simulations/new/")
    assert "<code>form</code> (aware or agnostic or sharing; default aware)" in page
    assert "takes no parameters" in page


def test_what_if_says_what_each_policy_takes(demo: Demo, client: Client) -> None:
    client.force_login(demo.user)
    page = text(client, "/what-if/")
    assert "<code>mode</code> (paper or coded; default paper)" in page
    assert 'placeholder="such as moves: 200, work: 20000"' in page


def test_an_earlier_study_can_be_changed_and_run_again(browser: Client, ada: User) -> None:
    page = text(browser, f"/simulations/new/?from={a_simulation(ada).pk}")
    pasted = re.search(r"<textarea id=\"study\"[^>]*>(.*?)</textarea>", page, re.DOTALL)
    assert pasted
    from html import unescape

    answer = browser.post("/simulations/new/", {"study": unescape(pasted[1])})
    assert answer.status_code == 302, answer.content.decode()[-500:]
    assert text(browser, f"/simulations/new/?from={a_simulation(a_user()).pk}", 404)


def test_the_page_follows_what_runs_and_stands_still_when_it_is_over(
    browser: Client, ada: User
) -> None:
    running = a_simulation(
        ada, state="running", progress=0.4, message="2 of 5 runs done", left_s=90.0
    )
    page = text(browser, f"/simulations/{running.pk}/")
    for words in ('hx-trigger="every 2s"', "2 of 5 runs done", "1 min 30 s left", 'value="40.00"'):
        assert words in page
    part = browser.get(
        f"/simulations/{running.pk}/", headers={"HX-Request": "true"}
    ).content.decode()
    assert part.startswith('<div id="simulation"')
    assert "every 2s" not in text(browser, f"/simulations/{a_done_simulation(ada).pk}/")


def test_a_failed_one_says_why(browser: Client, ada: User) -> None:
    failed = a_simulation(
        ada, state="failed", message="workload: <b>line 3</b>: run_s must be a number"
    )
    assert "&lt;b&gt;line 3&lt;/b&gt;: run_s must be a number" in text(
        browser, f"/simulations/{failed.pk}/"
    )


def test_results_mark_what_is_best(browser: Client, ada: User) -> None:
    page = text(browser, f"/simulations/{a_done_simulation(ada).pk}/")
    assert '<strong class="text-good">1.68 EUR</strong>' in page
    assert "cost −30% against the first" in page
    assert "1 h 12 min" in page


def test_a_policy_that_left_jobs_unfinished_is_never_marked_best() -> None:
    results = deepcopy(RESULTS)
    results["metrics"].append({"name": "unfinished", "words": "Jobs never completed", "unit": ""})
    for policy, left in zip(results["policies"], (0.0, 2.0), strict=True):
        policy["mean"]["unfinished"] = {"mean": left, "half_width": None, "n": 1}
    results["policies"][1]["unfinished_jobs"] = [{"seed": 1, "job": "a", "reason": "left"}]
    table = results_table([("small", results)])
    marked = [{c.heading for c in row.cells if c.best} for row in table.rows]
    assert "Total cost" in marked[0]
    assert marked[1] == set()
    assert any("randomized_greedy left jobs unfinished" in note for note in table.notes)


def test_simulations_are_compared_side_by_side(browser: Client, ada: User) -> None:
    one, two = (
        a_done_simulation(ada, study={"name": "calm"}),
        a_done_simulation(ada, study={"name": "busy"}),
    )
    page = text(browser, f"/simulations/compare/?id={one.pk}&id={two.pk}")
    assert page.count('<span class="title">fifo</span>') == 2
    assert text(browser, f"/simulations/compare/?id={a_done_simulation(a_user()).pk}", 404)
    assert text(browser, "/simulations/compare/?id=nonsense", 404)


@pytest.mark.parametrize(
    "path", ["/simulations/", "/simulations/compare/", "/simulations/new/", "/what-if/"]
)
def test_a_page_of_nothing_says_how_to_begin(browser: Client, path: str) -> None:
    assert "No cluster yet" in text(browser, path) or "Simulate</" in text(browser, path)


def test_a_page_says_until_when_a_simulation_is_kept(browser: Client, ada: User) -> None:
    done = a_done_simulation(ada, ended_at=datetime(2026, 1, 1, 12, tzinfo=UTC))
    assert "kept until 2026-04-01" in text(browser, f"/simulations/{done.pk}/")
    simulation_share(done, ada)
    assert "kept until" not in text(browser, f"/simulations/{done.pk}/")


@pytest.mark.parametrize("action", ["cancel", "share", "unshare", "delete"])
def test_people_act_by_buttons(browser: Client, ada: User, action: str) -> None:
    simulation = a_simulation(ada)
    path = f"/simulations/{simulation.pk}/do/{action}/"
    assert browser.get(path).status_code == 405
    assert browser.post(path).status_code == 302
    left = Simulation.objects.filter(pk=simulation.pk).values_list("state", flat=True).first()
    assert left == {"cancel": "cancelled", "delete": None}.get(action, "queued")
    assert browser.post(f"/simulations/{a_simulation(ada).pk}/do/explode/").status_code == 404


def test_pages_take_few_queries_whatever_they_show(
    browser: Client, ada: User, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for _ in range(5):
        done = a_done_simulation(ada)
    for path in ("/simulations/", f"/simulations/{done.pk}/", "/simulations/new/"):
        with django_assert_max_num_queries(7):
            text(browser, path)


def test_no_page_has_inline_scripts_or_styles_or_fetches_from_elsewhere(
    browser: Client, ada: User
) -> None:
    done = a_done_simulation(ada)
    a_node(a_cluster(name="lab"))
    for path in (
        "/simulations/",
        f"/simulations/{done.pk}/",
        "/simulations/new/",
        "/what-if/",
        f"/simulations/compare/?id={done.pk}",
    ):
        page = text(browser, path)
        assert not re.search(r"<script(?![^>]*\ssrc=)", page)
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=", page)


@pytest.fixture(name="demo")
def _demo(monkeypatch: pytest.MonkeyPatch) -> Demo:
    monkeypatch.setattr("controlplane.studies.what_if.decide.solve_apart", solve_here)
    return a_busy_cluster()


def asked(client: Client, **fields: str) -> str:
    answer = client.post(
        "/what-if/", {"cluster": "demo", "policy": "fifo", "parameters": "", **fields}
    )
    assert answer.status_code == 200, answer.content.decode()[-300:]
    return answer.content.decode()


def test_what_if_shows_both_decisions_and_changes_nothing(demo: Demo, client: Client) -> None:
    client.force_login(demo.operator)
    before = (
        list(Job.objects.values("pk", "state", "waiting_code").order_by("pk")),
        Round.objects.count(),
    )
    page = asked(client, policy="randomized_greedy", parameters="iterations: 5")
    for words in (
        "recurrent-sequences",
        "Changes",
        "Energy cost per hour",
        "Lateness of jobs with GPUs",
        "data-chart",
    ):
        assert words in page
    assert (
        list(Job.objects.values("pk", "state", "waiting_code").order_by("pk")),
        Round.objects.count(),
    ) == before
    demo.cluster.refresh_from_db()
    assert demo.cluster.policy_parameters == {}


def test_what_if_names_no_other_teams_jobs(demo: Demo, client: Client) -> None:
    client.force_login(demo.user)
    page = asked(client)
    assert "not-for-ada" not in page
    assert "recurrent-sequences" in page
    stranger = Client()
    stranger.force_login(a_user(team=a_team()))
    page = asked(stranger)
    assert not [name for name in Job.objects.values_list("name", flat=True) if name in page]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"policy": "best"}, "known are"),
        ({"parameters": "speed: 2"}, "no such parameter"),
        ({"parameters": "{"}, "write them as name: value"),
    ],
)
def test_what_if_says_what_is_wrong(
    demo: Demo, client: Client, fields: dict[str, str], words: str
) -> None:
    client.force_login(demo.user)
    answer = client.post(
        "/what-if/", {"cluster": "demo", "policy": "fifo", "parameters": "", **fields}
    )
    assert answer.status_code == 422
    assert words in answer.content.decode()
