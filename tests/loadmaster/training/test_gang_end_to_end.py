"""The whole of it: server, worker and agents in processes of their own train a gang by PyTorch over
several nodes, and move it.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import loadmaster
from experiments.chaos.jobs.spreading import NAME, installed
from experiments.chaos.parts import ROOT
from experiments.chaos.system import Site, System
from loadmaster.demo.journal_checks import SUBMITTED, check_journals
from tests.builders_gangs import JOURNALS, GangLaunches, free_port
from tests.builders_training import end_of

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(900)]

MODULE = "tests.torch_gang_job"
STEPS = 150
PATIENCE_S = 240.0
PERIOD_S, TERM_S = 4.0, 120.0
CLOCKWORK = {
    "heartbeat_s": 1.0,
    "lease_s": 60.0,
    "grace_s": 60.0,
    "margin_s": 3.0,
    "period_s": PERIOD_S,
}


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    """A server and four agents on emulated GPUs, with a policy that puts each rank on a node of its
    own, for a term at a time.
    """
    path = f"{ROOT}:{installed(tmp_path / 'installed')}"
    with System(
        Site(tmp_path / "system", 6, CLOCKWORK, free_port(), env={"PYTHONPATH": path})
    ) as system:
        with system.client() as client:
            client.set_cluster("local", policy=NAME, policy_parameters={"term_s": TERM_S})
        yield system


class Watched:
    """A submitted job, and what its user and the nodes' operator see of it."""

    def __init__(self, system: System, client: loadmaster.Client, result: Path) -> None:
        self._system, self._client = system, client
        words = {
            "name": "gang",
            "cluster": "local",
            "command": ["python", "-m", MODULE, str(result)],
            "gpus": 2,
            "steps": STEPS,
            "may_mix": True,
        }
        environment = {JOURNALS: str(system.site.journals)}
        self.id = client.submit(
            words, cores=0.5, memory_gb=2.0, max_retries=0, environment=environment
        ).job.id
        (system.site.journals / SUBMITTED).write_text(json.dumps([{"id": self.id, "steps": STEPS}]))

    def until(self, holds: Callable[[], object], what: str) -> None:
        end_s = time.monotonic() + PATIENCE_S * self._system.slowness
        while not holds():
            job = self._client.job(self.id)
            assert job.state not in ("failed", "cancelled"), job
            assert time.monotonic() < end_s, f"waited in vain for {what}: {job}"
            self._system.wait(0.2)

    def state(self) -> str:
        return self._client.job(self.id).state

    def places(self) -> dict[str, str]:
        """Node by rank, while it runs."""
        return {row["rank"]: row["node"] for row in self.launches() if row["state"] == "running"}

    def launches(self) -> list[dict[str, Any]]:
        """Every rank of every launch that did the job's work."""
        return [row for row in self._client.assignments(self.id) if row["purpose"] == "training"]

    def steps(self) -> int:
        return int(self._client.job(self.id).progress.steps_done)

    def terms(self) -> list[float]:
        """The ends of the running ranks' terms, as their processes read them."""
        files = sorted((self._system.site.nodes / "agents").glob("*/runs/lm-*/term.json"))
        ends = [json.loads(path.read_text())["term_ends_boot_s"] for path in files]
        return [end for end in ends if end is not None]


def learned_alone(folder: Path) -> Any:
    """What the two ranks learn when nobody disturbs them and no Loadmaster is there."""
    gang = GangLaunches(folder, STEPS, {"GLOO_SOCKET_IFNAME": "lo"})
    ends = [end_of(process) for process in gang.start_module(MODULE)]
    assert [code for code, _ in ends] == [0, 0], ends
    return json.loads(gang.result(0).read_text())


def test_a_gang_trains_over_two_nodes_has_its_term_prolonged_and_goes_on_on_two_others(
    system: System, tmp_path: Path
) -> None:
    result = tmp_path / "result.json"
    with system.client() as client:
        job = Watched(system, client, result)
        job.until(lambda: job.state() == "running" and job.steps() > 3, "the gang's first steps")
        before = job.places()
        assert len(set(before.values())) == 2
        first = job.terms()
        assert len(first) == 2
        job.until(
            lambda: len(job.terms()) == 2 and min(job.terms()) > max(first), "a prolonged term"
        )
        assert job.places() == before, "a term that is prolonged costs nothing"
        for node in [node for node in client.nodes() if node.name in before.values()]:
            client.drain(node.id, reason="moving house")
        job.until(
            lambda: (
                job.state() == "running"
                and job.places()
                and not set(job.places().values()) & set(before.values())
            ),
            "a move",
        )
        job.until(lambda: job.state() == "completed", "its end")
        ends = sorted(
            (row["fence"], row["rank"], row["state"], row["exit_code"]) for row in job.launches()
        )
    fences = sorted({fence for fence, *_ in ends})
    assert ends == [
        (fence, rank, *end)
        for fence, end in zip(fences, (("preempted", 75), ("succeeded", 0)), strict=True)
        for rank in range(2)
    ], "two launches of two ranks each: nothing was started in vain"
    found = check_journals(system.site.journals)
    assert found.holds, found
    assert json.loads(result.read_text()) == learned_alone(tmp_path / "alone")
