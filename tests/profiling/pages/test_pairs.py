"""The page of kinds shows the pairs that share a GPU, and how far their estimates were off."""

import pytest
from django.test import Client

from clusters.models import Cluster, Node
from jobs.models import Kind
from profiling.models import PairProfile
from profiling.services import production_measured
from tests.builders import a_cluster, a_job, a_kind, a_team, a_user
from tests.builders_profiling import the_table
from tests.builders_sharing import (
    a_known_pair,
    a_shared_launch,
    a_shared_node,
    a_sharing_job,
    families_of_kinds,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster() -> Cluster:
    return a_cluster()


@pytest.fixture
def node(cluster: Cluster) -> Node:
    return a_shared_node(cluster)


@pytest.fixture
def kinds() -> tuple[Kind, Kind]:
    return a_kind("slow", steps_per_s={("V100", 1): 4.0}), a_kind(
        "fast", steps_per_s={("V100", 1): 10.0}
    )


def test_the_page_shows_pairs_and_how_far_their_estimates_were_off(
    client: Client, cluster: Cluster, node: Node
) -> None:
    known, truth = families_of_kinds()
    PairProfile.objects.filter(first=known["0.0"], second=known["1.1"]).delete()
    true = truth["0.0", "1.1"] * 1.0, truth["1.1", "0.0"] * 5.0
    first = a_shared_launch(a_sharing_job(cluster, known["0.0"]), node, steps_per_s=true[0])
    a_shared_launch(a_sharing_job(cluster, known["1.1"]), node, slot=1, steps_per_s=true[1])
    production_measured(first)
    operator = a_user(operator=True)
    pairs = the_table(operator).pairs
    newest = pairs.lines[0]
    assert (newest.first.name, newest.second.name, newest.gpu_type.name) == ("0.0", "1.1", "V100")
    assert pairs.errors.count == 2
    assert pairs.errors.worst is not None
    assert pairs.errors.worst < 0.3
    client.force_login(operator)
    page = client.get("/kinds/").content.decode()
    assert "Pairs on one GPU" in page
    assert "over 2 numbers" not in page, "two numbers are too few for a median"


def test_a_search_shows_the_pairs_of_the_kinds_it_finds(
    cluster: Cluster, client: Client, kinds: tuple[Kind, Kind]
) -> None:
    for kind in kinds:
        a_job(cluster, kind=kind)
    a_known_pair(*kinds, (1.0, 1.0))
    client.force_login(a_user(operator=True))
    assert "Pairs on one GPU" in client.get("/kinds/", {"search": kinds[1].name}).content.decode()
    assert (
        "Pairs on one GPU"
        not in client.get("/kinds/", {"search": "of that name is none"}).content.decode()
    )


def test_pairs_with_kinds_of_other_teams_are_not_shown(
    cluster: Cluster, kinds: tuple[Kind, Kind]
) -> None:
    team = a_team()
    a_job(cluster, team=team, kind=kinds[0])
    a_job(cluster, kind=kinds[1])
    a_known_pair(*kinds, (1.0, 1.0))
    a_known_pair(kinds[0], kinds[0], (1.0, 1.0))
    shown = the_table(a_user(team=team)).pairs.lines
    assert [(line.first.name, line.second.name) for line in shown] == [("slow", "slow")]
