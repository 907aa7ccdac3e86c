"""Journals of training jobs show steps, gangs, and GPUs that jobs share."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.chaos.checks import invariants as named
from experiments.chaos.checks.invariants import Invariant
from experiments.chaos.checks.training import check_training
from loadmaster.demo.journal_checks import SUBMITTED

Life = tuple[float, float]


def ran(folder: Path, job: str, life: Life, fence: int = 1, rank: int = 0, **fields: Any) -> None:
    """Write the journal of a launch that did its job's one step on rank 0."""
    name = f"{job}-{fence}-{rank}"
    start = {
        "event": "start", "launch": name, "job": job, "rank": rank, "fence": fence,
        "devices": fields.get("devices", ["d"]), "checkpoints": "", "boot_id": "b",
        "born_s": life[0], "boot_s": life[0], "lock_free": True,
    }  # fmt: skip
    steps = [{"event": "resumed", "step": 0}, {"event": "step", "step": 1}] if rank == 0 else []
    end = {"event": "end", "how": fields.get("how", "done")}
    with (folder / f"{job}.jsonl").open("a") as file:
        for line in (start, *({"launch": name, "boot_s": life[1], **e} for e in (*steps, end))):
            file.write(json.dumps(line) + "\n")


def checked(folder: Path, jobs: Sequence[dict[str, Any]], slots: int = 1) -> dict[str, Invariant]:
    (folder / SUBMITTED).write_text(json.dumps(jobs))
    return {one.name: one for one in check_training(folder, jobs, slots)[1]}


def test_each_invariant_tells_how_often_it_was_checked(tmp_path: Path) -> None:
    ran(tmp_path, "j", (1, 2), how="Preempted")
    ran(tmp_path, "j", (3, 4), fence=2)
    found = checked(tmp_path, [{"id": "j", "steps": 1}])
    assert {name: (one.checked, one.wrong) for name, one in found.items()} == {
        named.ONE_PROCESS: (1, ()), named.LAUNCHED_ONCE: (2, ()), named.JOB_LOST: (1, ()),
        named.STEPS: (2, ()), named.DEVICES: (2, ()),
    }  # fmt: skip


def test_a_launch_that_begins_while_another_one_leaves_is_wrong(tmp_path: Path) -> None:
    ran(tmp_path, "j", (1, 8), how="Preempted")
    ran(tmp_path, "j", (3, 9), fence=2)
    found = checked(tmp_path, [{"id": "j", "steps": 1}])
    assert "alive together for 4.99 s" in found[named.ONE_PROCESS].wrong[0]


def test_a_gang_of_which_one_rank_never_ends_is_torn(tmp_path: Path) -> None:
    gang = {"id": "g", "steps": 1, "ranks": 2}
    ran(tmp_path, "g", (1, 4), devices=["a"])
    ran(tmp_path, "g", (1, 4), rank=1, devices=["b"], how="GangBroken")
    torn = checked(tmp_path, [gang])[named.GANGS]
    assert (torn.checked, torn.wrong) == (1, ("job g: no launch ended on all of its 2 ranks",))
    ran(tmp_path, "g", (5, 6), fence=2, devices=["a"])
    ran(tmp_path, "g", (5, 6), fence=2, rank=1, devices=["b"])
    assert checked(tmp_path, [gang])[named.GANGS].holds


def test_two_jobs_may_share_a_device_of_two_slots_and_a_third_one_may_not(tmp_path: Path) -> None:
    jobs = [{"id": name, "steps": 1} for name in "abc"]
    ran(tmp_path, "a", (1, 9))
    ran(tmp_path, "b", (2, 9))
    ran(tmp_path, "c", (9.5, 10))
    found = checked(tmp_path, jobs, slots=2)
    assert (found[named.PAIRS].checked, found[named.DEVICES].wrong) == (1, ())
    assert len(checked(tmp_path, jobs)[named.DEVICES].wrong) == 1
    ran(tmp_path, "c", (5, 6), fence=0)
    assert len(checked(tmp_path, jobs, slots=2)[named.DEVICES].wrong) == 1
