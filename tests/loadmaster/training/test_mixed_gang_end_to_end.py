"""A gang over two GPU types under `hadar`, by PyTorch's gloo: moved, struck and billed.

Server, worker and agents are processes of their own.
"""

import json
import os
import re
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

import loadmaster
from controlplane.web.pages.formats import quantity
from experiments.chaos.system import Site, System
from loadmaster.demo.journal_checks import SUBMITTED, check_journals
from tests.builders_gangs import JOURNALS, TORCH_JOB, free_port, learned_undisturbed

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.torch, pytest.mark.timeout(900)]

GPUS = 3
STEPS = 100
PATIENCE_S = 180.0
CLOCKWORK = {
    "heartbeat_s": 1.0,
    "lease_s": 60.0,
    "grace_s": 60.0,
    "margin_s": 3.0,
    "period_s": 4.0,
}


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    """A server and a node each of two V100s, of two P100s and of one T4, under `hadar`."""
    with System(Site(tmp_path / "system", 5, CLOCKWORK, free_port())) as system:
        with system.client() as client:
            client.set_cluster("local", policy="hadar", policy_parameters={})
        yield system


class MixedGang:
    """A submitted gang of three GPUs, and what its user sees of it."""

    def __init__(self, system: System, client: loadmaster.Client, result: Path) -> None:
        self.system = system
        self.client = client
        description = {
            "name": "mixed",
            "cluster": "local",
            "command": ["python", "-m", TORCH_JOB, str(result)],
            "gpus": GPUS,
            "steps": STEPS,
            "may_mix": True,
        }
        environment = {JOURNALS: str(system.site.journals)}
        submitted = client.submit(
            description, cores=0.5, memory_gb=2.0, max_retries=1, environment=environment
        )
        self.id = submitted.job.id
        journal = [{"id": self.id, "steps": STEPS}]
        (system.site.journals / SUBMITTED).write_text(json.dumps(journal))

    def ranks(self) -> list[dict[str, Any]]:
        """Return the training assignments, by launch and rank."""
        rows = [row for row in self.client.assignments(self.id) if row["purpose"] == "training"]
        return sorted(rows, key=lambda row: (row["fence"], row["rank"]))

    def running(self) -> list[dict[str, Any]]:
        """Return the ranks that run, by rank."""
        return [row for row in self.ranks() if row["state"] == "running"]

    def steps(self) -> int:
        return int(self.client.job(self.id).progress.steps_done)

    def until(self, holds: Callable[[], object], event: str) -> None:
        """Wait until something holds; the gang's ranks are placed together all the while."""
        end_s = time.monotonic() + PATIENCE_S * self.system.slowness
        while not holds():
            job = self.client.job(self.id)
            assert job.state not in ("failed", "cancelled"), job
            assert time.monotonic() < end_s, f"waited in vain for {event}: {job}, {self.ranks()}"
            self.system.wait(0.2)

    def until_it_steps(self, after: int) -> list[dict[str, Any]]:
        """Wait until a later launch than `after` has done a step; return its ranks."""

        def steps_again() -> bool:
            running = self.running()
            is_whole = len(running) == 2 and min(row["fence"] for row in running) > after
            return is_whole and min(row["steps_done"] - row["start_steps"] for row in running) > 3

        self.until(steps_again, f"steps after launch {after}")
        return self.running()

    def kill(self, rank: int, fence: int) -> None:
        """Kill the process of one rank of a launch by SIGKILL."""
        for path in sorted(self.system.site.journals.glob("*.jsonl")):
            for text in path.read_text().splitlines():
                line = json.loads(text)
                is_start = line["event"] == "start"
                if is_start and line["rank"] == rank and line["fence"] == fence:
                    os.kill(line["pid"], signal.SIGKILL)
                    return
        raise AssertionError(f"rank {rank} of launch {fence} has no journal")


def types_of(ranks: list[dict[str, Any]]) -> set[str]:
    return {row["gpu_type"] for row in ranks}


