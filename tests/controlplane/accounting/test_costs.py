"""Costs summed up: by whom, when and where, who may see them, as a page, a file and by the API."""

import csv
import inspect
import io
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db.models import QuerySet
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from clusters.models import Cluster, Node
from controlplane.accounting import views
from controlplane.accounting.costs import CostRow, Costs, plain
from controlplane.accounting.ledger import bill
from controlplane.accounting.models import EnergyEntry
from controlplane.accounting.query import CostQueryError, period, read_query
from jobs.models import Team
from tests.builders import a_job, a_team, a_user
from tests.builders_costs import PRICE, START, a_priced_cluster, a_v100_node, later, some_work

pytestmark = pytest.mark.django_db

MAY = {"from": "2026-05-01", "to": "2026-05-02"}


@pytest.fixture(name="cluster")
def _cluster() -> Cluster:
    return a_priced_cluster(name="main")


@pytest.fixture(name="nodes")
def _nodes(cluster: Cluster) -> list[Node]:
    return [a_v100_node(cluster, name="alpha"), a_v100_node(cluster, name="beta")]


@pytest.fixture(name="teams")
def _teams(cluster: Cluster, nodes: list[Node]) -> list[Team]:
    """Vision draws 0.7 kW for three hours on alpha, speech for one hour on beta, the next day."""
    vision, speech = a_team("vision"), a_team("speech")
    bill(
        some_work(
            nodes[0],
            (0, 3),
            job=a_job(cluster, team=vision, name="convnet"),
            predicted_power_w=770.0,
        )
    )
    bill(some_work(nodes[1], (14, 15), job=a_job(cluster, team=speech, name="recurrent")))
    return [vision, speech]


def rows(user: User, cluster: Cluster, by: str, **asked: str) -> list[CostRow]:
    query = read_query(cluster, {"by": by, **(asked or MAY)}, later(48))
    return list(Costs(user, query).rows)


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("team", ["vision", "speech"]),
        ("node", ["alpha", "beta"]),
        ("job", ["convnet", "recurrent"]),
        ("day", ["2026-05-01", "2026-05-02"]),
        ("hour", ["2026-05-01 12:00", "2026-05-01 13:00", "2026-05-01 14:00", "2026-05-02 02:00"]),
    ],
)
def test_costs_are_summed_up_by_what_is_asked(
    teams: list[Team], cluster: Cluster, by: str, names: list[str]
) -> None:
    found = rows(a_user(operator=True), cluster, by)
    assert [row.name for row in found] == names
    assert float(sum(row.cost for row in found)) == pytest.approx(4 * 0.7 * PRICE)
    assert sum(row.gpu_h for row in found) == pytest.approx(8.0)


@pytest.mark.parametrize("by", ["team", "node", "job", "day", "hour"])
def test_rows_by_anything_have_the_same_total(teams: list[Team], cluster: Cluster, by: str) -> None:
    costs = Costs(a_user(operator=True), read_query(cluster, {"by": by, **MAY}, later(48)))
    sums = Costs(a_user(operator=True), read_query(cluster, {"by": "job", **MAY}, later(48))).total
    for field in ("cost", "measured_cost", "predicted_cost", "gpu_h", "kwh", "emissions_kg"):
        assert float(getattr(costs.total, field)) == pytest.approx(float(getattr(sums, field)))


