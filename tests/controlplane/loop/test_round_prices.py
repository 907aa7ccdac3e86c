"""Prices of GPUs and outbid jobs on the page of a round."""

from typing import Any

import pytest
from django.test import Client

from controlplane.loop.models import Round
from jobs.models import Job
from tests.builders import a_job, a_team, a_user
from tests.builders_pages import Demo, a_busy_cluster

pytestmark = pytest.mark.django_db


@pytest.fixture(name="demo")
def _demo() -> Demo:
    """A busy cluster whose newest round left prices, and outbid two jobs of two teams."""
    demo = a_busy_cluster()
    hidden = a_job(demo.cluster, name="outbid-of-others")
    prices = [
        {
            "gpu_type": "A100",
            "gpus": 2,
            "free": 1,
            "price": 0.125,
            "nodes": [str(demo.nodes[0].pk)],
        }
    ]
    waiting = [outbid(demo.waiting, 4.5, 3.0), outbid(hidden, 9.0, 2.0)]
    plan = {"memory": {"gpu_prices": prices}, "waiting": waiting}
    Round.objects.filter(pk=demo.round.pk).update(plan=plan)
    return demo


def outbid(job: Job, price: float, worth: float) -> dict[str, Any]:
    return {"job": str(job.pk), "code": "outbid", "price": price, "worth": worth}


def page(demo: Demo, user: Any) -> str:
    client = Client()
    client.force_login(user)
    answer = client.get(f"/rounds/{demo.round.pk}/")
    assert answer.status_code == 200
    return answer.content.decode()


def test_a_round_shows_the_price_of_each_node(demo: Demo) -> None:
    shown = page(demo, demo.user)
    prices = shown[shown.index("Prices of GPUs</h2>") :]
    for words in ("A100", "alpha", "1 of 2", "0.125"):
        assert words in prices


def test_an_outbid_job_shows_the_price_that_it_lacks(demo: Demo) -> None:
    shown = page(demo, demo.user)
    jobs = shown[shown.index("Outbid</h2>") :]
    for words in ("recurrent-sequences", "4.5", "1.5", "1 more is not listed"):
        assert words in jobs


def test_outbid_jobs_of_other_teams_are_not_named(demo: Demo) -> None:
    assert "outbid-of-others" not in page(demo, demo.user)
    stranger = page(demo, a_user("eve", team=a_team("other")))
    assert "recurrent-sequences" not in stranger
    assert "2 more are not listed" in stranger
    assert "outbid-of-others" in page(demo, demo.operator)


@pytest.mark.parametrize(
    "memory", [{}, {"gpu_prices": 1}, {"gpu_prices": [{"price": -1}]}, None, "text"]
)
def test_without_readable_prices_the_section_is_absent(demo: Demo, memory: object) -> None:
    Round.objects.filter(pk=demo.round.pk).update(plan={"memory": memory, "waiting": []})
    assert "Prices of GPUs" not in page(demo, demo.user)
