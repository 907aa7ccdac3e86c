"""A cluster with a node whose GPU may be shared."""

import pytest

from clusters.models import Cluster, Node
from tests.builders import a_cluster
from tests.builders_sharing import a_shared_node


@pytest.fixture
def cluster() -> Cluster:
    return a_cluster()


@pytest.fixture
def node(cluster: Cluster) -> Node:
    return a_shared_node(cluster)
