"""Two agents with copies of one state folder: the one that was superseded gives up in words."""

import pytest

from clusters.agent_errors import AgentCallError
from clusters.models import Node, NodeEvent
from controlplane.execution.services.sessions import open_session
from loadmaster.protocol import ErrorCode
from tests.builders import a_cluster, a_node
from tests.builders_agents import a_session_request

pytestmark = pytest.mark.django_db


@pytest.fixture
def node() -> Node:
    return a_node(a_cluster(), session_expires_at=None)


def opened(node: Node, process: str, former_epoch: int = 0) -> int:
    """Open a session of the node's journal from a process; return its epoch."""
    request = a_session_request(node, process=process, former_epoch=former_epoch)
    return open_session(node.pk, request).epoch


def test_the_superseded_process_is_refused_as_a_duplicate(node: Node) -> None:
    first = opened(node, "one")
    opened(node, "two")
    with pytest.raises(AgentCallError, match="by a copy of this state folder") as refusal:
        opened(node, "one", first)
    assert (refusal.value.status, refusal.value.code) == (409, ErrorCode.DUPLICATE)


def test_the_process_with_the_newest_session_goes_on(node: Node) -> None:
    opened(node, "one")
    second = opened(node, "two")
    assert opened(node, "two", second) == second + 1


def test_a_restarted_agent_supersedes_its_own_session_at_once(node: Node) -> None:
    first = opened(node, "one")
    assert opened(node, "one again") == first + 1


def test_a_lost_answer_makes_no_duplicate_of_its_own_process(node: Node) -> None:
    first = opened(node, "one")
    opened(node, "one", first)
    assert opened(node, "one", first) == first + 2


def test_a_copy_may_go_on_once_the_other_is_silent(node: Node) -> None:
    first = opened(node, "one")
    opened(node, "two")
    Node.objects.filter(pk=node.pk).update(session_expires_at=None)
    assert opened(node, "one", first) == first + 2


def test_an_epoch_of_before_a_restore_is_no_duplicate(node: Node) -> None:
    opened(node, "one")
    assert opened(node, "two", former_epoch=40) == 2


def test_later_events_of_the_node_make_no_duplicate(node: Node) -> None:
    opened(node, "one")
    second = opened(node, "two")
    NodeEvent.objects.create(node=node, event="cordoned")
    opened(node, "two")
    NodeEvent.objects.create(node=node, event="cordoned")
    assert opened(node, "two", second) == second + 2
