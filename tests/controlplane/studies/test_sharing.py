"""Share links: unguessable, revocable, and good for looking at one simulation only."""

import pytest
from django.contrib.auth.models import User
from django.core.signing import Signer
from django.http import Http404
from django.test import Client

from controlplane.studies.models import Simulation
from controlplane.studies.selectors import link_of, shared_simulation
from controlplane.studies.services import simulation_share, simulation_unshare
from tests.builders import a_user
from tests.builders_studies import REPORT, a_done_simulation

pytestmark = pytest.mark.django_db


@pytest.fixture(name="ada")
def _ada() -> User:
    return a_user("ada")


def shared(simulation: Simulation) -> str:
    return f"/shared/simulations/{link_of(simulation_share(simulation, simulation.user))}/"


def test_whoever_has_the_link_may_look_without_an_account(ada: User) -> None:
    link = shared(a_done_simulation(ada, study={"name": "the night's load"}))
    page = Client().get(link)
    assert page.status_code == 200
    assert "the night&#x27;s load" in page.content.decode()
    assert page["X-Robots-Tag"] == "noindex, nofollow"
    assert Client().get(f"{link}report/").getvalue().decode() == REPORT


def test_the_page_of_a_link_says_nothing_of_people_and_lets_nobody_act() -> None:
    simulation = a_done_simulation(
        a_user("ada.lovelace")
    )  # longer than what could stand in a random link by chance
    link = shared(simulation)
    page = Client().get(link).content.decode()
    assert "lovelace" not in page
    assert "<form" not in page
    assert str(simulation.pk) not in page
    for method in ("post", "put", "delete"):
        assert getattr(Client(), method)(link).status_code == 405


def test_a_link_that_is_taken_back_leads_nowhere_and_sharing_again_makes_another(ada: User) -> None:
    simulation = a_done_simulation(ada)
    first = shared(simulation)
    simulation_unshare(simulation, ada)
    assert Client().get(first).status_code == 404
    second = shared(simulation)
    assert second != first
    assert Client().get(first).status_code == 404
    assert Client().get(second).status_code == 200


def test_sharing_twice_keeps_the_link(ada: User) -> None:
    simulation = a_done_simulation(ada)
    assert shared(simulation) == shared(Simulation.objects.get(pk=simulation.pk))


def test_a_link_opens_no_other_simulation(ada: User) -> None:
    mine, other = a_done_simulation(ada), a_done_simulation(ada)
    link = link_of(simulation_share(mine, ada))
    key = Simulation.objects.get(pk=mine.pk).share_key
    for forged in (
        link.replace(mine.pk.hex, other.pk.hex),
        Signer(salt="loadmaster.simulation").sign(f"{other.pk.hex}.{key}"),
        Signer(salt="loadmaster.simulation").sign(f"{other.pk.hex}."),
        f"{mine.pk.hex}.{key}",
        str(mine.pk),
        link[:-1],
        "x",
    ):
        assert Client().get(f"/shared/simulations/{forged}/").status_code == 404, forged


def test_one_that_was_never_shared_has_no_link(ada: User) -> None:
    simulation = a_done_simulation(ada)
    assert link_of(simulation) == ""
    forged = Signer(salt="loadmaster.simulation").sign(f"{simulation.pk.hex}.")
    with pytest.raises(Http404):
        shared_simulation(forged)


def test_a_key_is_too_long_to_be_guessed(ada: User) -> None:
    keys = {simulation_share(a_done_simulation(ada), ada).share_key for _ in range(3)}
    assert [len(key) for key in keys] == [43, 43, 43]


def test_a_report_runs_its_own_script_and_nothing_else(ada: User) -> None:
    simulation = a_done_simulation(ada)
    browser = Client()
    browser.force_login(ada)
    for answer in (
        browser.get(f"/simulations/{simulation.pk}/report/"),
        Client().get(f"{shared(simulation)}report/"),
    ):
        policy = dict(
            part.strip().split(" ", 1) for part in answer["Content-Security-Policy"].split(";")
        )
        assert policy["sandbox"] == "allow-scripts allow-downloads"
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == "'unsafe-inline'"
        assert "connect-src" not in policy
        assert policy["frame-ancestors"] == "'self'"
        assert answer["X-Frame-Options"] == "SAMEORIGIN"


def test_the_page_around_the_report_stays_strict(ada: User) -> None:
    simulation = a_done_simulation(ada)
    browser = Client()
    browser.force_login(ada)
    page = browser.get(f"/simulations/{simulation.pk}/")
    assert page["Content-Security-Policy"] == browser.get("/")["Content-Security-Policy"]
    assert 'sandbox="allow-scripts allow-downloads"' in page.content.decode()
    assert REPORT not in page.content.decode()
