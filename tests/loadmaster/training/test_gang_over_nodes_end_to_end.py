"""A job with more GPUs than any node has, from its submission to its end, under the default policy:
server, worker and agents are processes of their own.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.chaos.system import Site, System
from policies.host.registry import DEFAULT
from tests.builders_gangs import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 60
PATIENCE_S = 180.0
PROGRAM = """
import time
from loadmaster import training

for _ in training.steps(range(1000), save=lambda path: path.touch(), load=lambda path: None):
    time.sleep(0.05)
"""
CLOCKWORK = {
    "heartbeat_s": 1.0,
    "lease_s": 60.0,
    "grace_s": 20.0,
    "margin_s": 3.0,
    "period_s": 4.0,
}


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    """A server and agents, of which two have two V100 each, and none has more GPUs."""
    with System(Site(tmp_path / "system", 6, CLOCKWORK, free_port())) as system:
        yield system


def test_three_gpus_are_trained_on_over_two_nodes_of_two(system: System, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    with system.client() as client:
        client.set_cluster("local", policy=DEFAULT, policy_parameters={})
        submitted = client.submit(
            {
                "name": "wide",
                "cluster": "local",
                "command": ["python", str(program)],
                "gpus": 3,
                "steps": STEPS,
            },
            cores=0.2,
            memory_gb=0.5,
            max_retries=0,
        )
        assert any("the job is a gang on several nodes" in told for told in submitted.warnings)
        end_s = time.monotonic() + PATIENCE_S * system.slowness
        while client.job(submitted.job.id).state != "completed":
            job = client.job(submitted.job.id)
            assert job.state not in ("failed", "cancelled"), job
            assert time.monotonic() < end_s, job
            system.wait(0.5)
        ranks = [row for row in client.assignments(submitted.job.id) if row["fence"] == 1]
        assert sorted(row["gpus"] for row in ranks) == [1, 2]
        assert len({row["node"] for row in ranks}) == 2
        assert client.job(submitted.job.id).progress.steps_done == STEPS
