"""What the ranks of a gang are told of each other, and of a term that is changed."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.utils import timezone

from clusters.models import Node
from clusters.services.enrolment import sha256
from controlplane.execution.directives import directive
from controlplane.execution.gangs import PORTS, Ports, gpus_of, rendezvous, token_of
from controlplane.execution.protocol.long_poll import look
from controlplane.execution.services.assignments import accept
from controlplane.execution.services.sessions import open_session
from jobs.models import Assignment
from loadmaster.features import features_with
from loadmaster.protocol import Accept, AssignmentState, DirectiveAction
from loadmaster.wire import to_json
from tests.builders import a_job
from tests.builders_agents import (
    NODE_TOKEN,
    a_heartbeat,
    a_node_with_agent,
    a_running_assignment,
    a_session_request,
    an_offer,
    heartbeat,
)

pytestmark = pytest.mark.django_db


def a_gang(address: str = "10.0.0.5") -> tuple[Assignment, Assignment]:
    """Offers of two ranks on two nodes, of which the first has that address."""
    first = a_node_with_agent()
    second = a_node_with_agent(first.cluster, token="the other's")
    Node.objects.filter(pk=first.pk).update(address=address)
    job = a_job(first.cluster)
    port = Ports().choose(Node.objects.get(pk=first.pk), job.pk, 1)
    lead = an_offer(first, job, world_size=2, gang_port=port)
    return lead, an_offer(second, job, rank=1, world_size=2, gang_port=port)


def test_all_ranks_are_told_where_rank_0_is_and_the_same_token() -> None:
    ranks = a_gang()
    specs = [accept(rank.node_id, rank.pk, Accept(1, rank.fence)) for rank in ranks]
    assert {spec.rendezvous for spec in specs} == {f"10.0.0.5:{ranks[0].gang_port}"}
    assert [(spec.rank, spec.world_size, spec.gang_gpus) for spec in specs] == [
        (0, 2, 2),
        (1, 2, 2),
    ]
    (token,) = {spec.gang_token for spec in specs}
    assert len(token) == 64
    assert specs[0].required_features.count("gang") == 1


def test_another_launch_has_another_token() -> None:
    first, second = a_gang()[0], a_gang()[0]
    tokens = {
        accept(rank.node_id, rank.pk, Accept(1, rank.fence)).gang_token for rank in (first, second)
    }
    assert len(tokens) == 2


def test_another_launch_of_the_same_job_has_another_token() -> None:
    node = a_node_with_agent()
    first = an_offer(node, world_size=2)
    Assignment.objects.filter(pk=first.pk).update(state=AssignmentState.FAILED)
    second = an_offer(node, first.job, world_size=2, fence=first.fence + 1)
    assert token_of(first) != token_of(second)


def test_ranks_of_an_earlier_launch_do_not_count() -> None:
    lead, other = a_gang()
    Assignment.objects.filter(pk__in=(lead.pk, other.pk)).update(state=AssignmentState.FAILED)
    node = Node.objects.get(pk=lead.node_id)
    node.address = "10.0.0.9"
    again = an_offer(node, lead.job, world_size=2, fence=lead.fence + 1, gang_port=PORTS[7])
    Node.objects.filter(pk=node.pk).update(address="10.0.0.9")
    assert rendezvous(again) == f"10.0.0.9:{PORTS[7]}"
    assert gpus_of(again) == 1


def test_gangs_of_two_jobs_meet_apart() -> None:
    _, first = a_gang("10.0.0.5")
    _, second = a_gang("10.0.0.6")
    assert [rendezvous(rank).partition(":")[0] for rank in (first, second)] == [
        "10.0.0.5",
        "10.0.0.6",
    ]
    assert [gpus_of(rank) for rank in (first, second)] == [2, 2]


@pytest.mark.parametrize(
    ("address", "host"),
    [("fd00::5", "[fd00::5]"), ("gpu-7", "gpu-7"), ("{container}", "lm-{lead}-1"), ("", None)],
)
def test_the_meeting_place_is_written_as_the_address_needs_it(
    address: str, host: str | None
) -> None:
    lead, other = a_gang(address)
    expected = "" if host is None else f"{host.format(lead=lead.pk)}:{lead.gang_port}"
    assert rendezvous(other) == rendezvous(lead) == expected


def test_a_job_of_one_rank_is_told_nothing_of_it() -> None:
    offer = an_offer(a_node_with_agent())
    spec = accept(offer.node_id, offer.pk, Accept(1, offer.fence))
    assert (spec.rendezvous, spec.gang_token, spec.gang_gpus) == ("", "", 0)
    assert not {"gang_token", "gang_gpus"} & set(to_json(spec)), (
        "an agent that knows no gangs reads it still"
    )


def test_gangs_at_one_address_get_ports_of_their_own_and_a_launch_another_than_the_one_before() -> (
    None
):
    node = a_node_with_agent()
    Node.objects.filter(pk=node.pk).update(address="10.0.0.5")
    node.refresh_from_db()
    job = a_job(node.cluster)
    assert Ports().choose(node, job.pk, 1) != Ports().choose(node, job.pk, 2)
    taken = []
    for fence in range(1, 6):
        port = Ports().choose(node, job.pk, 7)
        taken.append(port)
        a_running_assignment(node, a_job(node.cluster), world_size=2, gang_port=port, fence=fence)
    assert len(set(taken)) == 5
    assert all(port in PORTS and port + 1 < 32768 for port in taken), (
        "below what systems give to outgoing connections"
    )
    Assignment.objects.update(state=AssignmentState.SUCCEEDED)
    assert Ports().choose(node, job.pk, 7) == taken[0]


def test_gangs_that_are_launched_together_get_ports_of_their_own_by_one_query(
    django_assert_num_queries: Any,
) -> None:
    node = a_node_with_agent()
    a_running_assignment(node, a_job(node.cluster), world_size=2, gang_port=PORTS[0])
    Node.objects.filter(pk=node.pk).update(address="10.0.0.5")
    node.refresh_from_db()
    elsewhere = Node(address="10.0.0.6")
    ports, of_any_job = Ports(), UUID(int=0)
    with django_assert_num_queries(1):
        chosen = [ports.choose(node, of_any_job, 0) for _ in range(len(PORTS) - 1)]
        assert ports.choose(elsewhere, of_any_job, 0) == PORTS[0], (
            "another address, so nothing is taken"
        )
    assert set(chosen) == set(PORTS[1:]), "all that are left, each once"


def test_an_agent_that_knows_no_gangs_is_not_given_one_and_the_offer_says_why() -> None:
    lead, other = a_gang()
    Node.objects.filter(pk=lead.node_id).update(features=["process", "checkpoint"])
    with pytest.raises(Exception, match="install a newer one"):
        accept(lead.node_id, lead.pk, Accept(1, lead.fence))
    lead.refresh_from_db()
    other.refresh_from_db()
    assert (lead.state, lead.reason_class) == ("rejected", "node")
    assert other.state == "preempted", "a gang is launched whole or not at all"
    lead.job.refresh_from_db()
    assert (lead.job.state, lead.job.retries_used) == ("queued", 0)


def test_a_node_says_its_address_at_every_session() -> None:
    node = a_node_with_agent()
    for address in ("10.0.0.5", ""):
        open_session(
            node.pk, a_session_request(node, address=address, features=features_with("process"))
        )
        node.refresh_from_db()
        assert node.address == address


class TestTerms:
    def test_a_changed_term_is_told_until_it_is_known_and_also_that_there_is_none_any_more(
        self,
    ) -> None:
        assignment = a_running_assignment(a_node_with_agent())
        assert directive(assignment, 30.0) is None
        assignment.term_at = timezone.now()
        found = directive(assignment, 30.0)
        assert found is not None
        assert (found.action, found.term_until_s) == (DirectiveAction.UPDATE, None)

    def test_a_prolonged_term_wakes_the_long_poll_once(self) -> None:
        node = a_node_with_agent()
        assignment = a_running_assignment(node)
        until, now = timezone.now() + timedelta(seconds=60), timezone.now()
        who = (node.pk, sha256(NODE_TOKEN))
        assert node.pk not in look([who], now).wishes
        Assignment.objects.filter(pk=assignment.pk).update(term_until=until, term_at=now)
        _, (found,) = look([], now).wishes[node.pk]
        assert (found.pk, found.term_until) == (assignment.pk, until)
        reply = heartbeat(node.pk, a_heartbeat(assignment))
        assert reply.cursor == int(now.timestamp() * 1_000_000), (
            "what a heartbeat has told, the poll does not tell again"
        )
        assert reply.directives[0].term_until_s == until.timestamp()
