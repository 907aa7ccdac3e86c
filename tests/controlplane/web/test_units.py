"""Fields whose names end in a unit are shown with it."""

from io import StringIO

import pytest
from django.core.management import call_command
from django.test import Client

from clusters.models import Cluster, GpuType
from controlplane.apps import with_unit
from tests.builders import a_user


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("idle_w", "idle (W)"),
        ("restart_cost_s", "restart cost (s)"),
        ("steps_per_s", "steps (1/s)"),
        ("default_price_per_kwh", "default price (per kWh)"),
        ("emissions_g_per_kwh", "emissions (g per kWh)"),
        ("name", None),
        ("slots", None),
        ("s", None),
    ],
)
def test_the_ending_of_a_name_is_its_unit(name: str, words: str | None) -> None:
    assert with_unit(name) == words


@pytest.mark.django_db
def test_the_administration_shows_units(client: Client) -> None:
    client.force_login(a_user(operator=True))
    page = client.get("/admin/clusters/gputype/add/").content.decode()
    assert "Idle (W)" in page
    assert "Memory (GB)" in page
    assert "Idle w" not in page


def test_words_of_the_model_itself_are_kept() -> None:
    assert GpuType._meta.get_field("peak_w").verbose_name == "peak (W)"
    assert Cluster._meta.get_field("name").verbose_name == "name"


@pytest.mark.django_db
def test_migrations_know_nothing_of_it() -> None:
    call_command("makemigrations", check=True, dry_run=True, stdout=StringIO())
