"""REST: clusters, nodes and rounds. Everybody who is logged in may look, operators may act."""

from typing import Any

import pytest
from pytest_django import DjangoAssertNumQueries
from rest_framework.test import APIClient

from clusters.models import Cluster, EnrolmentToken, Node, RescheduleEvent
from controlplane.loop.models import Round
from jobs.models import Kind
from policies.host import registry
from tests.builders import a_cluster, a_gpu_type, a_job, a_node, a_team, a_user
from tests.builders_jobs import a_placement, api

pytestmark = pytest.mark.django_db
LAB = "/api/v1/clusters/lab/"
NODES = "/api/v1/nodes/"


@pytest.fixture
def cluster() -> Cluster:
    return a_cluster(name="lab")


@pytest.fixture
def node(cluster: Cluster) -> Node:
    return a_node(cluster, name="volta", gpus=2)


@pytest.fixture
def member() -> APIClient:
    return api(a_user(team=a_team()))


@pytest.fixture
def operator() -> APIClient:
    return api(a_user("root", operator=True))


def test_a_policy_is_chosen_with_its_parameters(operator: APIClient, cluster: Cluster) -> None:
    answer = operator.patch(
        LAB, {"policy": "randomized_greedy", "policy_parameters": {"iterations": 7}}, format="json"
    )
    assert answer.status_code == 200, answer.content
    assert answer.data["policy_parameters"] == {"iterations": 7}
    assert RescheduleEvent.objects.get().reason == "operator"


def test_a_new_policy_begins_with_its_defaults(operator: APIClient, cluster: Cluster) -> None:
    operator.patch(LAB, {"policy_parameters": {"iterations": 7}}, format="json")
    assert operator.patch(LAB, {"policy": "fifo"}, format="json").data["policy_parameters"] == {}


def test_an_unknown_policy_is_refused_naming_the_known(
    operator: APIClient, cluster: Cluster
) -> None:
    error = operator.patch(LAB, {"policy": "magic"}, format="json").json()["error"]
    assert (
        f"'magic' is no policy; known are: {', '.join(registry.names())}"
        in error["fields"]["policy"][0]
    )


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"movez": 1}, "known are:"),
        ({"moves": -1}, "must be >="),
        ({"moves": "x"}, "must be"),
        ([], "object"),
    ],
)
def test_parameters_a_policy_does_not_take_are_refused(
    operator: APIClient, cluster: Cluster, parameters: Any, said: str
) -> None:
    answer = operator.patch(LAB, {"policy_parameters": parameters}, format="json")
    assert answer.status_code == 400
    assert said in answer.json()["error"]["fields"]["policy_parameters"][0]
    cluster.refresh_from_db()
    assert cluster.policy_parameters == {}


@pytest.mark.parametrize(
    "body",
    [
        {"period_s": 0},
        {"period_s": 1e12},
        {"horizon_s": 1e18},
        {"lease_s": 1},
        {"lease_s": 1e18},
        {"grace_s": 1e18},
        {"margin_s": 1e18},
        {"restart_cost_s": 1e18},
        {"timezone": "Mars"},
        {"name": "x"},
        {"colour": 1},
        {"power_cap_w": -1},
        {"seed": "x"},
        {"power_cap_hours": 5},
        {"power_cap_hours": [{"power_cap_w": -1}]},
        {"emissions_cost_per_kg": -1},
        {"emissions_cost_per_kg": "NaN"},
        {"value_of_time": -0.01},
        {"value_of_time": 10_001},
        {"value_of_time": "NaN"},
        {"min_run_factor": -1},
    ],
)
def test_values_a_cluster_cannot_have_are_refused_at_their_field(
    operator: APIClient, cluster: Cluster, body: dict[str, Any]
) -> None:
    answer = operator.patch(LAB, body, format="json")
    assert (answer.status_code, list(answer.json()["error"]["fields"])) == (400, list(body))


def test_a_cluster_is_capped_by_hour_and_its_emissions_are_weighed(
    operator: APIClient, cluster: Cluster
) -> None:
    hours = [{"power_cap_w": 2000, "from": "08:00", "to": "20:00", "valid_until": "2026-12-31"}]
    answer = operator.patch(
        LAB, {"power_cap_hours": hours, "emissions_cost_per_kg": "0.08"}, format="json"
    )
    assert (answer.data["power_cap_hours"], answer.data["emissions_cost_per_kg"]) == (
        hours,
        "0.080000",
    )
    assert RescheduleEvent.objects.get().reason == "operator"


