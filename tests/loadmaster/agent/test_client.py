"""The agent's HTTP: what may be repeated, what may not, and that every call fits the protocol."""

import httpx
import pytest

from loadmaster.agent.server.client import (
    LONGEST_OUTPUT_CALL_S,
    TIMEOUT_S,
    AgentClient,
    AgentError,
    Conflict,
    Refused,
    TryAgain,
    Unauthorized,
    WrongProtocol,
)
from loadmaster.protocol import (
    Accept,
    AssignmentState,
    DirectiveAction,
    Heartbeat,
    LaunchSpec,
    SessionRequest,
    StateReport,
)
from loadmaster.samples import MetricsBatch
from tests.builders_agent import NODE_TOKEN, FakeServer, a_spec

BEAT = Heartbeat(epoch=1, seq=1, sent_at_s=0.0)


def answering(status: int, body: bytes = b"") -> AgentClient:
    return AgentClient(
        "http://server",
        transport=httpx.MockTransport(lambda request: httpx.Response(status, content=body)),
    )


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def client(server: FakeServer) -> AgentClient:
    client = AgentClient("http://server/", transport=server.transport())
    client.identify("n1", NODE_TOKEN)
    client.open_session(SessionRequest("m", "b", "secret", ()))
    return client


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_servers_fault_may_be_repeated(status: int) -> None:
    with pytest.raises(TryAgain, match=str(status)):
        answering(status).heartbeat(BEAT)


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"next_heartbeat_s": "soon"}', b"[]"])
def test_an_answer_that_cannot_be_read_may_be_repeated(body: bytes) -> None:
    with pytest.raises(TryAgain, match="cannot be read"):
        answering(200, body).heartbeat(BEAT)


def test_a_network_error_may_be_repeated(server: FakeServer, client: AgentClient) -> None:
    server.down = True
    with pytest.raises(TryAgain, match="down"):
        client.heartbeat(BEAT)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, Refused),
        (401, Unauthorized),
        (403, Unauthorized),
        (404, Refused),
        (409, Conflict),
        (426, WrongProtocol),
    ],
)
def test_a_refusal_has_a_type_and_is_not_repeated(status: int, kind: type[AgentError]) -> None:
    body = b'{"error": {"code": "why", "detail": "because", "expected": 7}}'
    with pytest.raises(kind, match="why: because") as caught:
        answering(status, body).heartbeat(BEAT)
    assert not isinstance(caught.value, TryAgain)
    assert isinstance(caught.value, Refused)
    assert caught.value.expected == 7


@pytest.mark.parametrize("body", [b"", b"plain text", b"[]", b'{"error": "text"}'])
def test_a_refusal_without_a_proper_body_is_a_refusal_still(body: bytes) -> None:
    with pytest.raises(Conflict):
        answering(409, body).heartbeat(BEAT)


def test_the_version_of_the_protocol_goes_with_every_call() -> None:
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(204)

    client = AgentClient("http://server", transport=httpx.MockTransport(handle))
    client.identify("n1", "token")
    assert client.directives(3, 25.0) is None
    assert seen[0].headers["Loadmaster-Protocol"] == "1"
    assert seen[0].headers["Authorization"] == "Bearer token"
    assert seen[0].url.params["wait"] == "25"


def test_an_offer_is_heard_accepted_and_reported(server: FakeServer, client: AgentClient) -> None:
    held = server.offer(a_spec())
    (directive,) = client.heartbeat(BEAT).directives
    assert directive.action is DirectiveAction.START
    assert client.accept("a1", Accept(1, 1)) == a_spec()
    client.report_state("a1", StateReport(1, 1, 1, AssignmentState.PREPARING, 0.0))
    assert held.state is AssignmentState.PREPARING


def test_logs_go_packed_and_a_conflict_says_where_to_begin(
    server: FakeServer, client: AgentClient
) -> None:
    held = server.offer(a_spec())
    assert client.send_log("a1", "stdout", 0, b"hello", fence=1, epoch=1) == 5
    with pytest.raises(Conflict) as caught:
        client.send_log("a1", "stdout", 2, b"hello", fence=1, epoch=1)
    assert caught.value.expected == 5
    assert held.logs["stdout"] == b"hello"


def test_a_wrong_token_is_refused(client: AgentClient) -> None:
    client.identify("n1", "another")
    with pytest.raises(Unauthorized):
        client.heartbeat(BEAT)


def test_a_specification_of_another_version_cannot_be_read() -> None:
    client = answering(200, b'{"assignment": "a1", "from_the_future": 1}')
    with pytest.raises(TryAgain, match="from_the_future"):
        client.accept("a1", Accept(1, 1))
    assert LaunchSpec.__dataclass_fields__["version"].default == 1


@pytest.mark.parametrize(("lease_s", "part_s"), [(4.0, 0.5), (600.0, LONGEST_OUTPUT_CALL_S)])
def test_a_call_that_brings_output_takes_a_part_of_the_lease_at_most(
    lease_s: float, part_s: float
) -> None:
    server, waits = FakeServer(lease_s=lease_s), list[float]()
    server.offer(a_spec())
    transport = server.transport()

    def handle(request: httpx.Request) -> httpx.Response:
        waits.append(request.extensions["timeout"]["read"])
        return transport.handle_request(request)

    client = AgentClient("http://server/", transport=httpx.MockTransport(handle))
    client.identify("n1", NODE_TOKEN)
    client.open_session(SessionRequest("m", "b", "secret", ()))
    client.send_log("a1", "stdout", 0, b"hello", fence=1, epoch=1)
    client.send_metrics("a1", MetricsBatch(1, 1, 1))
    client.heartbeat(BEAT)
    assert waits[1:] == [part_s, part_s, TIMEOUT_S]
