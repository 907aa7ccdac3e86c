"""The server's logs: ids where they belong, secrets nowhere."""

import io
import json
import logging
import logging.config
import time
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.test import AsyncClient, Client
from django.utils.functional import SimpleLazyObject
from hypothesis import given
from hypothesis import strategies as st
from structlog.contextvars import bound_contextvars, get_contextvars

from controlplane.web.logs import tasks as log_tasks
from controlplane.web.logs.middleware import user_id_of
from controlplane.web.logs.structured import MASK, bound, config, formatter, masked, masked_text
from tests.builders import a_cluster, a_job, a_team, a_user

REQUEST_ID = "req-0123456789"


class Lines:
    """What the root logger says, as lines of JSON."""

    def __init__(self, form: str) -> None:
        self.stream = io.StringIO()
        self.handler = logging.StreamHandler(self.stream)
        self.handler.setFormatter(formatter(form))

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]

    def of(self, logger: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["logger"] == logger]


@pytest.fixture
def lines() -> Iterator[Lines]:
    yield from _listening("json")


@pytest.fixture
def text() -> Iterator[Lines]:
    yield from _listening("console")


def _listening(form: str) -> Iterator[Lines]:
    heard, root = Lines(form), logging.getLogger()
    before = root.level
    root.addHandler(heard.handler)
    root.setLevel(logging.DEBUG)
    yield heard
    root.removeHandler(heard.handler)
    root.setLevel(before)


def test_a_line_has_its_time_level_logger_and_the_ids_at_hand(lines: Lines) -> None:
    with bound(job=7, round=None):
        logging.getLogger("jobs.x").warning("said %s", "so")
    (event,) = lines.of("jobs.x")
    assert {k: event[k] for k in ("event", "level", "logger", "job")} == {
        "event": "said so", "level": "warning", "logger": "jobs.x", "job": "7",
    }  # fmt: skip
    assert event["timestamp"].endswith("Z")
    assert "round" not in event


def test_a_traceback_is_part_of_its_line_and_shows_no_secret(lines: Lines) -> None:
    try:
        raise ValueError("password=hunter2 is wrong")
    except ValueError:
        logging.getLogger("jobs.x").exception("it broke")
    (event,) = lines.of("jobs.x")
    assert "ValueError" in event["exception"]
    assert "hunter2" not in lines.text


def test_text_for_a_terminal_stays_on_its_line_whatever_a_client_says(text: Lines) -> None:
    logging.getLogger("jobs.x").warning("named %s", "a\nFORGED line \x1b[31m")
    (line,) = (one for one in text.text.splitlines() if "jobs.x" in one)
    assert "WARNING jobs.x named a\\nFORGED line \\x1b[31m" in line


@pytest.mark.parametrize(
    "name",
    [
        "token",
        "Authorization",
        "session_secret",
        "db_password",
        "API_KEY",
        "Cookie",
        "private_key",
        "secrets",
    ],
)
def test_fields_with_the_name_of_a_secret_are_masked(name: str) -> None:
    assert masked({"outer": {name: "value"}, "kept": 1}) == {"outer": {name: MASK}, "kept": 1}


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("Authorization: Bearer abcdefgh12345678", "Authorization: ***"),
        ("got bearer abcdefgh12345678 from it", "got bearer *** from it"),
        ("postgres://lm:pa55word@db/x", "postgres://lm:***@db/x"),
        ("GET /x?token=abc&y=1", "GET /x?token=***&y=1"),
        ('{"password": "abc", "n": 1}', '{"password": "***", "n": 1}'),
        (f"{'x' * 99}_secret-{'y' * 99}: abc", f"{'x' * 99}_secret-{'y' * 99}: ***"),
        ("a=b&my_token-2 = 'abc' token:abc", "a=b&my_token-2 = '***' token:***"),
        ("Not Found: /shared/simulations/ab:c1/", "Not Found: /shared/simulations/***/"),
        ("nothing to hide: tokens are kept hashed", "nothing to hide: tokens are kept hashed"),
    ],
)
def test_secrets_inside_of_texts_are_masked(said: str, shown: str) -> None:
    assert MASK not in shown or "abc" not in masked_text(said)
    if "Authorization" not in said:
        assert masked_text(said) == shown


@given(
    st.text(
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-", min_size=8, max_size=60
    )
)
def test_no_bearer_token_is_shown(token: str) -> None:
    assert f" {token} " not in masked_text(f"sent Bearer {token} to the server").replace(MASK, "")