def test_changing_a_cluster_leaves_the_lock_of_its_round_alone(
    operator: APIClient, cluster: Cluster
) -> None:
    Cluster.objects.update(round_owner="worker-1", round_number=7)
    operator.patch(LAB, {"period_s": 60}, format="json")
    cluster.refresh_from_db()
    assert (cluster.period_s, cluster.round_owner, cluster.round_number) == (60, "worker-1", 7)


def test_a_round_can_be_asked_for(operator: APIClient, cluster: Cluster) -> None:
    assert operator.post(f"{LAB}reschedule/").status_code == 202
    assert RescheduleEvent.objects.get().reason == "operator"


def test_policies_are_listed_with_the_schema_of_their_parameters(member: APIClient) -> None:
    listed = {p["name"]: p for p in member.get("/api/v1/policies/").json()}
    assert set(listed) == set(registry.names())
    assert "iterations" in listed["randomized_greedy"]["parameters"]["properties"]


def test_nodes_show_what_is_held(member: APIClient, node: Node) -> None:
    a_placement(a_job(node.cluster), node)
    (shown,) = member.get(NODES).json()["results"]
    assert (shown["name"], shown["gpu_type"]) == ("volta", "V100")
    assert sorted(d["held_slots"] for d in shown["devices"]) == [0, 1]
    assert "token" not in str(shown)
    assert "secret" not in str(shown)


def test_nodes_cost_the_same_queries_whatever_their_number(
    member: APIClient, node: Node, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for _ in range(2):
        for _ in range(3):
            a_node(node.cluster)
        with django_assert_num_queries(5):
            member.get(NODES)


def test_nodes_of_one_cluster(member: APIClient, node: Node) -> None:
    a_node(a_cluster(name="annex"))
    assert [n["name"] for n in member.get(f"{NODES}?cluster=lab").json()["results"]] == ["volta"]


def test_an_operator_cordons_drains_and_gives_roles(operator: APIClient, node: Node) -> None:
    path = f"{NODES}{node.pk}/"
    assert (
        operator.post(f"{path}cordon/", {"reason": "fan"}, format="json").json()["reason"] == "fan"
    )
    assert operator.post(f"{path}uncordon/").json()["state"] == "ready"
    drained = operator.post(
        f"{path}drain/", {"until": "2040-01-01T00:00:00Z"}, format="json"
    ).json()
    assert (drained["state"], drained["drain_until"]) == ("draining", "2040-01-01T00:00:00Z")
    assert (
        operator.post(f"{path}role/", {"role": "profiling"}, format="json").json()["role"]
        == "profiling"
    )
    assert set(node.events.values_list("actor", flat=True)) == {"root"}


def test_what_a_nodes_state_does_not_allow_is_409(operator: APIClient, node: Node) -> None:
    answer = operator.post(f"{NODES}{node.pk}/uncordon/")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")


@pytest.mark.parametrize(
    ("verb", "body"),
    [("role", {"role": "king"}), ("role", {}), ("drain", {"until": "soon"}), ("cordon", [])],
)
def test_a_node_is_told_nothing_it_does_not_understand(
    operator: APIClient, node: Node, verb: str, body: object
) -> None:
    assert operator.post(f"{NODES}{node.pk}/{verb}/", body, format="json").status_code == 400


def test_an_enrolment_token_is_shown_once(operator: APIClient, cluster: Cluster) -> None:
    body = {"cluster": "lab", "role": "both", "valid_h": 2}
    token = operator.post("/api/v1/enrolment-tokens/", body, format="json").json()["token"]
    listed = operator.get("/api/v1/enrolment-tokens/")
    (row,) = listed.json()["results"]
    assert (row["cluster"], row["role"], row["used_at"]) == ("lab", "both", None)
    assert token.encode() not in listed.content
    assert operator.delete(f"/api/v1/enrolment-tokens/{row['id']}/").status_code == 204
    assert not EnrolmentToken.objects.exists()
    assert (
        operator.post("/api/v1/enrolment-tokens/", {"cluster": "x"}, format="json").status_code
        == 400
    )


def test_rounds_are_listed_for_all_and_shown_whole_to_operators(
    member: APIClient, operator: APIClient, cluster: Cluster
) -> None:
    row = Round.objects.create(
        cluster=cluster,
        number=1,
        policy="fifo",
        seed=1,
        snapshot={"jobs": ["secret name"]},
        plan={},
    )
    listed = member.get("/api/v1/rounds/?cluster=lab")
    assert [(r["number"], r["policy"]) for r in listed.json()["results"]] == [(1, "fifo")]
    assert b"secret name" not in listed.content
    assert member.get(f"/api/v1/rounds/{row.pk}/").status_code == 403
    assert operator.get(f"/api/v1/rounds/{row.pk}/").json()["snapshot"] == {"jobs": ["secret name"]}


def test_a_price_by_the_hour_is_set_and_rounds_go_by_it(operator: APIClient, node: Node) -> None:
    a_gpu_type("NVIDIA A100-SXM4-40GB")
    answer = operator.patch(
        "/api/v1/gpu-types/NVIDIA A100-SXM4-40GB/", {"price_per_hour": "4.25"}, format="json"
    )
    assert (answer.status_code, answer.json()["price_per_hour"]) == (200, "4.250000")
    assert not RescheduleEvent.objects.exists()
    assert (
        operator.patch(
            "/api/v1/gpu-types/V100/", {"price_per_hour": 3.1}, format="json"
        ).status_code
        == 200
    )
    assert [event.cluster for event in RescheduleEvent.objects.all()] == [node.cluster]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("price_per_hour", -1, "Ensure this value is greater than or equal to 0."),
        ("price_per_hour", "dear", "A valid number is required."),
        ("peak_w", 3, "cannot be set; what can be: price_per_hour"),
    ],
)
def test_what_is_no_price_is_refused(
    operator: APIClient, node: Node, field: str, value: Any, said: str
) -> None:
    answer = operator.patch("/api/v1/gpu-types/V100/", {field: value}, format="json")
    assert (answer.status_code, answer.json()["error"]["fields"]) == (400, {field: [said]})


