"""A change of one thing by a person changes no row of another of its kind."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User

from clusters.models import Cluster
from clusters.services.clusters import cluster_change
from clusters.services.nodes import node_set_slots
from controlplane.loop.live.lock import acquire, close_for, release
from controlplane.loop.models import Round
from controlplane.studies.services import (
    simulation_cancel,
    simulation_delete,
    simulation_share,
    simulation_unshare,
)
from controlplane.web.credentials.passwords import make_one_time
from controlplane.web.credentials.tokens import issue, note_use, tokens_of
from controlplane.web.models import Scope
from jobs.arrays.actions import array_act
from jobs.models import Kind, Team, TeamRole
from jobs.people import (
    disable_person,
    end_tokens_of,
    remove_member,
    reset_password,
    save_person,
    save_team,
    set_role,
)
from jobs.secrets import delete_secret, set_secret
from jobs.services import job_submit
from profiling.publication import publish, withdraw
from profiling.services import forget, production_measured
from tests.builders import a_cluster, a_job, a_kind, a_node, a_team, a_user
from tests.builders_jobs import job_fields
from tests.builders_live import devices_of
from tests.builders_profiling import a_launch
from tests.builders_studies import a_simulation
from tests.bystanders import check_unchanged, rows

pytestmark = pytest.mark.django_db

Action = Callable[[], object]
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
OF_ALL = ("JobCounter", "RescheduleEvent")
"""Models of rows that several things have in common."""


def a_person() -> User:
    """A person in a team, with a token."""
    user = a_user(team=a_team())
    issue(user, Scope.READ, timedelta(days=1))
    return user


def ending_tokens() -> Action:
    user = a_person()
    return lambda: end_tokens_of(user)


def disabling_a_person() -> Action:
    user = a_person()
    return lambda: disable_person(user)


def resetting_a_password() -> Action:
    user = a_person()
    make_one_time(user)
    return lambda: reset_password(user)


def choosing_a_password() -> Action:
    user = a_person()
    make_one_time(user)

    def choose() -> None:
        user.set_password("a phrase that is new")
        user.save()

    return choose


def using_a_token() -> Action:
    token = tokens_of(a_person()).get()
    return lambda: note_use(token)


def making_an_operator() -> Action:
    user = a_person()
    return lambda: save_person(user.username, operator=True)


def giving_a_role() -> Action:
    user = a_person()
    return lambda: set_role(user.teams.get(), user, TeamRole.MAINTAINER)


def taking_a_role() -> Action:
    user = a_person()
    return lambda: remove_member(user.teams.get(), user)


def changing_a_team() -> Action:
    team = a_team()
    return lambda: save_team(team.name, {"weight": 2.0})


def with_a_secret() -> Team:
    team = a_team()
    set_secret(team, "token", "value")
    return team


def changing_a_secret() -> Action:
    team = with_a_secret()
    return lambda: set_secret(team, "token", "another")


def deleting_a_secret() -> Action:
    team = with_a_secret()
    return lambda: delete_secret(team, "token")


def setting_slots() -> Action:
    node = a_node(a_cluster())
    uuid = devices_of(node)[0].uuid
    return lambda: node_set_slots(node, 2, [uuid])


def changing_a_cluster() -> Action:
    cluster = a_cluster()
    operator = a_user(operator=True)
    return lambda: cluster_change(cluster, operator, {"power_cap_w": 900.0})


def a_cluster_in_a_round() -> Cluster:
    cluster = a_cluster()
    Round.objects.create(cluster=cluster, number=1, policy="fifo", seed=1)
    Cluster.objects.filter(pk=cluster.pk).update(round_number=1)
    return cluster


def taking_a_lock() -> Action:
    cluster = a_cluster_in_a_round()
    return lambda: acquire(cluster.pk, NOW, NOW)


def releasing_a_lock() -> Action:
    lock = acquire(a_cluster_in_a_round().pk, NOW, NOW)
    assert lock is not None
    return lambda: release(lock)


def closing_a_cluster() -> Action:
    cluster = a_cluster_in_a_round()
    return lambda: close_for(cluster, 60.0, NOW)


def an_array(verb: str, state: str) -> Callable[[], Action]:
    def prepared() -> Action:
        cluster = a_cluster()
        a_node(cluster)
        user = a_person()
        array = job_submit(user, job_fields(array="0-1", cluster=cluster.name)).job.array
        assert array is not None
        array.jobs.update(state=state, failure_reason="no" if state == "failed" else "")
        return lambda: array_act(verb, array, user)

    return prepared


def a_measured_kind() -> Kind:
    return a_kind(team=a_team(), steps_per_s={("V100", 1): 1.0})


def forgetting_a_kind() -> Action:
    kind = a_measured_kind()
    node = a_node(a_cluster())
    job = a_job(node.cluster, kind=kind, state="running")
    production_measured(a_launch(job, node, state="succeeded"))
    return lambda: forget(kind)


def publishing_a_kind() -> Action:
    kind = a_measured_kind()
    return lambda: publish(kind)


def withdrawing_a_kind() -> Action:
    shared = publish(a_measured_kind())
    return lambda: withdraw(shared)


def a_study(act: Callable[..., object], **values: Any) -> Callable[[], Action]:
    def prepared() -> Action:
        simulation = a_simulation(a_user(), **values)
        return lambda: act(simulation, simulation.user)

    return prepared


PREPARED: dict[str, Callable[[], Action]] = {
    "ending tokens": ending_tokens,
    "disabling a person": disabling_a_person,
    "resetting a password": resetting_a_password,
    "choosing a password": choosing_a_password,
    "using a token": using_a_token,
    "making an operator": making_an_operator,
    "giving a role": giving_a_role,
    "taking a role": taking_a_role,
    "changing a team": changing_a_team,
    "changing a secret": changing_a_secret,
    "deleting a secret": deleting_a_secret,
    "setting slots": setting_slots,
    "changing a cluster": changing_a_cluster,
    "taking a lock": taking_a_lock,
    "releasing a lock": releasing_a_lock,
    "closing a cluster": closing_a_cluster,
    "cancelling an array": an_array("cancel", "queued"),
    "holding an array": an_array("hold", "queued"),
    "releasing an array": an_array("release", "held"),
    "requeueing an array": an_array("requeue", "failed"),
    "forgetting a kind": forgetting_a_kind,
    "publishing a kind": publishing_a_kind,
    "withdrawing a kind": withdrawing_a_kind,
    "cancelling a study": a_study(simulation_cancel),
    "deleting a study": a_study(simulation_delete),
    "sharing a study": a_study(simulation_share),
    "taking a link back": a_study(simulation_unshare, share_key="k" * 43),
}


@pytest.mark.parametrize("name", PREPARED)
def test_a_change_of_one_thing_changes_no_other(name: str) -> None:
    # The other one is prepared alike, so that nothing but its identity tells it from the first.
    PREPARED[name]()
    others = rows(OF_ALL)
    act = PREPARED[name]()
    prepared = rows(OF_ALL)
    act()
    done = rows(OF_ALL)
    assert done != prepared
    check_unchanged(others, done)
