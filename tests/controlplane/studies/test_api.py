"""Simulations by REST: who may do what, what is refused and why, and the files."""

import json
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from knox.models import AuthToken
from pytest_django import DjangoAssertNumQueries, Settings

from controlplane.studies.documents import MOST_RUNS
from controlplane.studies.models import Simulation
from controlplane.studies.services import MOST_ACTIVE
from jobs.models import Team, TeamRole
from tests.builders import a_cluster, a_gpu_type, a_job, a_kind, a_node, a_team, a_user, at
from tests.builders_jobs import api
from tests.builders_pages import an_assignment
from tests.builders_sharing import a_known_pair, a_shared_node, a_sharing_job
from tests.builders_studies import REPORT, a_done_simulation, a_simulation, a_study

pytestmark = pytest.mark.django_db
ALL = "/api/v1/simulations/"


@pytest.fixture(name="team")
def _team() -> Team:
    return a_team("vision")


@pytest.fixture(name="ada")
def _ada(team: Team) -> User:
    return a_user("ada", team=team)


def one(simulation: Simulation, what: str = "") -> str:
    return f"{ALL}{simulation.pk}/{what}"


def refused(answer: Any, field: str) -> str:
    assert answer.status_code == 400, answer.content
    fields = answer.json()["error"]["fields"]
    assert list(fields) == [field], fields
    return str(fields[field][0])


def test_a_study_becomes_a_simulation_that_waits(ada: User) -> None:
    answer = api(ada).post(ALL, a_study(seeds=[1, 2]), format="json")
    assert answer.status_code == 201
    body = answer.json()
    assert (body["state"], body["user"], body["team"], body["share"]) == ("queued", "ada", None, "")
    expected = {
        "cluster": "simulated",
        "live": False,
        "nodes": 2,
        "gpus": 4,
        "workload": "poisson",
        "jobs": 8,
        "runs": 4,
    }
    assert {name: body["summary"][name] for name in expected} == expected


def test_a_worker_is_told_once_it_is_committed(
    ada: User, monkeypatch: Any, django_capture_on_commit_callbacks: Any
) -> None:
    told: list[bool] = []
    monkeypatch.setattr("controlplane.studies.services.hint_simulations", lambda: told.append(True))
    with django_capture_on_commit_callbacks(execute=True):
        a_simulation(ada)
        assert not told
    assert told == [True]


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"cluster": None}, "cluster", "is missing"),
        ({"policies": [{"name": "best"}]}, "policies", "known are: "),
        (
            {"policies": [{"name": "fifo", "parameters": {"speed": 2}}]},
            "policies",
            "no such parameter",
        ),
        ({"policies": [{"file": "/tmp/mine.py"}]}, "policies", "only run from the command line"),
        ({"seeds": [1, 1]}, "seeds", "different ones"),
        ({"seeds": list(range(MOST_RUNS))}, "seeds", "too many"),
        ({"switches": {"gremlins": 1}}, "switches", "known are"),
        ({"switches": {"launch_s": -1}}, "switches", "must be >= 0"),
        (
            {"workload": {"type": "csv", "path": "/etc/passwd"}},
            "workload",
            "the trace itself as `text`",
        ),
        ({"workload": {"type": "crystal ball"}}, "workload", "must be one of andreas"),
        ({"workload": {"type": "poisson", "jobs": 10**9}}, "workload", "at most 1,000,000"),
        (
            {"workload": {"type": "history", "cluster": "nowhere"}},
            "workload",
            "must be the name of a cluster",
        ),
        ({"cluster": {"live": "nowhere"}}, "cluster", "must be the name of a cluster"),
        (
            {
                "cluster": {
                    "nodes": [{"name": "v", "gpu_type": "V100", "gpus": 1000, "count": 5000}]
                }
            },
            "cluster",
            "at most 10,000",
        ),
        ({"cluster": {"nodes": []}}, "cluster", "at least one node"),
        ({"name": "a\0b"}, "name", "NUL"),
        ({"name": "\ud800"}, "name", "half a character"),
        ({"colour": "red"}, "study", "no such field"),
        ({"team": "another"}, "team", "must be a team of which you are a member"),
    ],
)
def test_a_wrong_study_is_refused_naming_the_field(
    ada: User, fields: dict[str, Any], field: str, words: str
) -> None:
    a_team("another")
    assert words in refused(
        api(ada).post(ALL, json.dumps(a_study(**fields)), content_type="application/json"), field
    )
    assert not Simulation.objects.exists()


