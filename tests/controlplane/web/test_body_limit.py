"""The largest body of a request, whatever it is for."""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import pytest
from django.test import Client

from controlplane.web.http.callers import CallerLimits
from controlplane.web.http.middleware import LARGEST_URLENCODED, URLENCODED
from tests.builders import a_user
from tests.builders_asgi import Answering, SiteClient, named

LARGE = b"a" * 10_000_000


@pytest.mark.parametrize(
    "path",
    ["/api/v1/jobs/", "/api/v1/tokens/", "/api/agent/v1/register", "/login/", "/admin/login/"],
)
def test_ten_megabytes_are_refused_by_their_declared_length(path: str) -> None:
    answer = SiteClient().post(path, LARGE, content_type="application/json")
    assert answer.status_code == 413
    assert b"the body has 10000000 bytes" in answer.content


CHUNKED = {"transfer-encoding": "chunked"}


@pytest.mark.parametrize("path", ["/api/v1/jobs/", "/login/"])
@pytest.mark.parametrize(
    ("headers", "status", "words"),
    [
        ({"content-length": "100000000000"}, 413, b"the body has 100000000000 bytes"),
        ({"content-length": "600000", "content-type": f"{URLENCODED}; a=b"}, 413, b"multipart"),
        (CHUNKED, 411, b"send it whole"),
    ],
)
def test_nothing_is_read_of_a_body_that_is_refused(
    path: str, headers: Mapping[str, str], status: int, words: bytes
) -> None:
    reads, sent = list[int](), list[Mapping[str, Any]]()

    async def receive() -> Mapping[str, Any]:
        reads.append(1)
        return {"type": "http.request", "body": b"x" * 65_536, "more_body": len(reads) < 100}

    async def send(message: Mapping[str, Any]) -> None:
        sent.append(message)

    handler = Answering(lambda _: None)
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": path, "headers": raw, "query_string": b""}
    asyncio.run(CallerLimits(handler, named)(scope, receive, send))
    handler.close()
    assert (sent[0]["status"], len(reads)) == (status, 0)
    assert words in sent[1]["body"]


@pytest.mark.django_db
def test_a_form_whose_decoding_takes_much_is_to_be_sent_in_parts(client: Client) -> None:
    text = "a: 1" + ":1" * 100_000
    typed = urlencode({"study": text}).encode()
    assert len(typed) < LARGEST_URLENCODED
    client.force_login(a_user())
    assert client.post("/simulations/new/", typed, content_type=URLENCODED).status_code == 422
    large = client.post("/simulations/new/", typed * 3, content_type=URLENCODED)
    assert large.status_code == 413
    assert "send it as multipart/form-data" in large.content.decode()
    assert client.post("/simulations/new/", {"study": text * 3}).status_code == 422
