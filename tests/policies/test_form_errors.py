"""Errors of the JSON forms: each names the path of the wrong value and what would be right."""

from math import inf, nan
from typing import Any

import pytest

from foundation.forms import FormError
from policies.contract import plan_json, snapshot_json
from tests.builders_policies import (
    a_job,
    a_node,
    a_snapshot,
)


def changed(path: str, value: Any) -> dict[str, Any]:
    """The form of a snapshot with one node and two jobs in which one value is another; "-" removes
    it.
    """
    form = snapshot_json.to_json(
        a_snapshot([a_node("n1", gpus=1)], [a_job("a", resources=(("fpga", 1.0),)), a_job("b")])
    )
    *parents, last = [int(p) if p.isdigit() else p for p in path.split(".")]
    at: Any = form
    for parent in parents:
        at = at[parent]
    if value == "-":
        del at[last]
    else:
        at[last] = value
    return form


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("jobs.1.gpus_min", -1, "jobs[1].gpus_min: must be >= 0, not -1"),
        ("jobs.1.gpus_min", 0, "jobs[1].gpus_max: must be 0 without gpus_min, not 1"),
        ("jobs.1.units", 2, "jobs[1].units: must be 1 for a job without batch, not 2"),
        ("jobs.1.gpus_min", 2, "jobs[1].gpus_max: must be >= gpus_min (2), not 1"),
        ("jobs.0.gpus_min", True, "jobs[0].gpus_min: must be an integer, not true"),
        ("jobs.0.gpus_min", 1.5, "jobs[0].gpus_min: must be an integer, not 1.5"),
        ("jobs.0.arrival_s", None, "jobs[0].arrival_s: must be a finite number, not null"),
        ("jobs.0.arrival_s", nan, "jobs[0].arrival_s: must be a finite number, not nan"),
        ("jobs.0.arrival_s", "-", "jobs[0].arrival_s: is missing"),
        ("jobs.0.colour", "red", "jobs[0].colour: no such field; known are: id, kind"),
        (
            "jobs.0",
            {7: 1, "id": "a", "kind": "k", "arrival_s": 0, "remaining_steps": 1},
            "jobs[0].7: no such field; known are: id, kind",
        ),
        ("jobs.0.kind", "unheard-of", "jobs[0].kind: 'unheard-of' is not among the kinds"),
        ("jobs.0.name", 3, "jobs[0].name: must be a string, not 3"),
        ("jobs.0.may_mix", 1, "jobs[0].may_mix: must be true or false, not 1"),
        (
            "jobs.0.phase",
            "dreaming",
            "jobs[0].phase: must be one of waiting, running, profiling, not 'dreaming'",
        ),
        ("jobs.0.resources", [], "jobs[0].resources: must be an object, not an array"),
        ("jobs.0.resources.fpga", -1, "jobs[0].resources.fpga: must be >= 0, not -1"),
        ("jobs.1.id", "a", "jobs[1].id: 'a' is there twice"),
        ("jobs.0", 7, "jobs[0]: must be an object, not 7"),
        ("jobs", None, "jobs: must be an array, not null"),
        (
            "nodes.0.power_w",
            [1.0],
            "nodes[0].power_w: must have 2 numbers (0 to 1 GPUs in use), not 1",
        ),
        (
            "nodes.0.devices.0.held",
            [{"job": "a", "share": 2}],
            "nodes[0].devices[0].held[0].share: must be > 0 and <= 1, not 2",
        ),
        (
            "memory",
            {"x": [inf]},
            "memory: must be plain JSON data with finite numbers",
        ),
        ("memory", 3, "memory: must be an object, not 3"),
        (
            "energy",
            [
                {"from_s": 0, "to_s": 10, "price_per_kwh": 1, "pue": 1},
                {"from_s": 20, "to_s": None, "price_per_kwh": 1, "pue": 1},
            ],
            "energy[1].from_s: must be 10, where the step before it ends, not 20",
        ),
        (
            "energy",
            [{"from_s": 5, "to_s": 5, "price_per_kwh": 1, "pue": 1}],
            "energy[0].to_s: must be > from_s (5)",
        ),
        (
            "teams",
            [{"name": "t", "weight": 0}],
            "teams[0].weight: must be >= 0.001 and <= 1e+06, not 0",
        ),
        (
            "teams",
            [{"name": "t", "order": "lifo"}],
            "teams[0].order: must be one of fairness, fifo, not 'lifo'",
        ),
        ("teams", [{"name": "t"}, {"name": "t"}], "teams[1].name: 't' is there twice"),
        (
            "gpu_types",
            [{"name": "T4", "tflops": 8, "memory_gb": 16, "price_per_hour": -1}],
            "gpu_types[0].price_per_hour: must be >= 0 and <= 1e+09, not -1",
        ),
        (
            "version",
            99,
            (
                "version: this program reads version 7 of the snapshot, not 99; convert it or use"
                " the matching release"
            ),
        ),
        ("version", "-", "version: this program reads version 7 of the snapshot, not none"),
    ],
)
def test_a_wrong_value_is_refused_with_its_path_and_what_would_be_right(
    path: str, value: Any, message: str
) -> None:
    with pytest.raises(FormError) as raised:
        snapshot_json.from_json(changed(path, value))
    assert str(raised.value).startswith(message)


def test_what_is_no_object_is_no_plan() -> None:
    with pytest.raises(FormError, match="plan: must be an object, not an array"):
        plan_json.from_json([])


@pytest.mark.parametrize("number", [nan, inf, -inf])
def test_numbers_without_a_json_form_are_refused_when_written(number: float) -> None:
    with pytest.raises(FormError, match=r"jobs\[0\].arrival_s: must be a finite number"):
        snapshot_json.digest(a_snapshot(jobs=[a_job("a", arrival_s=number)]))