def test_a_study_nested_beyond_all_measure_is_refused(ada: User) -> None:
    deep: Any = []
    for _ in range(900):
        deep = [deep]
    answer = api(ada).post(ALL, a_study(workload={"type": "jobs", "jobs": deep}), format="json")
    assert answer.status_code == 400


def test_one_person_may_not_fill_the_queue(ada: User) -> None:
    for _ in range(MOST_ACTIVE):
        a_simulation(ada)
    assert api(ada).post(ALL, a_study(), format="json").status_code == 409


def test_a_live_cluster_is_written_out_as_it_is_now(ada: User) -> None:
    cluster = a_cluster(name="lab", period_s=120.0)
    a_node(cluster, name="volta", gpus=2)
    a_node(cluster, name="gone", state="lost")
    assert api(ada).post(ALL, a_study(cluster={"live": "lab"}), format="json").status_code == 201
    found = Simulation.objects.get()
    spec = found.document["cluster"]
    assert [(n["name"], n["gpus"], n["power_w"]) for n in spec["nodes"]] == [
        ("volta", 2, [360.0, 530.0, 700.0])
    ]
    assert (spec["round_s"], spec["energy"]["steps"][0]["price_per_kwh"]) == (120.0, 0.172)
    assert spec["energy"]["steps"][0]["from_s"] == 0.0
    assert found.summary["live"]


def test_a_clusters_history_keeps_what_its_users_asked_for(ada: User, team: Team) -> None:
    cluster = a_cluster(name="lab")
    a_node(cluster, gpus=2)
    deadline_at = timezone.now() + timedelta(hours=3)
    kind = a_kind(steps_per_s={("V100", 1): 1.0})
    a_job(cluster, kind=kind, team=team, may_share=True, may_mix=True, deadline_at=deadline_at)
    workload = {"type": "history", "cluster": "lab", "days": 2}
    assert api(ada).post(ALL, a_study(workload=workload), format="json").status_code == 201
    (job,) = Simulation.objects.get().document["workload"]["jobs"]
    assert (job["may_share"], job["may_mix"]) == (True, True)
    assert job["deadline_s"] == pytest.approx(deadline_at.timestamp())


def test_a_live_cluster_is_written_out_with_prices_by_the_hour_and_with_ones_own_teams(
    ada: User,
) -> None:
    a_node(a_cluster(name="lab"), gpu_type=a_gpu_type("V100", price_per_hour=Decimal("3.1")))
    a_team("others", weight=7.0, order="fifo")
    for user in (ada, a_user(operator=True)):
        assert (
            api(user).post(ALL, a_study(cluster={"live": "lab"}), format="json").status_code == 201
        )
    own, every = (s.document["cluster"] for s in Simulation.objects.order_by("created_at"))
    assert [of["price_per_hour"] for of in own["gpu_types"]] == [3.1]
    vision = {"name": "vision", "weight": 1.0, "order": "fairness", "max_gpus": None}
    assert own["teams"] == [vision]
    others = {"name": "others", "weight": 7.0, "order": "fifo", "max_gpus": None}
    assert every["teams"] == [others, vision]


def test_a_history_holds_the_jobs_of_ones_own_teams_alone(ada: User, team: Team) -> None:
    cluster = a_cluster(name="lab")
    a_node(cluster, name="volta")
    kind = a_kind(steps_per_s={("V100", 1): 2.0})
    for name, of in (("mine", team), ("theirs", a_team())):
        a_job(
            cluster,
            name=name,
            team=of,
            kind=kind,
            state="completed",
            total_steps=500,
            steps_done=500,
        )
    a_job(cluster, name="given up", team=team, kind=kind, state="cancelled")
    workload = {"type": "history", "cluster": "lab", "days": 1}
    for user in (ada, a_user(operator=True)):
        assert (
            api(user)
            .post(ALL, a_study(cluster={"live": "lab"}, workload=workload), format="json")
            .status_code
            == 201
        )
    own, all_jobs = (
        s.document["workload"]["jobs"] for s in Simulation.objects.order_by("created_at")
    )
    assert [(job["name"], job["total_steps"]) for job in own] == [("mine", 500.0)]
    assert {job["name"] for job in all_jobs} == {"mine", "theirs"}