def test_pages_of_jobs_and_their_export_hold_the_same_rows_the_dearest_first(
    nodes: list[Node], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.accounting.costs.JOBS_AT_ONCE", 2)
    for at, hours in enumerate((1, 3, 2, 5, 4)):
        job = a_job(cluster, name=f"for {hours} h")
        bill(some_work(nodes[0], (6 * at, 6 * at + hours), job=job))
    query = read_query(cluster, {"by": "job", **MAY}, later(48))
    rows = Costs(a_user(operator=True), query).rows
    assert [row.name for row in rows] == [f"for {hours} h" for hours in (5, 4, 3, 2, 1)]
    assert len(rows) == 5
    assert [*rows[:2], *rows[2:4], rows[4]] == list(rows)


def test_the_bill_is_compared_with_the_prediction_only_where_there_is_one(
    teams: list[Team], cluster: Cluster
) -> None:
    operator = a_user(operator=True)
    vision, speech = rows(operator, cluster, "team")
    assert vision.off == pytest.approx(700 / 770 - 1)
    assert (speech.off, speech.predicted_cost) == (None, None)
    total = Costs(operator, read_query(cluster, MAY, later(48))).total
    assert total.off == pytest.approx(700 / 770 - 1)
    assert total.cost > total.compared_cost


def test_members_see_their_own_teams_costs_and_managers_with_the_permission_all(
    teams: list[Team], cluster: Cluster
) -> None:
    member, manager, stranger = a_user(team=teams[0]), a_user(), a_user()
    manager.user_permissions.add(Permission.objects.get(codename="see_all_costs"))
    assert [r.name for r in rows(member, cluster, "team")] == ["vision"]
    assert [r.name for r in rows(User.objects.get(pk=manager.pk), cluster, "team")] == [
        "vision",
        "speech",
    ]
    assert rows(stranger, cluster, "team") == []
    assert Costs(stranger, read_query(cluster, MAY, later(48))).total.cost == 0


def test_days_are_the_clusters_own() -> None:
    cluster = a_priced_cluster(timezone="Pacific/Auckland")
    bill(some_work(a_v100_node(cluster), (0, 1)))
    assert [r.name for r in rows(a_user(operator=True), cluster, "day")] == ["2026-05-02"]


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"by": "colour"}, "by"),
        ({"period": "yesterday"}, "period"),
        ({"from": "May"}, "from"),
        ({"from": "2026-05-01", "to": "31.5."}, "to"),
        ({"from": "2026-05-02", "to": "2026-05-01"}, "to"),
        ({"to": "2026-05-01"}, "from"),
        ({"from": "0001-01-01T00:00+14:00"}, "from"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_by_its_field(
    cluster: Cluster, asked: dict[str, str], field: str
) -> None:
    with pytest.raises(CostQueryError) as refused:
        read_query(cluster, asked, later(0))
    assert refused.value.field == field


@pytest.mark.parametrize("name", ["today", "24h", "7d", "30d", "month", "last-month"])
def test_a_named_period_ends_by_now_and_begins_before(cluster: Cluster, name: str) -> None:
    since, until = period(name, cluster, START)
    assert since < until <= START


def test_the_page_shows_sums_and_says_what_is_measured(teams: list[Team], client: Client) -> None:
    client.force_login(a_user(team=teams[0]))
    page = client.get("/costs/", {**MAY, "by": "job"}).content.decode()
    assert "convnet" in page
    assert "recurrent" not in page
    assert "0% measured" in page
    assert "billed −9%" in page


def test_beyond_the_jobs_that_cost_most_the_page_names_the_file(
    teams: list[Team], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.force_login(a_user(operator=True))
    asked = {**MAY, "by": "job"}
    assert "jobs that cost most" not in client.get("/costs/", asked).text
    monkeypatch.setattr(views, "MOST_JOBS", 1)
    page = client.get("/costs/", asked)
    assert [row.name for row in page.context["rows"]] == ["convnet"]
    assert page.context["total"].gpu_h == pytest.approx(8.0)
    assert "These are the 1 jobs that cost most." in page.text
    file = client.get("/costs/costs.csv", asked).getvalue().decode()
    assert "convnet" in file
    assert "recurrent" in file


def test_the_pages_queries_do_not_grow_with_the_work(
    cluster: Cluster,
    nodes: list[Node],
    client: Client,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    client.force_login(a_user(operator=True))
    for n in range(12):
        bill(some_work(nodes[n % 2], (n, n + 1)))
    with django_assert_max_num_queries(10):
        assert client.get("/costs/", {**MAY, "by": "job"}).status_code == 200


def test_a_wrong_question_on_the_page_is_answered_with_a_message(
    teams: list[Team], client: Client
) -> None:
    client.force_login(a_user(operator=True))
    answer = client.get("/costs/", {"by": "colour"})
    assert answer.status_code == 200
    assert "by: must be one of hour, day, node, team, job" in answer.content.decode()


def test_without_a_cluster_the_page_says_so(client: Client) -> None:
    client.force_login(a_user(operator=True))
    assert "No cluster yet" in client.get("/costs/").content.decode()
    assert client.get("/costs/figure.json").status_code == 404
    assert client.get("/costs/costs.csv").status_code == 404


def test_the_chart_stacks_measured_and_modelled_by_hour(teams: list[Team], client: Client) -> None:
    client.force_login(a_user(operator=True))
    figure = client.get("/costs/figure.json", MAY).json()
    measured, modelled, rest, predicted = figure["data"]
    assert len(measured["x"]) == 4
    assert measured["width"] == 0.8 * 3_600_000, "also where there is one hour alone"
    assert sum(modelled["y"]) == pytest.approx(4 * 0.4)
    assert sum(rest["y"]) == pytest.approx(4 * 0.3)
    assert predicted["y"][0] == pytest.approx(0.77)
    assert predicted["y"][3] is None


def test_the_file_holds_every_sum_with_units_in_its_header(
    teams: list[Team], client: Client
) -> None:
    client.force_login(a_user(operator=True))
    answer = client.get("/costs/costs.csv", {**MAY, "by": "job"})
    assert answer["Content-Type"].startswith("text/csv")
    assert (
        answer["Content-Disposition"]
        == 'attachment; filename="costs-main-by-job-20260501-20260503.csv"'
    )
    lines = list(csv.DictReader(b"".join(answer).decode().splitlines()))
    assert [(line["name"], line["team"]) for line in lines] == [
        ("convnet", "vision"),
        ("recurrent", "speech"),
    ]
    assert float(lines[0]["it_kwh"]) == pytest.approx(2.1)
    assert Decimal(lines[0]["cost"]) == pytest.approx(Decimal(2.1 * PRICE), rel=Decimal("1e-6"))
    assert lines[1]["predicted_cost"] == ""
    assert lines[0]["currency"] == "EUR"


def test_a_download_by_job_holds_no_cursor_while_its_client_reads(
    teams: list[Team], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, iterator = list[Any](), QuerySet.iterator

    def noted(of: Any) -> Any:
        opened.append(iterator(of))
        return opened[-1]

    monkeypatch.setattr(QuerySet, "iterator", noted)
    monkeypatch.setattr("controlplane.accounting.costs.JOBS_AT_ONCE", 1)
    query = read_query(cluster, {"by": "job", **MAY}, later(48))
    reads = iter(Costs(a_user(operator=True), query).rows)
    assert next(reads).name == "convnet"
    assert [inspect.getgeneratorstate(one) for one in opened] == [inspect.GEN_CLOSED]
    EnergyEntry.objects.filter(job__name="recurrent").delete()
    assert list(reads) == [], "entries that are gone meanwhile are left out"


@pytest.mark.parametrize("cell", ["=1+1", "+cmd", "-2", "@SUM(A1)", "\tx", "\rx"])
def test_no_cell_is_a_formula(cell: str) -> None:
    assert plain(cell) == "'" + cell


@pytest.mark.parametrize(
    "before", ["", " ", "\u00a0", "\ufeff", "\u200b", "\n", "\r\n ", "\t", "\x0b", "\u3000"]
)
@pytest.mark.parametrize("sign", "=+-@＝＋－＠")
def test_a_formula_behind_blanks_or_in_wide_signs_is_none_either(before: str, sign: str) -> None:
    assert str(plain(f"{before}{sign}1+1")).startswith("'")
    assert plain(f"a;{before}{sign}1") == f"a;'{before}{sign}1"


@pytest.mark.parametrize(
    "text", ["a-b", "2026-05-01T12:00:00+00:00", "ada@example", "resnet+adam", "a = b", ""]
)
def test_names_with_such_signs_inside_stay_as_they_are(text: str) -> None:
    assert plain(text) == text


def test_hostile_names_reach_the_file_as_text(
    client: Client, cluster: Cluster, nodes: list[Node]
) -> None:
    team = a_team(' =HYPERLINK("http://x","y")')
    user = a_user("+cmd", team=team)
    bill(
        some_work(nodes[0], (0, 1), job=a_job(cluster, team=team, user=user, name="@SUM(1;=1)\n-2"))
    )
    client.force_login(user)
    answer = client.get("/costs/costs.csv", {**MAY, "by": "job"})
    (line,) = csv.DictReader(io.StringIO(b"".join(answer).decode(), newline=""))
    assert line["team"] == '\' =HYPERLINK("http://x","y")'
    assert (line["user"], line["name"]) == ("'+cmd", "'@SUM(1;'=1)\n'-2")


def test_numbers_stay_numbers_in_the_file() -> None:
    assert plain(-2.5) == -2.5


def api(client: Client, **asked: str) -> Any:
    return client.get("/api/v1/costs/", asked)


def test_the_api_answers_the_same_sums(teams: list[Team], client: Client) -> None:
    client.force_login(a_user(operator=True))
    answer = api(client, cluster="main", by="node", **MAY).json()
    assert [row["name"] for row in answer["rows"]] == ["alpha", "beta"]
    assert answer["total"]["kwh"] == pytest.approx(2.8)
    assert (answer["currency"], answer["more"]) == ("EUR", False)
    assert answer["rows"][1]["predicted_cost"] is None


def test_profile_runs_are_a_line_of_their_own(
    cluster: Cluster, nodes: list[Node], client: Client
) -> None:
    job = a_job(cluster, name="convnet")
    bill(some_work(nodes[0], (0, 1), job=job))
    bill(some_work(nodes[1], (0, 2), job=job, purpose="profiling", fence=2))
    client.force_login(a_user(operator=True))
    total = api(client, **MAY).json()["total"]
    assert total["profiling_kwh"] == pytest.approx(total["kwh"] * 2 / 3)
    assert float(total["profiling_cost"]) == pytest.approx(float(total["cost"]) * 2 / 3)
    assert "Profile runs" in client.get("/costs/", MAY).content.decode()


def test_the_api_refuses_by_field_and_tells_strangers_nothing(
    teams: list[Team], client: Client
) -> None:
    assert api(client).status_code == 401
    client.force_login(a_user())
    refused = api(client, by="colour")
    assert refused.status_code == 400
    assert "by" in refused.json()["error"]["fields"]
    assert api(client, cluster="nowhere").status_code == 404
    assert api(client, **MAY).json()["rows"] == []


def test_with_several_clusters_the_api_asks_which(teams: list[Team], client: Client) -> None:
    a_priced_cluster()
    client.force_login(a_user(operator=True))
    assert api(client).json()["error"]["fields"] == {
        "cluster": ["is missing: say which cluster's costs, by its name"]
    }


def test_costs_of_another_cluster_are_left_out(teams: list[Team], cluster: Cluster) -> None:
    other = a_priced_cluster(name="other")
    bill(some_work(a_v100_node(other), (0, 3), job=a_job(other, team=teams[0])))
    operator = a_user(operator=True)
    assert [row.gpu_h for row in rows(operator, cluster, "team")] == [6.0, 2.0]
