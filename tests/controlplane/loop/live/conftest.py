"""A cluster and its node for tests of the live world."""

import pytest

from clusters.models import Cluster, Node
from tests.builders import a_cluster, a_gpu_type, a_node


@pytest.fixture
def cluster() -> Cluster:
    return a_cluster()


@pytest.fixture
def node(cluster: Cluster) -> Node:
    return a_node(
        cluster, gpu_type=a_gpu_type("V100", idle_w=30.0, peak_w=200.0), gpus=2, base_w=300.0
    )
