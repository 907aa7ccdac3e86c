"""The guide docs/simulator.md holds: its files and its commands are tried as they are written
there.
"""

import json
import re
import shlex
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import call_command

from controlplane.simulation.report.run_metrics import METRICS
from controlplane.simulation.study.document import FIELDS, Study
from controlplane.simulation.study.files import read_study
from controlplane.simulation.switches import NO_SWITCHES

GUIDE = (Path(__file__).parents[3] / "docs" / "simulator.md").read_text()
COMMAND = "python manage.py simulate "


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the guide's files, in which we are."""
    study, cluster, _ = blocks("yaml")
    (policy, convex), (trace,) = blocks("python"), blocks("csv")
    for name, text in {
        "study.yaml": study,
        "cluster.yaml": cluster,
        "shortest.py": policy,
        "proportional.py": convex,
        "trace.csv": trace,
    }.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def commands() -> list[str]:
    found = [
        line[2:]
        for block in blocks("console")
        for line in block.replace(" \\\n>  ", "").splitlines()
        if line.startswith("$ ")
    ]
    assert len(found) == 3
    return found


def simulated(folder: Path, words: list[str]) -> dict[str, Any]:
    call_command("simulate", *words, "--processes", "0", stdout=StringIO(), stderr=StringIO())
    found = json.loads((folder / "simulation" / "results.json").read_text())
    assert isinstance(found, dict)
    assert found["failures"] == []
    return found


def test_the_study_of_shared_gpus_is_one_and_its_gpus_have_room_for_two() -> None:
    study = Study.of(yaml.safe_load(blocks("yaml")[2]), trusted=True)
    assert [choice.label for choice in study.policies] == ["LAS", "LAS with pairs", "gandiva"]
    assert {device.slots for node in study.scenario.nodes for device in node.devices} == {2}
    assert study.switches.turned_on == {"pairs_observed": 0.2}


@pytest.mark.parametrize("command", commands())
def test_every_command_of_the_guide_ends_well(folder: Path, command: str) -> None:
    assert command.startswith(COMMAND)
    found = simulated(folder, shlex.split(command.removeprefix(COMMAND)))
    assert all(run["unfinished"] == 0 for policy in found["policies"] for run in policy["runs"])


def test_the_studys_file_of_the_guide_is_one(folder: Path) -> None:
    study = Study.of(read_study(folder / "study.yaml"))
    assert [policy.label for policy in study.policies] == ["fifo", "edf", "greedy as coded"]


def test_the_guides_policy_starts_the_shortest_job_first(folder: Path) -> None:
    found = simulated(folder, shlex.split(commands()[1].removeprefix(COMMAND)))
    fifo, shortest, _ = (policy["mean"]["jct_mean_s"]["mean"] for policy in found["policies"])
    assert shortest < fifo


def test_the_guide_names_every_field_switch_and_file() -> None:
    for name in (
        *FIELDS,
        *asdict(NO_SWITCHES),
        "report.html",
        "results.json",
        "jobs.csv",
        "timings.json",
    ):
        assert f"`{name}`" in GUIDE, name
    assert {metric.name for metric in METRICS} >= {"total_cost", "emissions_kg", "utilisation"}
