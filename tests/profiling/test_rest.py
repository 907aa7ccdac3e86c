"""REST: who sees what of kinds, and forgetting one."""

from math import exp

import pytest
from django.test import Client

from clusters.models import Cluster
from profiling.models import Profile, ProfileRun
from tests.builders import a_cluster, a_gpu_type, a_job, a_kind, a_node, a_team, a_user
from tests.builders_profiling import a_profiled_job, a_profiling_node, the_table

pytestmark = pytest.mark.django_db

KINDS = "/api/v1/kinds/"


@pytest.fixture
def cluster() -> Cluster:
    cluster = a_cluster()
    a_node(cluster, gpu_type=a_gpu_type("V100", tflops=16.0), gpus=2)
    a_node(cluster, gpu_type=a_gpu_type("T4", tflops=8.0), gpus=1)
    return cluster


def test_nobody_anonymous_sees_kinds(client: Client) -> None:
    assert client.get(KINDS).status_code in (401, 403)


def test_a_user_sees_their_teams_kinds_and_published_ones_and_an_operator_all(
    client: Client, cluster: Cluster
) -> None:
    team = a_team()
    own, other = a_kind("own", team=team), a_kind("other", team=a_team())
    a_kind("published")
    client.force_login(a_user(team=team))
    shown = client.get(KINDS).json()["results"]
    assert [(k["name"], k["team"]) for k in shown] == [("published", None), ("own", team.name)]
    assert client.get(f"{KINDS}{own.pk}/").status_code == 200
    assert client.get(f"{KINDS}{other.pk}/").status_code == 404
    client.force_login(a_user(operator=True))
    assert [k["name"] for k in client.get(KINDS).json()["results"]] == ["published", "other", "own"]


def test_a_speed_over_nodes_is_estimated_with_its_evidence_and_error(
    client: Client, cluster: Cluster
) -> None:
    a_node(cluster, gpu_type="V100", gpus=2)
    kind = a_kind("bert", steps_per_s={("V100", 1): 2.0, ("V100", 2): 3.0})
    a_job(cluster, kind=kind, gpus_min=3, gpus_max=3)
    client.force_login(a_user(operator=True))
    profiles = client.get(f"{KINDS}{kind.pk}/").json()["profiles"]
    (found,) = [p for p in profiles if p["spread"] and p["gpu_type"] == "V100"]
    assert (found["gpus"], found["source"]) == (3, "estimated")
    assert found["basis"] == "the links and the number of nodes"
    assert found["error"] == pytest.approx(exp(0.4) - 1.0)
    assert all(p["basis"] == "" for p in profiles if not p["spread"])


def test_a_measured_speed_over_nodes_replaces_the_estimate(
    client: Client, cluster: Cluster
) -> None:
    kind = a_kind("bert", steps_per_s={("V100", 1): 2.0})
    Profile.objects.create(
        kind=kind, gpu_type=a_gpu_type(), gpus=3, spread=True, steps_per_s=4.0, source="measured"
    )
    a_job(cluster, kind=kind, gpus_min=3, gpus_max=3)
    client.force_login(a_user(operator=True))
    profiles = client.get(f"{KINDS}{kind.pk}/").json()["profiles"]
    (found,) = [p for p in profiles if p["spread"] and p["gpu_type"] == "V100"]
    assert (found["steps_per_s"], found["source"], found["basis"]) == (4.0, "measured", "")


def test_a_kind_shows_its_numbers_with_their_sources_and_the_error_of_estimates(
    client: Client, cluster: Cluster
) -> None:
    kind = a_kind("bert", steps_per_s={("V100", 1): 2.0, ("V100", 2): 3.0})
    a_job(cluster, kind=kind)
    client.force_login(a_user(operator=True))
    shown = client.get(f"{KINDS}{kind.pk}/").json()
    found = {(p["gpu_type"], p["gpus"]): p for p in shown["profiles"]}
    assert {c: p["source"] for c, p in found.items()} == {
        ("V100", 1): "measured", ("V100", 2): "measured", ("T4", 1): "estimated",
    }  # fmt: skip
    estimated = 2.0 / (1 - 0.8 + 0.8 / 2)
    assert found["V100", 2]["estimated_steps_per_s"] == pytest.approx(estimated)
    assert found["V100", 2]["error"] == pytest.approx(estimated / 3.0 - 1)
    assert found["T4", 1]["error"] is None
    assert shown["error"] is None, "two numbers are too few for a mean"
    assert (shown["jobs"], shown["active_jobs"]) == (1, 1)


