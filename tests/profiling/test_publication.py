"""Operators publish what one team has measured; other teams use it until they measure."""

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from clusters.models import Cluster, Node
from controlplane.audit.models import Entry
from jobs.models import Kind
from policies.contract.snapshot import Source
from profiling.models import Profile, ProfileRun
from profiling.publication import KindStateError, publish, withdraw
from profiling.selectors import kind_views, load_pool
from profiling.services import forget, production_measured, request_profiles
from tests.builders import a_cluster, a_gpu_type, a_job, a_kind, a_node, a_team, a_user
from tests.builders_profiling import (
    a_launch,
    a_profiled_job,
    a_profiling_node,
    reconcile_profiles,
    state_of,
)

pytestmark = pytest.mark.django_db

KINDS = "/api/v1/kinds/"
V100, TWO = ("V100", 1), ("V100", 2)


@pytest.fixture
def cluster() -> Cluster:
    return a_cluster(profiling="off")


@pytest.fixture
def node(cluster: Cluster) -> Node:
    return a_node(cluster)


@pytest.fixture
def kind() -> Kind:
    """A team's kind, measured on one and two V100."""
    measured = {V100: 9.7, TWO: 18.0}
    kind = a_kind("bert", team=a_team(), steps_per_s=measured)
    Kind.objects.filter(pk=kind.pk).update(setup_s=4.0, reports_steps=True)
    return kind


def the_kind_of_another_team(kind: Kind, **values: Any) -> Kind:
    return a_kind(kind.name, digest=kind.digest, team=a_team(), **values)


def numbers(kind: Kind) -> dict[tuple[str, int], tuple[float, str, bool]]:
    """(speed, source, published) by configuration."""
    rows = Profile.objects.filter(kind=kind, spread=False).select_related("gpu_type")
    return {(p.gpu_type.name, p.gpus): (p.steps_per_s, p.source, p.published) for p in rows}


COPIED = {V100: (9.7, "measured", True), TWO: (18.0, "measured", True)}


def test_a_published_kind_is_known_to_teams_that_have_it_already(kind: Kind) -> None:
    other = the_kind_of_another_team(kind, steps_per_s={V100: 3.0}, source="assumed")
    shared = publish(kind)
    assert (shared.team, shared.digest, shared.name) == (None, kind.digest, "bert")
    assert numbers(shared) == numbers(other) == COPIED
    assert numbers(kind) == {V100: (9.7, "measured", False), TWO: (18.0, "measured", False)}
    other.refresh_from_db()
    assert (other.setup_s, other.reports_steps) == (4.0, True)


def test_a_team_keeps_what_it_has_measured_itself(kind: Kind) -> None:
    other = the_kind_of_another_team(kind, steps_per_s={V100: 12.0})
    publish(kind)
    assert numbers(other) == {V100: (12.0, "measured", False), TWO: (18.0, "measured", True)}


def test_a_teams_first_job_of_a_published_kind_finds_its_speeds_and_asks_for_no_run(
    kind: Kind,
) -> None:
    cluster = a_cluster()
    a_profiling_node(cluster, "V100", 2)
    publish(kind)
    job = a_profiled_job(cluster, the_kind_of_another_team(kind), gpus=2)
    assert numbers(job.kind) == COPIED
    assert not ProfileRun.objects.exists()
    assert state_of(job) == "queued"
    (view,) = kind_views(cluster, [job.kind_id])
    assert {(t.gpu_type, t.gpus): (t.steps_per_s, t.source) for t in view.throughputs} == {
        V100: (9.7, Source.MEASURED),
        TWO: (18.0, Source.MEASURED),
    }


def test_a_job_that_waits_to_be_measured_goes_on_once_its_speeds_are_published(kind: Kind) -> None:
    cluster = a_cluster()
    a_profiling_node(cluster, "V100", 2)
    job = a_profiled_job(cluster, the_kind_of_another_team(kind), gpus=2)
    assert state_of(job) == "profiling"
    shared = publish(kind)
    reconcile_profiles(timezone.now())
    assert (state_of(job), ProfileRun.objects.count()) == ("queued", 0)
    withdraw(shared)
    reconcile_profiles(timezone.now())
    assert state_of(job) == "profiling"


