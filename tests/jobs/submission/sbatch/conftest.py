"""Fixtures of tests that submit scripts for Slurm."""

import pytest
from django.contrib.auth.models import User

from clusters.models import Cluster
from tests.builders import a_cluster, a_node, a_team, a_user


@pytest.fixture
def user(db: None) -> User:
    return a_user("ada", team=a_team("research"))


@pytest.fixture
def cluster(db: None) -> Cluster:
    """Two nodes of 16 cores with 4 GPUs, which say that their agents know scripts."""
    cluster = a_cluster(name="lab")
    for _ in range(2):
        a_node(cluster, gpus=4, cores=16, memory_gb=64, resources={"mic": 2})
    return cluster