@pytest.mark.parametrize(
    "word",
    [
        "token",
        "secret-",
        "password",
        "token ",
        "bearer  ",
        "token=",
        'token="',
        "://a:",
        "/shared/",
    ],
)
def test_masking_a_repeated_word_takes_time_in_proportion_to_its_length(word: str) -> None:
    began = time.monotonic()
    masked_text(word * (65_536 // len(word)))
    assert time.monotonic() - began < 1, "6 s and more where each word is read again and again"


def test_another_format_is_refused_by_name() -> None:
    with pytest.raises(
        ValueError, match="LOADMASTER_LOG_FORMAT must be console or json, not 'xml'"
    ):
        config("xml", "INFO")


@pytest.mark.parametrize("form", ["json", "console"])
def test_the_configuration_is_one_that_logging_takes(form: str) -> None:
    before = logging.getLogger().handlers[:]
    try:
        logging.config.dictConfig(config(form, "INFO"))
        assert logging.getLogger("uvicorn.error").propagate
    finally:
        logging.getLogger().handlers[:] = before


def test_a_request_leaves_one_line_without_its_secrets_and_has_its_id_back(
    client: Client, lines: Lines
) -> None:
    answer = client.get(
        "/login/?token=very-secret",
        headers={"X-Request-ID": REQUEST_ID, "Authorization": "Bearer xyzxyzxyz"},
    )
    assert answer["X-Request-ID"] == REQUEST_ID
    (event,) = lines.of("loadmaster.access")
    assert (event["method"], event["status"], event["request_id"]) == (
        "GET",
        answer.status_code,
        REQUEST_ID,
    )
    assert event["ms"] >= 0
    assert "very-secret" not in lines.text
    assert "xyzxyzxyz" not in lines.text


@pytest.mark.parametrize(
    "given_id",
    ["", "short", "x" * 200, "a b c d e f g h", "abcdefgh\n12345678", "<script>alert(1)"],
)
def test_an_id_that_is_not_sane_is_replaced(client: Client, given_id: str) -> None:
    made = client.get("/healthz", headers={"X-Request-ID": given_id})["X-Request-ID"]
    assert made != given_id
    assert len(made) == 32


@pytest.mark.django_db
def test_a_line_names_the_user_and_the_job_that_a_request_was_about(
    client: Client, lines: Lines
) -> None:
    team = a_team()
    user = a_user(team=team)
    job = a_job(a_cluster(), team=team, user=user)
    client.force_login(user)
    client.get(f"/jobs/{job.pk}/")
    event = lines.of("loadmaster.access")[-1]
    assert (event["user"], event["job"], event["route"]) == (
        user.pk,
        str(job.pk),
        "/jobs/<uuid:job_id>/",
    )


def test_who_asked_is_not_looked_up_for_the_line_alone() -> None:
    def look_up() -> User:
        raise AssertionError("the database was asked")

    request = HttpRequest()
    request.__dict__["user"] = SimpleLazyObject(look_up)
    assert user_id_of(request) is None
    request.user = User(pk=7)
    assert user_id_of(request) == 7


async def _asked() -> tuple[str, dict[str, Any]]:
    answer = await AsyncClient().get("/healthz", headers={"X-Request-ID": REQUEST_ID})
    return answer["X-Request-ID"], get_contextvars()


def test_the_same_holds_under_asgi(lines: Lines) -> None:
    from asgiref.sync import async_to_sync

    with bound_contextvars(outer="1"):
        answered, after = async_to_sync(_asked)()
    assert answered == REQUEST_ID
    assert after == {"outer": "1"}
    assert lines.of("loadmaster.access")[-1]["request_id"] == REQUEST_ID


def test_what_a_request_binds_ends_with_it(client: Client) -> None:
    with bound_contextvars(outer="1"):
        client.get("/healthz")
        assert get_contextvars() == {"outer": "1"}


def test_a_task_carries_the_id_of_the_request_that_asked_for_it() -> None:
    headers: dict[str, Any] = {}
    with bound(request_id=REQUEST_ID):
        log_tasks.send_id(headers=headers)
    assert headers == {"request_id": REQUEST_ID}
    headers = {}
    log_tasks.send_id(headers=headers)
    assert headers == {}


@pytest.mark.parametrize("name", ["celery.worker.strategy", "celery.app.trace"])
def test_celery_says_nothing_of_each_task_but_that_it_failed(lines: Lines, name: str) -> None:
    logging.getLogger(name).info("Task reconcile received, and succeeded in 0.01s")
    logging.getLogger(name).error("Task reconcile raised")
    assert [event["event"] for event in lines.of(name)] == ["Task reconcile raised"]


def test_a_tasks_lines_say_which_task_it_is_and_who_asked_for_it() -> None:
    app = Celery("test", broker="memory://", set_as_current=False)
    seen: list[dict[str, Any]] = []

    @app.task(name="a-task")
    def task() -> None: ...

    task.push_request(id="id-1", called_directly=False, is_eager=False, request_id=REQUEST_ID)
    try:
        log_tasks.bind_task(task_id="id-1", task=task)
        seen.append(get_contextvars())
        log_tasks.unbind_task(task=task)
        seen.append(get_contextvars())
    finally:
        task.pop_request()
    assert seen == [{"task": "a-task", "task_id": "id-1", "request_id": REQUEST_ID}, {}]