def test_a_teams_first_measurement_replaces_a_published_number_and_only_that(
    kind: Kind, cluster: Cluster, node: Node
) -> None:
    publish(kind)
    other = the_kind_of_another_team(kind)
    job = a_job(cluster, kind=other, team=other.team, state="running")
    request_profiles([job])
    production_measured(a_launch(job, node, steps_per_s=12.0))
    assert numbers(job.kind) == {
        V100: (pytest.approx(12.0), "measured", False),
        TWO: (18.0, "measured", True),
    }
    shared = Kind.objects.get(team=None)
    assert numbers(shared) == COPIED
    assert numbers(kind)[V100] == (9.7, "measured", False)


def test_published_again_its_copies_change_and_those_of_dropped_numbers_go(kind: Kind) -> None:
    other = the_kind_of_another_team(kind)
    publish(kind)
    Profile.objects.filter(kind=kind, gpus=1).update(steps_per_s=10.5)
    Profile.objects.filter(kind=kind, gpus=2).delete()
    shared = publish(kind)
    assert Kind.objects.filter(team=None).get() == shared
    assert numbers(shared) == numbers(other) == {V100: (10.5, "measured", True)}


def test_what_is_published_is_not_published_as_another_teams_own(kind: Kind) -> None:
    other = the_kind_of_another_team(kind)
    publish(kind)
    with pytest.raises(KindStateError, match="measured nothing"):
        publish(other)
    assert numbers(Kind.objects.get(team=None)) == COPIED


def test_withdrawn_the_published_kind_and_its_copies_are_gone(kind: Kind) -> None:
    other = the_kind_of_another_team(kind, steps_per_s={V100: 12.0})
    withdraw(publish(kind))
    assert not Kind.objects.filter(team=None).exists()
    assert numbers(other) == {V100: (12.0, "measured", False)}
    assert numbers(kind).keys() == {V100, TWO}
    publish(kind)
    assert numbers(other)[TWO] == (18.0, "measured", True)


def test_a_teams_kind_is_not_withdrawn_and_a_published_one_not_forgotten(kind: Kind) -> None:
    with pytest.raises(KindStateError, match="a team's kind"):
        withdraw(kind)
    shared = publish(kind)
    with pytest.raises(KindStateError, match="withdraw it"):
        forget(shared)
    with pytest.raises(KindStateError, match="published already"):
        publish(shared)


def test_estimates_and_guesses_are_not_published(kind: Kind) -> None:
    Profile.objects.filter(kind=kind, gpus=2).update(source="estimated")
    assert numbers(publish(kind)).keys() == {V100}
    with pytest.raises(KindStateError, match="measured nothing"):
        publish(a_kind(team=a_team(), steps_per_s={V100: 1.0}, source="assumed"))


def test_a_number_is_not_copied_to_where_a_teams_own_command_has_failed(
    kind: Kind, cluster: Cluster
) -> None:
    other = the_kind_of_another_team(kind)
    run = {"job": a_job(cluster, kind=other, team=other.team), "steps": 5, "copy": 1, "gpus": 2}
    gpu_type = Profile.objects.filter(kind=kind)[0].gpu_type
    ProfileRun.objects.create(
        kind=other, gpu_type=gpu_type, state="given_up", reason_class="oom", **run
    )
    publish(kind)
    assert numbers(other) == {V100: (9.7, "measured", True)}


def test_a_kind_that_reports_no_steps_takes_no_speeds_of_steps(kind: Kind) -> None:
    silent = the_kind_of_another_team(kind, reports_steps=False, steps_per_s={V100: 0.1})
    publish(kind)
    assert numbers(silent) == {V100: (0.1, "measured", False)}


def test_copies_are_no_further_evidence_for_estimates(kind: Kind) -> None:
    a_kind_elsewhere = Profile.objects.filter(kind=kind, gpus=1).get()
    Profile.objects.create(
        kind=kind, gpu_type=a_gpu_type("T4"), gpus=1,
        steps_per_s=a_kind_elsewhere.steps_per_s / 2, source="measured",
    )  # fmt: skip
    the_kind_of_another_team(kind)
    before = load_pool()
    publish(kind)
    assert load_pool() == before
    assert {name for of in before.ratios.values() for name in of} == {str(kind.pk)}