def test_mixed_gang_survives_a_move_and_a_killed_rank(system: System, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    with system.client() as client:
        gang = MixedGang(system, client, result)

        # 1. It starts over two types, though no node and no type but the two have three GPUs.
        first = gang.until_it_steps(0)
        assert [row["rank"] for row in first] == [0, 1]
        assert sum(row["gpus"] for row in first) == GPUS
        assert len(types_of(first)) == 2

        # 2. The node of its slower type is drained: it moves, and mixes two types again.
        left = next(row for row in first if row["gpu_type"] != "V100")
        node = next(node for node in client.nodes() if node.name == left["node"])
        client.drain(node.id, reason="maintenance")
        second = gang.until_it_steps(first[0]["fence"])
        assert left["node"] not in {row["node"] for row in second}
        assert len(types_of(second)) == 2

        # 3. A rank is killed: the other one ends too, and the gang goes on from its checkpoint.
        gang.kill(rank=1, fence=second[0]["fence"])
        third = gang.until_it_steps(second[0]["fence"])
        assert third[0]["start_steps"] >= second[0]["start_steps"] > 0
        gang.until(lambda: client.job(gang.id).state == "completed", "its end")

        # 4. Each launch had both ranks, and nothing was started in vain.
        rows = gang.ranks()
        fences = [launch[0]["fence"] for launch in (first, second, third)]
        launched = [(row["fence"], row["rank"]) for row in rows]
        assert launched == [(fence, rank) for fence in fences for rank in range(2)]
        assert [row["exit_code"] for row in rows[:2]] == [75, 75]
        assert rows[3]["exit_code"] == -signal.SIGKILL
        assert rows[2]["exit_code"] != 0
        assert [row["exit_code"] for row in rows[4:]] == [0, 0]

        # 5. Speed, prediction and bill are of the gang as one.
        check_speed(client, rows)
        check_bill(client, rows)
        check_page(system, gang.id, rows)

    found = check_journals(system.site.journals)
    assert found.holds, found
    assert json.loads(result.read_text()) == learned_undisturbed(tmp_path / "undisturbed", STEPS)


def check_speed(client: loadmaster.Client, rows: list[dict[str, Any]]) -> None:
    """Check that the gang's speed is not the sum of its ranks', and predicts its last launch."""
    lead, member = rows[4:]
    assert lead["steps_done"] == member["steps_done"] == STEPS
    (kind,) = client.kinds()
    speeds = {
        (profile["gpu_type"], profile["gpus"]): profile["steps_per_s"]
        for profile in kind["profiles"]
        if profile["spread"] and profile["source"] == "measured"
    }
    slower_type = next(row["gpu_type"] for row in rows[4:] if row["gpu_type"] != "V100")
    assert speeds[slower_type, GPUS] == pytest.approx(lead["steps_per_s"], rel=0.5)
    assert lead["predicted_steps_per_s"] == pytest.approx(lead["steps_per_s"], rel=0.5)
    assert member["predicted_steps_per_s"] == lead["predicted_steps_per_s"]
    assert member["predicted_run_s"] == lead["predicted_run_s"] > 0.0


def check_bill(client: loadmaster.Client, rows: list[dict[str, Any]]) -> None:
    """Check that each type's GPU hours are those of its ranks, from their start to their end."""
    type_of = {row["node"]: row["gpu_type"] for row in rows}
    billed_h: dict[str, float] = defaultdict(float)
    for cost in client.costs(by="node", cluster="local", period="24h").rows:
        billed_h[type_of[cost.name]] += cost.gpu_h
    least_h: dict[str, float] = defaultdict(float)
    most_h: dict[str, float] = defaultdict(float)
    for row in rows:
        least_h[row["gpu_type"]] += row["gpus"] * hours_between(row["running_at"], row["ended_at"])
        most_h[row["gpu_type"]] += row["gpus"] * hours_between(row["created_at"], row["ended_at"])
    assert set(billed_h) == set(least_h)
    for gpu_type, gpu_h in billed_h.items():
        assert least_h[gpu_type] <= gpu_h <= most_h[gpu_type]


def hours_between(begin: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds() / 3600.0


def check_page(system: System, job: str, rows: list[dict[str, Any]]) -> None:
    """Check the figures on the job's page, as a browser gets it from the server."""
    answer = httpx.get(
        f"{system.url}/jobs/{job}/", cookies={"sessionid": system.session()}, timeout=30.0
    )
    assert answer.status_code == 200
    page = " ".join(re.sub(r"<[^>]+>", " ", answer.text).split())
    for row in rows[4:]:
        measured = quantity(row["steps_per_s"])
        predicted = quantity(row["predicted_steps_per_s"])
        assert f"{measured} steps/s, expected {predicted}" in page
        assert quantity(Decimal(row["energy_cost"])) in page
    total = sum(Decimal(row["energy_cost"]) for row in rows)
    assert f"Energy cost so far {quantity(total)} EUR" in page
