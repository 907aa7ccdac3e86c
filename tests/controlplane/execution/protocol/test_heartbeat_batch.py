"""Heartbeats that arrive together: one batch, an answer for each."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from clusters.models import Node
from controlplane.execution.protocol import heartbeat_batch
from controlplane.execution.protocol.app import AgentProtocol
from controlplane.execution.protocol.threads import Pools
from loadmaster.protocol import Heartbeat
from loadmaster.wire import dumps
from tests.builders_agents import NODE_TOKEN, a_heartbeat, a_node_with_agent, a_running_assignment
from tests.builders_asgi import Said, ask, close_threads, nothing

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def pools() -> Iterator[Pools]:
    pools = Pools()
    yield pools
    close_threads(pools.calls, pools.heartbeats, pools.polls)


def sent_together(pools: Pools, beats: Sequence[tuple[Node, str, Heartbeat]]) -> list[Said]:
    """The answers to (node, token, heartbeat), all sent at once."""
    app = AgentProtocol(nothing, pools)

    async def all_at_once() -> list[Said]:
        return list(
            await asyncio.gather(
                *(
                    ask(app, "POST", f"/api/agent/v1/nodes/{node.pk}/heartbeat", head(token), body)
                    for node, token, body in ((n, t, dumps(beat)) for n, t, beat in beats)
                )
            )
        )

    return asyncio.run(all_at_once())


def head(token: str) -> Mapping[str, str]:
    return {"authorization": f"Bearer {token}", "loadmaster-protocol": "1"}


def test_one_that_is_refused_harms_nobody(pools: Pools) -> None:
    first = a_node_with_agent(token="0")
    nodes = [first, *(a_node_with_agent(first.cluster, token=str(n)) for n in range(1, 5))]
    beats = [(node, str(n), a_heartbeat(epoch=9 if n == 2 else 1)) for n, node in enumerate(nodes)]
    assert [said.status for said in sent_together(pools, beats)] == [200, 200, 409, 200, 200]


def test_all_of_one_node_are_answered(pools: Pools) -> None:
    node = a_node_with_agent()
    beats = [(node, NODE_TOKEN, a_heartbeat(seq=n)) for n in (1, 2, 3)]
    assert [said.status for said in sent_together(pools, beats)] == [200] * 3
    assert Node.objects.get().heartbeat_seq == 3


def test_another_nodes_token_is_told_from_an_unknown_one(pools: Pools) -> None:
    node = a_node_with_agent()
    a_node_with_agent(node.cluster, token="another's")
    beats = [(node, token, a_heartbeat()) for token in ("another's", "nobody's")]
    assert [said.status for said in sent_together(pools, beats)] == [403, 401]


def test_a_batch_that_fails_is_taken_one_by_one(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise ValueError("a row nobody thought of")

    monkeypatch.setattr(heartbeat_batch, "renew_all", fail)
    node = a_node_with_agent()
    (said,) = sent_together(pools, [(node, NODE_TOKEN, a_heartbeat(a_running_assignment(node)))])
    assert (said.status, len(said.json["leases"])) == (200, 1)


def test_more_than_can_be_answered_in_time_are_told_to_come_back(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat_batch, "WAITING", 0)
    node = a_node_with_agent()
    both = sent_together(pools, [(node, NODE_TOKEN, a_heartbeat(seq=n)) for n in (1, 2)])
    taken, refused = sorted(both, key=lambda said: said.status)  # either may be the first
    assert (taken.status, refused.status) == (200, 503)
    assert (refused.json["error"]["code"], refused.headers["retry-after"]) == ("overloaded", "1")