def test_a_copy_is_as_old_as_its_measurement(kind: Kind) -> None:
    other = the_kind_of_another_team(kind)
    publish(kind)
    ages = Profile.objects.filter(gpus=1).values_list("updated_at", flat=True)
    assert len(set(ages)) == 1
    assert Profile.objects.filter(kind=other).exists()


@pytest.mark.parametrize("action", ["publish", "withdraw"])
def test_a_member_may_not_publish_or_withdraw(client: Client, kind: Kind, action: str) -> None:
    shared = publish(kind) if action == "withdraw" else kind
    Entry.objects.all()._raw_delete("default")
    client.force_login(a_user(team=kind.team))
    assert client.post(f"{KINDS}{shared.pk}/{action}/").status_code == 403
    assert client.post(f"/kinds/{shared.pk}/{action}/").status_code == 403
    assert not Entry.objects.exists()
    assert Kind.objects.filter(team=None).exists() is (action == "withdraw")
    assert "Publish" not in client.get("/kinds/").content.decode()


def test_an_operator_publishes_and_withdraws_by_rest(client: Client, kind: Kind) -> None:
    boss = a_user("boss", operator=True)
    client.force_login(boss)

    def asked(kind_id: int, action: str) -> int:
        url = f"{KINDS}{kind_id}/{action}/"
        return client.post(url, content_type="application/json").status_code

    shown = client.post(f"{KINDS}{kind.pk}/publish/", content_type="application/json").json()
    assert (shown["team"], shown["name"]) == (None, "bert")
    assert {(p["gpus"], p["source"], p["published"]) for p in shown["profiles"]} == {
        (1, "measured", True),
        (2, "measured", True),
    }
    assert asked(shown["id"], "publish") == 409
    assert asked(kind.pk, "withdraw") == 409
    assert asked(shown["id"], "forget") == 409
    assert asked(shown["id"], "withdraw") == 204
    rows = Entry.objects.order_by("pk").values_list("action", "actor", "thing")
    assert list(rows) == [("kind.publish", "boss", "bert"), ("kind.withdraw", "boss", "bert")]


def test_an_operator_publishes_and_withdraws_by_the_page(client: Client, kind: Kind) -> None:
    client.force_login(a_user(operator=True))
    assert f"/kinds/{kind.pk}/publish/" in client.get("/kinds/").content.decode()
    page = client.post(f"/kinds/{kind.pk}/publish/", follow=True).content.decode()
    shared = Kind.objects.get(team=None)
    assert "All teams now use what is measured of bert." in page
    assert f"/kinds/{shared.pk}/withdraw/" in page
    assert "published for all teams" in page
    page = client.post(f"/kinds/{kind.pk}/withdraw/", follow=True).content.decode()
    assert "Nothing was changed" in page
    client.post(f"/kinds/{shared.pk}/withdraw/")
    assert not Kind.objects.filter(team=None).exists()
    assert client.post(f"/kinds/{kind.pk}/burn/").status_code == 404


def test_members_see_published_kinds_but_not_whose_they_were(
    client: Client, cluster: Cluster, node: Node, kind: Kind
) -> None:
    shared = publish(kind)
    member = a_user(team=a_team())
    client.force_login(member)
    assert [k["id"] for k in client.get(KINDS).json()["results"]] == [shared.pk]
    page = client.get("/kinds/").content.decode()
    assert ">published</span>" in page
    assert kind.team is not None
    assert kind.team.name not in page


def test_estimates_are_compared_with_what_teams_measured_themselves_not_with_copies(
    client: Client, node: Node, kind: Kind
) -> None:
    client.force_login(a_user(operator=True))
    before = {k["id"]: k["error"] for k in client.get(KINDS).json()["results"]}
    other, shared = the_kind_of_another_team(kind), publish(kind)
    after = {k["id"]: k["error"] for k in client.get(KINDS).json()["results"]}
    assert after == {**before, other.pk: None, shared.pk: None}
    assert "published for all teams · 0 jobs" not in client.get("/kinds/").content.decode()


def test_a_copy_that_is_forgotten_is_an_estimate_of_the_teams_own(kind: Kind) -> None:
    other = the_kind_of_another_team(kind)
    publish(kind)
    forget(other)
    assert numbers(other) == {V100: (9.7, "estimated", False), TWO: (18.0, "estimated", False)}
