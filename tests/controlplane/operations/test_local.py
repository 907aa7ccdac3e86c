"""Starting the embedded default again: when the local agents count as being in."""

from pathlib import Path

import pytest

from clusters.models import Node
from controlplane.execution.services.sessions import open_session
from controlplane.operations.bootstrap import CLUSTER, EMULATED_NODES
from controlplane.operations.embedded.local import _agent
from tests.builders import a_cluster
from tests.builders_agents import a_node_with_agent, a_session_request

pytestmark = pytest.mark.django_db(transaction=True)

VOLTA = EMULATED_NODES[0]


@pytest.mark.parametrize("state", ["ready", "cordoned", "draining", "lost"])
def test_a_second_start_waits_for_a_new_session_whatever_state_the_node_was_left_in(
    tmp_path: Path, state: str
) -> None:
    node = a_node_with_agent(a_cluster(name=CLUSTER), name=VOLTA.name)
    Node.objects.update(state=state)
    program = _agent(VOLTA, tmp_path, 8000)
    assert not program.ready(), "the session of the first start is no sign of this one's agent"
    open_session(node.pk, a_session_request(node))
    assert program.ready()


def test_a_first_start_hands_the_agent_a_token_and_sets_the_watts_of_the_node_that_comes_in(
    tmp_path: Path,
) -> None:
    cluster = a_cluster(name=CLUSTER)
    program = _agent(VOLTA, tmp_path, 8000)
    assert (tmp_path / "agents" / "volta.token").stat().st_size > 0
    assert not program.ready()
    a_node_with_agent(cluster, name=VOLTA.name, base_w=Node._meta.get_field("base_w").default)
    assert program.ready()
    assert Node.objects.get().base_w == VOLTA.base_w