def test_a_queue_holds_what_waits_and_what_runs_where_it_runs(ada: User, team: Team) -> None:
    cluster = a_cluster(name="lab")
    node = a_node(cluster, name="volta", gpus=3)
    broken = node.devices.order_by("uuid")[0]
    broken.healthy = False
    broken.save()
    known, unknown = a_kind(steps_per_s={("V100", 1): 2.0}), a_kind()
    running = a_job(
        cluster,
        name="runs",
        team=team,
        kind=known,
        state="running",
        total_steps=900,
        steps_done=300,
        due_at=at(-60),
    )
    an_assignment(running, node, first=2, steps_done=300)
    on_broken = a_job(
        cluster, name="runs on", team=team, kind=known, state="running", total_steps=900
    )
    an_assignment(on_broken, node, first=0)
    after = a_job(cluster, name="after it", team=team, kind=known)
    after.dependencies.add(running)
    others: list[dict[str, Any]] = [{"team": a_team()}, {"kind": unknown}, {"state": "completed"}]
    for values in others:
        a_job(cluster, **{"team": team, "kind": known, **values})
    study = a_study(cluster={"live": "lab"}, workload={"type": "queue"})
    answer = api(ada).post(ALL, study, format="json")
    assert answer.status_code == 201, answer.content
    found = Simulation.objects.get()
    workload = found.document["workload"]
    jobs = {job["name"]: job for job in workload["jobs"]}
    assert sorted(jobs) == ["after it", "runs", "runs on"]
    assert jobs["runs"]["running"][0]["ranks"][0]["node"] == "volta"
    assert jobs["runs"]["running"][0]["ranks"][0]["devices"] == ["gpu1"]
    assert jobs["runs on"]["running"] == []
    assert jobs["runs"]["remaining_steps"] < jobs["runs"]["total_steps"] == 900
    assert jobs["runs"]["due_s"] < jobs["runs"]["arrival_s"] == jobs["after it"]["arrival_s"]
    assert jobs["after it"]["dependencies"] == {str(running.pk): "afterok"}
    assert (
        workload["note"] == "1 running and 2 waiting; 1 left out, as their speed is not known yet"
    )
    assert (found.summary["workload"], found.summary["jobs"]) == ("queue", 3)


def test_a_queue_has_the_pairs_of_its_own_kinds_not_those_with_kinds_of_others(
    ada: User, team: Team
) -> None:
    cluster = a_cluster(name="lab")
    a_shared_node(cluster)
    own, other = (a_kind(steps_per_s={("V100", 1): 2.0}) for _ in range(2))
    for first, second in ((own, own), (own, other)):
        a_known_pair(first, second, (1.5, 1.5))
    a_sharing_job(cluster, own, team=team, state="queued")
    a_sharing_job(cluster, other, state="queued")
    answer = api(ada).post(
        ALL, a_study(cluster={"live": "lab"}, workload={"type": "queue"}), format="json"
    )
    assert answer.status_code == 201, answer.content
    (kind,) = Simulation.objects.get().document["workload"]["kinds"]
    assert [(pair["other"], pair["steps_per_s"]) for pair in kind["pairs"]] == [(str(own.pk), 1.5)]


def test_a_queue_of_which_one_may_see_nothing_is_refused(ada: User) -> None:
    cluster = a_cluster(name="lab")
    a_node(cluster)
    a_job(cluster, name="theirs", kind=a_kind(steps_per_s={("V100", 1): 2.0}))
    for workload, words in (
        ({"type": "queue", "cluster": "lab"}, "you may see no job"),
        ({"type": "queue", "cluster": "nowhere"}, "must be the name of a cluster"),
        ({"type": "queue", "cluster": "lab", "days": 3}, "no such option of a queue"),
    ):
        assert words in refused(
            api(ada).post(ALL, a_study(workload=workload), format="json"), "workload"
        )


def test_a_history_without_jobs_is_refused(ada: User) -> None:
    a_cluster(name="lab")
    study = a_study(workload={"type": "history", "cluster": "lab"})
    assert "you may see no job" in refused(api(ada).post(ALL, study, format="json"), "workload")