def test_the_table_tells_the_error_over_all_kinds(cluster: Cluster) -> None:
    kind = a_kind("bert", steps_per_s={("V100", 1): 2.0, ("V100", 2): 3.0})
    a_job(cluster, kind=kind)
    table = the_table(a_user(operator=True))
    assert table.errors == 2
    assert table.error is not None
    assert table.kinds[0].error is None, "two numbers are too few for a mean"


def test_why_another_teams_run_failed_is_not_shown(client: Client, cluster: Cluster) -> None:
    a_profiling_node(cluster, "V100", 1)
    job = a_profiled_job(cluster)
    ProfileRun.objects.update(state="given_up", reason="the password is hunter2", failures=3)
    same = a_kind(digest=job.kind.digest, team=a_team())
    client.force_login(a_user(team=same.team))
    assert client.get(f"{KINDS}{job.kind_id}/").status_code == 404
    assert client.get(f"{KINDS}{same.pk}/").json()["runs"] == []
    client.force_login(job.user)
    assert "hunter2" in client.get(f"{KINDS}{job.kind_id}/").json()["runs"][0]["reason"]


def test_an_operator_has_a_kind_measured_anew(client: Client, cluster: Cluster) -> None:
    kind = a_kind(team=a_team(), steps_per_s={("V100", 1): 2.0})
    client.force_login(a_user(operator=True))
    answer = client.post(f"{KINDS}{kind.pk}/forget/", content_type="application/json")
    assert answer.status_code == 200
    assert {p["source"] for p in answer.json()["profiles"]} == {"estimated"}
    assert Profile.objects.get(kind=kind).steps_per_s == 2.0


def test_a_user_may_not_have_a_kind_forgotten(client: Client, cluster: Cluster) -> None:
    job = a_job(cluster)
    client.force_login(job.user)
    assert client.post(f"{KINDS}{job.kind_id}/forget/").status_code == 403
    assert set(Profile.objects.values_list("source", flat=True)) == {"measured"}


def test_forgetting_a_kind_that_is_not_there_is_an_error_that_says_so(client: Client) -> None:
    client.force_login(a_user(operator=True))
    assert client.post(f"{KINDS}999/forget/", content_type="application/json").status_code == 404


def test_kinds_come_in_pages(client: Client, cluster: Cluster) -> None:
    for _ in range(3):
        a_kind()
    client.force_login(a_user(operator=True))
    shown = client.get(KINDS, {"limit": 2}).json()
    assert (shown["count"], len(shown["results"])) == (3, 2)


@pytest.mark.parametrize(
    "query", [{"limit": 10**36}, {"offset": 10**36}, {"limit": 10**19, "offset": 10**19}]
)
def test_numbers_beyond_any_database_are_cut(client: Client, query: dict[str, int]) -> None:
    client.force_login(a_user(operator=True))
    assert client.get(KINDS, query).status_code == 200


def test_the_page_of_kinds_is_paged_and_searched_over_all_pages(
    client: Client, cluster: Cluster
) -> None:
    for number in range(30):
        a_job(cluster, kind=a_kind(f"kind-{number:02d}"))
    client.force_login(a_user(operator=True))
    first, second = (client.get("/kinds/", {"page": page}).content.decode() for page in (1, 2))
    assert (first.count('title break">kind-'), second.count('title break">kind-')) == (24, 6)
    assert "kind-29" in first
    assert "Page 1 of 2" in first
    found = client.get("/kinds/", {"search": "KIND-03"}).content.decode()
    assert found.count('title break">kind-') == 1
