"""Numbers that are finite and yet mean nothing: they are bad lines, or refused, and none of them
reaches a policy.
"""

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controlplane.simulation.study.study import Study, StudyError
from controlplane.simulation.workloads import WorkloadError, lines, load
from policies.contract.snapshot_json import to_json
from tests.builders_policies import a_job, a_kind, a_snapshot
from tests.controlplane.simulation.workloads.test_tables import read

SWF = [1, 0, 0, 60, 1, -1, -1, 1, 60, -1, 1, 1, 1, -1, 1, -1, -1, -1]


def swf(**fields: object) -> str:
    """A good line, and one in which some fields (by number, `f4=...`) are others."""
    other = [fields.get(f"f{i + 1}", value) for i, value in enumerate([2, *SWF[1:]])]
    return "\n".join(" ".join(map(str, line)) for line in (SWF, other)) + "\n"


@pytest.mark.parametrize(
    ("header", "line", "problem"),
    [
        (
            "arrival_s,run_s",
            "0,1e18",
            "the run time must not be above 1e+09 s, it is 1e+18 s",
        ),
        ("arrival_s,run_s", "0,1e308", "the run time must not be above 1e+09 s"),
        ("arrival_s,run_s", "1e300,5", "is no time within 1e+12 s of 0: 1e+300"),
        ("arrival_s,run_s", "-1e300,5", "is no time within 1e+12 s of 0: -1e+300"),
        (
            "arrival_s,run_s,tardiness_weight",
            "0,5,1e308",
            "tardiness_weight must not be above 1e+12, it is 1e+308",
        ),
        ("arrival_s,run_s,weight", "0,5,1e308", "weight must not be above 1e+12"),
        ("arrival_s,run_s", "0," + "9" * 200_000, "field larger than field limit"),
    ],
)
def test_a_line_with_a_number_beyond_all_measure_is_bad(
    header: str, line: str, problem: str
) -> None:
    text = f"{header}\n{line}\n{','.join(['5'] * (header.count(',') + 1))}\n"
    with pytest.raises(WorkloadError) as refused:
        read("csv", text, sort=True)
    assert f"line 2: {problem}" in str(refused.value)
    skipped = read("csv", text, sort=True, skip_bad=True)
    assert ([bad.line for bad in skipped.skipped], len(skipped.jobs)) == ([2], 1)


@pytest.mark.parametrize(
    "fields", [{"f4": 1e308}, {"f4": 1e10}, {"f2": 1e300}, {"f4": "inf"}, {"f2": "nan"}]
)
def test_such_a_line_of_a_log_is_bad_too(fields: dict[str, Any]) -> None:
    workload = read("swf", swf(**fields), skip_bad=True)
    assert [bad.line for bad in workload.skipped] == [2]
    assert np.isfinite(workload.jobs.columns.numbers["remaining_steps"]).all()


def test_a_record_over_several_lines_is_known_by_its_first() -> None:
    with pytest.raises(WorkloadError, match="line 3: run_s must be a number"):
        read("csv", 'arrival_s,run_s\n0,5\n1,"5\n2,5\n3,5\n')


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            {"remaining_steps": 1e30, "total_steps": 1e30},
            "remaining_steps: must be <= 9.0072e+15, not 1e+30",
        ),
        ({"remaining_steps": 0.4, "total_steps": 0.4}, "there is nothing left to do"),
        ({"arrival_s": 1e300}, "arrival_s: must be within 1e+12 s of 0, not 1e+300"),
        ({"dependencies": ["a"]}, "dependencies: it depends on itself"),
    ],
)
def test_an_item_of_a_list_that_means_nothing_is_bad(change: dict[str, Any], problem: str) -> None:
    form = to_json(a_snapshot(jobs=[a_job("a", kind="k")], kinds=[a_kind("k")]))
    form["jobs"][0].update(change)
    with pytest.raises(WorkloadError) as refused:
        load({"type": "jobs", "jobs": form["jobs"], "kinds": form["kinds"]}, 1)
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"gpus": {"99999999999999999999": 1}}, "gpus: must give the odds of each count"),
        ({"gpus": {"1": 1e308, "2": 1e308}}, "gpus.1: must be >= 0 and <= 1e+09"),
        (
            {"run_s": 1e9, "sigma": 10},
            "run_s: with this sigma some jobs would run longer than 1e+09 s",
        ),
        ({"speeds": {"V100": 1e300}}, "speeds.V100: must be > 0 and <= 1e+06"),
        ({"tardiness_weight": [0, 1e308]}, "must be >= 0 and <= 1e+12"),
    ],
)
def test_generators_refuse_what_they_cannot_make(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(WorkloadError) as refused:
        load({"type": "poisson", "jobs": 200, **fields}, 1, gpu_types=["V100"])
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"round_s": 1e-9}, "cluster: round_s: must be >= 1"),
        ({"energy": {"price_per_kwh": 1e300}}, "cluster: energy.price_per_kwh: must be"),
        (
            {"energy": {"price_per_kwh": float("nan")}},
            "cluster.energy.price_per_kwh: must be finite, not nan",
        ),
        (
            {"nodes": [{"name": "v", "gpu_type": "V100", "gpus": 1, "power_w": [0, 1e308]}]},
            "cluster: nodes[0].power_w[1]: must be",
        ),
    ],
)
def test_a_cluster_beyond_all_measure_is_refused(change: dict[str, Any], problem: str) -> None:
    cluster = {"nodes": [{"name": "v", "gpu_type": "V100", "gpus": 1}], **change}
    with pytest.raises(StudyError) as refused:
        Study.of({"cluster": cluster, "workload": {"type": "poisson"}, "policies": ["fifo"]})
    assert str(refused.value).startswith(problem)


@pytest.mark.parametrize("name", ["launch_s", "node_failures_per_day", "decision_per_job_s"])
def test_switches_have_a_measure(name: str) -> None:
    with pytest.raises(StudyError, match=f"switches.{name}: must be >= 0 and <= .*not 1e"):
        Study.of({"cluster": {"nodes": [{"name": "v", "gpu_type": "V100", "gpus": 1}]},
                  "workload": {"type": "poisson"},
                  "policies": ["fifo"], "switches": {name: 1e300}})  # fmt: skip


def test_a_packed_trace_that_unpacks_beyond_all_measure_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MOST_BYTES", 1_000_000)
    (tmp_path / "bomb.swf.gz").write_bytes(gzip.compress(b"; \n" * 10_000_000))
    with pytest.raises(WorkloadError, match=r"bomb.swf.gz is larger than 1,000,000 bytes unpacked"):
        load({"type": "swf", "path": str(tmp_path / "bomb.swf.gz")}, 1, gpu_types=["V100"])


def test_a_packed_trace_that_is_damaged_is_refused(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(json.dumps(list(range(5000))).encode()))
    packed[200:260] = b"\0" * 60
    with pytest.raises((zlib.error, OSError)):
        gzip.decompress(bytes(packed))
    for data in (bytes(packed), bytes(packed[:90])):
        (tmp_path / "t.swf.gz").write_bytes(data)
        with pytest.raises(WorkloadError, match="cannot be read"):
            load({"type": "swf", "path": str(tmp_path / "t.swf.gz")}, 1, gpu_types=["V100"])


def test_processors_of_next_to_no_gpu_each_are_refused_without_a_warning() -> None:
    with pytest.raises(WorkloadError, match="jobs cannot be used"):
        load({"type": "swf", "text": swf(), "processors_per_gpu": 5e-324}, 1, gpu_types=("V100",))
