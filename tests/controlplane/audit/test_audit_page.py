"""The page of the audit and its export: who reads what, filters, and cells of a spreadsheet."""

import csv
import json
from io import StringIO
from typing import Any

import pytest
from django.test import Client

from controlplane.audit.record import record
from jobs.models import Membership, TeamRole
from tests.builders import a_team, a_user

pytestmark = pytest.mark.django_db


@pytest.fixture(name="page")
def _page(client: Client) -> Client:
    client.force_login(a_user("boss", operator=True))
    return client


def text(client: Any, url: str) -> str:
    answer = client.get(url)
    assert answer.status_code == 200, url
    body = b"".join(answer.streaming_content) if answer.streaming else answer.content
    return str(body.decode())


def test_operators_read_all_maintainers_their_teams_and_others_nothing(page: Client) -> None:
    red, blue = a_team("red"), a_team("blue")
    record("team.change", red, team=red, old={"weight": 1}, new={"weight": 2})
    record("team.change", blue, team=blue)
    record("cluster.change", "lab")
    everything = ["red", "blue", "lab"]
    shown = {
        "maintainer": ["red"], "member": None, "viewer": None, "stranger": None,
        "operator": everything,
    }  # fmt: skip
    for who, things in shown.items():
        user = a_user(who)
        if who in TeamRole.values:
            Membership.objects.create(team=red, user=user, role=who)
            Membership.objects.create(team=blue, user=user, role=TeamRole.MEMBER)
        client = page if who == "operator" else Client()
        if who != "operator":
            client.force_login(user)
        if things is None:
            assert client.get("/audit/").status_code == 403
            assert client.get("/audit/audit.csv").status_code == 403
            assert "/audit/" not in text(client, "/teams/")
            continue
        assert "/audit/" in text(client, "/teams/")
        rows = list(csv.DictReader(StringIO(text(client, "/audit/audit.csv"))))
        assert [row["thing"] for row in rows] == things
        found = text(client, "/audit/")
        assert [t for t in everything if f"</code> {t}" in found] == things
        assert text(client, "/audit/?team=blue").count("</code>") == (
            1 if "blue" in things else 0
        ), "a filter shows nobody more"


@pytest.mark.parametrize(
    ("query", "things"),
    [
        ("who=ada", ["a"]), ("action=job", ["a", "b"]), ("action=job.hold", ["b"]),
        ("action=jo", []), ("thing=c", ["c"]), ("team=red", ["a"]), ("channel=command", None),
        ("channel=page", []), ("since=2000-01-01&until=2000-01-02", []), ("since=tomorrow", None),
    ],
)  # fmt: skip
def test_filters_narrow_page_and_export_alike(
    page: Client, query: str, things: list[str] | None
) -> None:
    record("job.cancel", "a", team=a_team("red"), by=a_user("ada"))
    record("job.hold", "b")
    record("node.drain", "c")
    rows = list(csv.DictReader(StringIO(text(page, f"/audit/audit.csv?{query}"))))
    expected = ["a", "b", "c"] if things is None else things
    assert [row["thing"] for row in rows] == expected
    assert text(page, f"/audit/?{query}").count("</code>") == len(expected)


def test_the_export_is_read_in_pieces_and_no_cell_is_a_formula(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.operations.audit_page.CHUNK", 2)
    for n in range(5):
        record("job.submit", f"=cmd|{n}", new={"name": "=1+1"})
    rows = list(csv.DictReader(StringIO(text(page, "/audit/audit.csv"))))
    assert [row["thing"] for row in rows] == [f"'=cmd|{n}" for n in range(5)]
    assert json.loads(rows[0]["new"]) == {"name": "=1+1"}
