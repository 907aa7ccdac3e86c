"""A person and a node of a real server, for its client and its command line."""

import pytest
from django.contrib.auth.models import User

from clusters.models import Node
from jobs.models import TeamRole
from tests.builders import a_cluster, a_node, a_team, a_user


@pytest.fixture
def user(transactional_db: None) -> User:
    return a_user("ada", team=a_team("research"), role=TeamRole.MAINTAINER)


@pytest.fixture
def node(transactional_db: None) -> Node:
    return a_node(a_cluster(name="lab"), name="volta", gpus=2)