def test_half_a_character_in_a_name_is_refused_like_any_other(
    operator: APIClient, node: Node
) -> None:
    answer = operator.patch(
        "/api/v1/gpu-types/V100/", '{"\\ud800": 1}', content_type="application/json"
    )
    assert (answer.status_code, list(answer.json()["error"]["fields"])) == (400, ["\\ud800"])


READ = [
    "clusters/",
    "clusters/lab/",
    "nodes/",
    "nodes/{node}/",
    "gpu-types/",
    "gpu-types/V100/",
    "policies/",
    "rounds/",
]
ACT = [
    ("patch", "clusters/lab/"), ("post", "clusters/lab/reschedule/"),
    ("post", "nodes/{node}/cordon/"),
    ("post", "nodes/{node}/drain/"),
    ("post", "nodes/{node}/uncordon/"), ("post", "nodes/{node}/role/"),
    ("post", "nodes/{node}/slots/"),
    ("post", "enrolment-tokens/"), ("get", "enrolment-tokens/"),
    ("delete", "enrolment-tokens/1/"), ("patch", "gpu-types/V100/"),
]  # fmt: skip


@pytest.mark.parametrize("path", READ)
def test_looking_needs_a_login(member: APIClient, node: Node, path: str) -> None:
    path = "/api/v1/" + path.format(node=node.pk)
    assert member.get(path).status_code == 200
    assert api().get(path).status_code == 401


@pytest.mark.parametrize(("method", "path"), ACT)
def test_acting_needs_an_operator(member: APIClient, node: Node, method: str, path: str) -> None:
    path = "/api/v1/" + path.format(node=node.pk)
    body = {"policy": "fifo", "role": "both", "cluster": "lab", "slots": 2}
    assert getattr(member, method)(path, body, format="json").status_code == 403
    assert getattr(api(), method)(path, body, format="json").status_code == 401
    node.refresh_from_db()
    assert (node.state, node.role, RescheduleEvent.objects.count()) == ("ready", "production", 0)


@pytest.mark.parametrize(
    "path", ["clusters/nowhere/", "nodes/00000000-0000-0000-0000-000000000000/", "rounds/99/"]
)
def test_what_is_not_there_is_404(operator: APIClient, path: str) -> None:
    answer = operator.get(f"/api/v1/{path}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize("path", ["nodes/?cluster=%00", "rounds/?cluster=%00"])
def test_a_nul_in_the_address_is_refused(member: APIClient, node: Node, path: str) -> None:
    answer = member.get(f"/api/v1/{path}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid")


@pytest.mark.parametrize("path", ["/api/v1/nodes/", "/api/v1/kinds/"])
def test_rows_that_hold_lists_come_by_two_hundred_at_most(
    operator: APIClient, cluster: Cluster, path: str
) -> None:
    Kind.objects.bulk_create(Kind(digest=f"{i:064d}") for i in range(201))
    Node.objects.bulk_create(
        Node(cluster=cluster, name=f"n{i}", machine_id=f"m{i}", cores=1, memory_gb=1)
        for i in range(201)
    )
    page = operator.get(path, {"limit": 1000}).json()
    assert (len(page["results"]), page["count"]) == (200, 201)
    assert "offset=200" in page["next"]
