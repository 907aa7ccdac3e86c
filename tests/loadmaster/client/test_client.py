"""The client against a real server on a real socket, and against servers that misbehave."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.contrib.auth.models import User
from pytest_django.live_server_helper import LiveServer

import loadmaster
from clusters.models import Node
from jobs.lifecycle import JobState
from jobs.models import Job
from loadmaster.client import (
    ApiError,
    AuthenticationError,
    Client,
    ConflictError,
    ConnectionFailedError,
    InvalidError,
    LoadmasterError,
    NotFoundError,
    PermissionDeniedError,
    WaitTimeoutError,
    rest,
)
from loadmaster.client.account import Account, write_account
from loadmaster.client.results import Submission
from loadmaster.protocol import AssignmentState
from tests.builders import a_job, a_user
from tests.builders_jobs import a_placement, a_token, job_fields, output

Handler = Callable[[httpx.Request], httpx.Response]


@pytest.fixture
def client(live_server: LiveServer, user: User) -> Iterator[Client]:
    with loadmaster.Client(live_server.url, a_token(user)) as client:
        yield client


@pytest.fixture
def operator(live_server: LiveServer, transactional_db: None) -> Iterator[Client]:
    with Client(live_server.url, a_token(a_user("root", operator=True))) as client:
        yield client


def of(user: User, node: Node, **values: Any) -> Job:
    return a_job(node.cluster, team=user.teams.get(), user=user, **values)


def test_many_jobs_are_submitted_in_few_calls_and_those_refused_are_told(
    client: Client, node: Node
) -> None:
    jobs = [job_fields(name=f"sweep-{number}") for number in range(101)] + [job_fields(steps=-1)]
    found = client.submit_many(jobs, idempotency_keys=[f"sweep-{number}" for number in range(102)])
    assert [s.job.name for s in found if isinstance(s, Submission)] == [
        f"sweep-{number}" for number in range(101)
    ]
    assert isinstance(found[-1], InvalidError)
    assert "steps" in found[-1].fields
    again = client.submit_many(jobs[:2], idempotency_keys=["sweep-0", "sweep-7"])
    assert isinstance(again[0], Submission)
    assert (again[0].created, again[0].id) == (
        False,
        found[0].id if isinstance(found[0], Submission) else "",
    )
    assert isinstance(again[1], ConflictError)
    with pytest.raises(LoadmasterError, match="one for each job"):
        client.submit_many(jobs, idempotency_keys=["one"])
    assert Job.objects.count() == 101


def test_a_job_is_submitted_shown_and_cancelled(client: Client, node: Node) -> None:
    submission = client.submit(job_fields(gpus="1..2"), priority=3)
    job = client.job(submission.id)
    assert (submission.created, job.name, job.gpus_max, job.priority) == (True, "digits", 2, 3)
    assert job.spec["steps_per_epoch"] == 100
    assert job.submitted_at is not None
    assert [j.id for j in client.jobs(active=True)] == [job.id]
    assert client.cancel(job.id).state == "cancelled"
    assert next(client.events(job.id)).event == "submitted"
    assert client.requeue(job.id).state in ("queued", "profiling")
    assert client.hold(job.id).state == "held"
    assert client.release(job.id).state in ("queued", "profiling")
    assert client.clone(job.id, name="again").job.name == "again"


def test_a_client_goes_by_the_login_of_the_command_line(
    live_server: LiveServer, user: User, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("LOADMASTER_URL", "LOADMASTER_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(LoadmasterError, match="loadmaster login"):
        Client.logged_in()
    write_account(Account(live_server.url, a_token(user)))
    with Client.logged_in() as client:
        assert client.whoami().username == "ada"
    monkeypatch.setenv("LOADMASTER_URL", "http://elsewhere.example")
    with Client.logged_in() as stranger:
        assert stranger.url == "http://elsewhere.example"


def test_the_same_key_submits_once(client: Client, node: Node) -> None:
    first, again = (client.submit(job_fields(), idempotency_key="k") for _ in range(2))
    assert (first.id, first.created) == (again.id, not again.created)
    with pytest.raises(ConflictError, match="another body"):
        client.submit(job_fields(steps=5), idempotency_key="k")


def test_a_refused_job_raises_with_messages_by_field(client: Client, node: Node) -> None:
    with pytest.raises(InvalidError) as raised:
        client.submit(job_fields(gpus=9))
    error = raised.value
    assert (error.status, error.code) == (400, "invalid")
    assert "the largest that could serve the job has 2" in error.fields["gpus"][0]


def test_every_page_of_a_list_is_read(
    client: Client, user: User, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest, "PAGE", 3)
    made = {str(of(user, node).pk) for _ in range(7)}
    assert {j.id for j in client.jobs()} == made
    assert len(list(client.jobs(limit=4))) == 4
    assert [j.id for j in client.jobs(state=["running", "failed"])] == []


def test_a_log_is_followed_to_its_end(client: Client, user: User, node: Node) -> None:
    job = of(user, node, state=JobState.COMPLETED)
    output(
        a_placement(job, node, AssignmentState.PREEMPTED, ended_ago_s=60),
        b"first \xe2\x82\xac\n" * 10_000,
    )
    output(a_placement(job, node, AssignmentState.SUCCEEDED, ended_ago_s=60), b"second\n")
    text = "".join(client.logs(str(job.pk), follow=True))
    assert text == "first €\n" * 10_000 + "second\n"


def test_a_log_that_is_not_followed_ends_with_what_is_there(
    client: Client, user: User, node: Node
) -> None:
    job = of(user, node, state=JobState.RUNNING)
    output(a_placement(job, node), b"so far")
    assert "".join(client.logs(str(job.pk))) == "so far"
    assert "".join(client.logs(str(job.pk), offset=-3)) == "far"


def test_waiting_ends_when_the_job_does_or_when_patience_does(
    client: Client, user: User, node: Node
) -> None:
    assert client.wait(str(of(user, node, state=JobState.FAILED).pk)).state == "failed"
    with pytest.raises(WaitTimeoutError, match="is still queued"):
        client.wait(str(of(user, node).pk), timeout_s=0.01, poll_s=0.001)


def test_strangers_and_unknown_things_are_not_found(client: Client, node: Node) -> None:
    theirs = a_job(node.cluster)
    for job_id in (str(theirs.pk), "nonsense", "../me", "a/b", "?"):
        with pytest.raises(NotFoundError):
            client.job(job_id)
    with pytest.raises(LoadmasterError, match="is no name"):
        client.job("..")


def test_a_wrong_token_is_an_authentication_error(
    live_server: LiveServer, transactional_db: None
) -> None:
    for token in ("", "wrong"):
        with Client(live_server.url, token) as client, pytest.raises(AuthenticationError):
            client.whoami()


def test_logging_in_gives_a_token_and_logging_out_ends_it(
    live_server: LiveServer, user: User
) -> None:
    with Client(live_server.url) as client:
        token = client.login("ada", "a long password", valid_h=1)
        assert client.whoami().teams == ("research",)
        assert token.token not in repr(token)
        client.logout()
        with pytest.raises(AuthenticationError):
            client.whoami()
        with pytest.raises(AuthenticationError, match="wrong"):
            client.login("ada", "guess")


def test_operators_run_the_cluster(operator: Client, node: Node) -> None:
    (shown,) = operator.nodes(cluster="lab")
    assert (shown.name, len(shown.devices)) == ("volta", 2)
    assert operator.cordon(shown.id, "fan").reason == "fan"
    assert operator.uncordon(shown.id).state == "ready"
    assert operator.drain(shown.id, until="2040-01-01T00:00:00Z").drain_until is not None
    assert operator.set_role(shown.id, "both").role == "both"
    assert operator.set_cluster("lab", policy="fifo")["policy"] == "fifo"
    assert operator.cluster("lab")["policy"] == "fifo"
    operator.reschedule("lab")
    assert len(operator.enrolment_token("lab")) > 20
    assert list(operator.rounds(cluster="lab")) == []
    assert "fifo" in [p.name for p in operator.policies()]
    assert [t["name"] for t in operator.gpu_types()] == ["V100"]
    assert [c["name"] for c in operator.clusters()] == ["lab"]


def test_everybody_else_may_only_look(client: Client, node: Node) -> None:
    with pytest.raises(PermissionDeniedError, match="only operators"):
        client.cordon(str(node.pk))


def test_secrets_go_in_and_only_their_names_come_out(client: Client) -> None:
    client.set_secret("research", "token", "x")
    assert client.secrets("research") == ["token"]
    client.delete_secret("research", "token")
    assert client.secrets("research") == []


# -- servers that misbehave


def fake(handler: Handler) -> Client:
    return Client("http://server", "t", transport=httpx.MockTransport(handler))


def failing(
    times: int, then: httpx.Response, error: httpx.Response | Exception
) -> tuple[Handler, list[httpx.Request]]:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        if len(seen) > times:
            return then
        if isinstance(error, Exception):
            raise error
        return error

    return handler, seen


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "FIRST_PAUSE_S", 0.0)


@pytest.mark.parametrize(
    "error", [httpx.Response(503), httpx.Response(429), httpx.ConnectError("refused")]
)
def test_reading_is_tried_again(error: httpx.Response | Exception) -> None:
    handler, seen = failing(2, httpx.Response(200, json={"username": "ada"}), error)
    assert fake(handler).whoami().username == "ada"
    assert len(seen) == 3


def test_a_submission_is_tried_again_under_one_key() -> None:
    handler, seen = failing(2, httpx.Response(201, json={"id": "j"}), httpx.ReadTimeout("slow"))
    assert fake(handler).submit(job_fields()).id == "j"
    assert len({r.headers["Idempotency-Key"] for r in seen}) == 1
    assert len(seen) == 3


def test_what_may_not_be_repeated_is_sent_once() -> None:
    handler, seen = failing(1, httpx.Response(200, json={}), httpx.ReadTimeout("slow"))
    with pytest.raises(ConnectionFailedError, match="http://server does not answer: slow"):
        fake(handler).cancel("j")
    assert len(seen) == 1


def test_patience_ends() -> None:
    handler, seen = failing(99, httpx.Response(200), httpx.Response(503))
    with pytest.raises(ApiError) as raised:
        fake(handler).whoami()
    assert (raised.value.status, len(seen)) == (503, rest.TRIES)


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json=[1]),
        httpx.Response(200, json={"results": 3}),
    ],
)
def test_another_kind_of_server_is_noticed(answer: httpx.Response) -> None:
    with pytest.raises(ConnectionFailedError, match="Loadmaster server"):
        list(fake(lambda request: answer).jobs())


@pytest.mark.parametrize("body", ["nonsense", '{"error": 3}', "{}", '{"error": {"code": "x"}}'])
def test_an_error_without_our_form_is_still_an_api_error(body: str) -> None:
    with pytest.raises(ApiError, match="answers 418"):
        fake(lambda request: httpx.Response(418, text=body)).whoami()


def test_fields_the_client_does_not_know_are_ignored() -> None:
    job = fake(
        lambda request: httpx.Response(
            200, json={"id": "j", "colour": "red", "progress": {"mood": 1}, "due": None}
        )
    ).job("j")
    assert (job.id, job.progress.steps_done, job.due) == ("j", 0, None)


def test_an_address_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(LoadmasterError, match="is no address"):
        Client("loadmaster.example")


def test_the_package_does_without_django_and_imports_the_client_lazily() -> None:
    script = (
        "import sys, loadmaster; assert 'httpx' not in sys.modules; loadmaster.Client;"
        " import loadmaster.cli.main;"
        " bad = [m for m in ('django', 'numpy', 'celery') if m in sys.modules];"
        " sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        loadmaster.nothing  # noqa: B018  # that is what is tested


def test_whoever_imports_loadmaster_has_the_client_and_the_error_to_catch() -> None:
    with pytest.raises(loadmaster.LoadmasterError), loadmaster.Client("not an address") as client:
        client.whoami()


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"walltime": float("nan")}, "walltime"),
        ({"resources": {"mic": float("inf")}}, "resources.mic"),
        ({"command": ["x", float("nan")]}, r"command\[1\]"),
    ],
)
def test_a_number_that_is_not_finite_is_named_and_not_sent(
    fields: dict[str, object], name: str
) -> None:
    with (
        Client("http://127.0.0.1:9", "token") as client,
        pytest.raises(LoadmasterError, match=f"^{name}: must be a finite number; give one"),
    ):
        client.submit({"name": "x", **fields})
