"""Studies of live clusters: whose jobs they hold, and which process reads them."""

import json
import pickle
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from django.test import Client

from controlplane.studies import services
from controlplane.studies.models import Simulation
from controlplane.studies.what_if.turns import EACH, TURNS
from controlplane.web import nice_process
from controlplane.web.storage import packed_json
from jobs.models import Job, Team
from tests.builders import a_cluster, a_job, a_kind, a_node, a_team, a_user
from tests.builders_jobs import api
from tests.builders_studies import a_study

pytestmark = pytest.mark.django_db
ALL = "/api/v1/simulations/"


@pytest.fixture(name="teams")
def _teams() -> tuple[Team, Team]:
    """Two teams, each with a job of a kind of its own on one cluster."""
    cluster = a_cluster(name="lab")
    a_node(cluster)
    teams = a_team("vision"), a_team("rivals")
    for team in teams:
        kind = a_kind(steps_per_s={("V100", 1): 2.0})
        a_job(cluster, name=f"job of {team}", team=team, kind=kind)
    return teams


@pytest.mark.parametrize("of", ["history", "queue"])
@pytest.mark.parametrize("is_operator", [False, True])
def test_a_teams_simulation_holds_that_teams_live_jobs_alone(
    teams: tuple[Team, Team], of: str, is_operator: bool
) -> None:
    author = a_user(operator=is_operator)
    for team in teams:
        team.members.add(author)
    study = a_study(cluster={"live": "lab"}, workload={"type": of}, team="vision")
    assert api(author).post(ALL, study, format="json").status_code == 201
    found = Simulation.objects.get().document
    assert [job["name"] for job in found["workload"]["jobs"]] == ["job of vision"]
    (own,) = Job.objects.filter(team=teams[0])
    assert [kind["id"] for kind in found["workload"]["kinds"]] == [str(own.kind_id)]
    assert [team["name"] for team in found["cluster"]["teams"]] == ["vision"]
    alone = {**study, "team": None}
    assert api(author).post(ALL, alone, format="json").status_code == 201
    assert len(Simulation.objects.get(team=None).document["workload"]["jobs"]) == 2
    own.delete()
    answer = api(author).post(ALL, study, format="json")
    assert answer.status_code == 400
    said = answer.json()["error"]["fields"]["workload"][0]
    assert said.startswith("there is no job of the team vision on lab that")


@pytest.mark.parametrize(
    "live",
    [
        {"cluster": {"live": "lab"}},
        {"workload": {"type": "history", "cluster": "lab"}},
        {"workload": {"type": "queue", "cluster": "lab"}},
    ],
)
def test_what_is_live_is_read_by_the_nice_process_and_comes_packed_however_short_the_study(
    teams: tuple[Team, Team], monkeypatch: pytest.MonkeyPatch, live: dict[str, object]
) -> None:
    answers = []

    def ask(question: Callable[..., object], *given: object) -> object:
        answers.append(pickle.dumps(question(*pickle.loads(pickle.dumps(given)))))
        return pickle.loads(answers[-1])

    monkeypatch.setattr(nice_process, "ask", ask)
    monkeypatch.setattr(packed_json, "WORTH_BYTES", 0)
    reader = api(a_user(team=teams[0]))
    assert reader.post(ALL, a_study(), format="json").status_code == 201
    assert answers == []
    assert reader.post(ALL, a_study(**live), format="json").status_code == 201
    assert len(answers) == 1
    assert b"gpu_type" not in answers[0]
    assert Simulation.objects.latest("created_at").document["cluster"]["nodes"][0]["gpu_type"]


def test_a_member_asks_the_nice_process_in_turns_also_for_studies(
    teams: tuple[Team, Team], client: Client
) -> None:
    reader, study = a_user(team=teams[0]), a_study(cluster={"live": "lab"})
    client.force_login(reader)
    with ExitStack() as asking:
        for _ in range(EACH):
            TURNS._enter(reader.pk)
            asking.callback(TURNS._leave, reader.pk)
        answer = api(reader).post(ALL, study, format="json")
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "2")
        page = client.post("/simulations/new/", {"study": json.dumps(study)})
        assert page.status_code == 422
        assert "you have 2 what-ifs under way" in page.text
    assert api(reader).post(ALL, study, format="json").status_code == 201


def test_who_has_as_many_simulations_as_may_be_asks_the_nice_process_for_none(
    teams: tuple[Team, Team], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(nice_process, "ask", lambda *given: asked.append(given))
    monkeypatch.setattr(services, "MOST_ACTIVE", 0)
    study = a_study(cluster={"live": "lab"})
    answer = api(a_user(team=teams[0])).post(ALL, study, format="json")
    assert answer.status_code == 409
    assert asked == []
