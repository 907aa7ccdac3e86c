"""The largest body of a request, whatever it is for."""

from urllib.parse import urlencode

import pytest
from django.test import Client, RequestFactory

from controlplane.web.http.middleware import LARGEST_URLENCODED, URLENCODED, refusal
from tests.builders import a_user
from tests.builders_asgi import SiteClient

LARGE = b"a" * 10_000_000


@pytest.mark.parametrize(
    "path",
    ["/api/v1/jobs/", "/api/v1/tokens/", "/api/agent/v1/register", "/login/", "/admin/login/"],
)
def test_ten_megabytes_are_refused_by_their_declared_length(path: str) -> None:
    answer = SiteClient().post(path, LARGE, content_type="application/json")
    assert answer.status_code == 413
    assert b"the body has 10000000 bytes" in answer.content


@pytest.mark.parametrize("path", ["/api/v1/jobs/", "/login/"])
def test_a_body_in_pieces_of_unknown_length_is_refused_rather_than_taken_for_empty(
    path: str,
) -> None:
    request = RequestFactory().post(path, headers={"Transfer-Encoding": "chunked"})
    request.META["CONTENT_LENGTH"] = ""
    answer = refusal(request)
    assert answer is not None
    assert answer.status_code == 411
    assert b"send it whole" in answer.content


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


def test_a_request_without_a_body_goes_on() -> None:
    assert refusal(RequestFactory().get("/")) is None