def test_everybody_sees_their_own_and_their_teams(
    ada: User, team: Team, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    colleague, stranger, operator = a_user(team=team), a_user(team=a_team()), a_user(operator=True)
    own = a_simulation(ada)
    shared_by_team = a_simulation(ada, study={"team": "vision"})
    both, nothing = {own, shared_by_team}, set[Simulation]()
    for user, seen in (
        (ada, both),
        (colleague, {shared_by_team}),
        (stranger, nothing),
        (operator, both),
    ):
        client = api(user)
        with django_assert_num_queries(3 if user is not stranger else 2):
            rows = client.get(ALL).json()["results"]
        assert {row["id"] for row in rows} == {str(s.pk) for s in seen}


def test_a_list_can_be_narrowed(ada: User, team: Team) -> None:
    mine, done = a_simulation(ada), a_done_simulation(a_user(team=team), study={"team": "vision"})
    client = api(ada)
    assert [r["id"] for r in client.get(f"{ALL}?state=done").json()["results"]] == [str(done.pk)]
    assert [r["id"] for r in client.get(f"{ALL}?mine=true").json()["results"]] == [str(mine.pk)]


@pytest.mark.parametrize("method", ["get", "delete"])
def test_a_stranger_learns_not_even_that_it_exists(ada: User, method: str) -> None:
    simulation = a_done_simulation(ada)
    strangers = [api(a_user()), api(a_user(team=a_team()))]
    for client in strangers:
        for what in ("", "cancel/", "share/", "results.json", "jobs.csv", "report.html"):
            for answer in (
                getattr(client, method)(one(simulation, what)),
                client.post(one(simulation, what)),
            ):
                assert answer.status_code in (404, 405), what
        missing = client.get(f"{ALL}{uuid4()}/").json()["error"]["detail"]
        assert (
            client.get(one(simulation)).json()["error"]["detail"].split()[:4] == missing.split()[:4]
        )
    simulation.refresh_from_db()
    assert (simulation.state, simulation.share_key) == ("done", "")


def test_an_expired_token_opens_nothing(ada: User) -> None:
    simulation = a_done_simulation(ada)
    expired = api(token=AuthToken.objects.create(ada, expiry=timedelta(seconds=-5))[1])
    for what in ("", "results.json", "jobs.csv", "report.html"):
        assert expired.get(one(simulation, what)).status_code == 401
    assert expired.post(ALL, a_study(), format="json").status_code == 401


def test_a_maintainer_may_cancel_what_is_the_teams(ada: User, team: Team) -> None:
    simulation = a_simulation(ada, study={"team": "vision"})
    maintainer = api(a_user(team=team, role=TeamRole.MAINTAINER))
    assert maintainer.post(one(simulation, "cancel/")).json()["state"] == "cancelled"
    assert maintainer.post(one(simulation, "cancel/")).status_code == 409


def test_deleting_removes_it_with_its_files(ada: User, settings: Settings, tmp_path: Path) -> None:
    settings.SIMULATIONS_DIR = tmp_path
    simulation = a_done_simulation(ada)
    assert api(ada).delete(one(simulation)).status_code == 204
    assert not Simulation.objects.exists()


def test_files_are_there_once_it_is_done(ada: User) -> None:
    client, waiting = api(ada), a_simulation(ada)
    missing = client.get(one(waiting, "report.html"), headers={"Accept": "text/html"})
    assert (missing.status_code, missing["Content-Type"]) == (404, "application/json")
    done = a_done_simulation(ada)
    report = client.get(one(done, "report.html"), headers={"Accept": "text/html"})
    assert report.getvalue().decode() == REPORT
    assert report["Content-Disposition"] == 'attachment; filename="report.html"'
    assert "default-src 'none'" in report["Content-Security-Policy"]
    assert json.loads(client.get(one(done, "results.json")).getvalue())["currency"] == "EUR"
    assert client.get(one(done, "jobs.csv"))["Content-Type"].startswith("text/csv")


def test_its_study_can_be_had_again(ada: User) -> None:
    document = api(ada).get(one(a_simulation(ada))).json()["document"]
    again = api(ada).post(ALL, document, format="json")
    assert again.status_code == 201, again.content
