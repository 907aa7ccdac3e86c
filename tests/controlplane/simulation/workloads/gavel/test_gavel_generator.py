import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.simulation.workloads import Workload, WorkloadError, load
from controlplane.simulation.workloads.gavel.generator import GPUS, MINUTE_S, MODES
from policies.contract.snapshot_json import to_json
from tests.builders_policies import a_kind, a_snapshot
from tests.controlplane.simulation.workloads.data import whole_file
from tests.controlplane.simulation.workloads.gavel.test_gavel import TABLES

RATES = {"fast": 20.0, "slow": 0.5}
KINDS = [
    a_kind(name, {("V100", g): rate * g for g in GPUS} | {("K80", 1): rate / 4})
    for name, rate in RATES.items()
]
SINGLE = a_kind("alone", {("V100", 1): 3.0, ("K80", 8): 3.0})


def kinds_as_json(*kinds: Any) -> list[dict[str, Any]]:
    """As somebody writes them into a study."""
    found: list[dict[str, Any]] = to_json(a_snapshot(jobs=(), kinds=kinds))["kinds"]
    return found


def generated(seed: int = 1, **options: Any) -> Workload:
    named = {"throughputs", "tables", "kinds"} & options.keys()
    given = {} if named else {"kinds": kinds_as_json(*KINDS)}
    return load({"type": "gavel_generator", **given, **options}, seed)


def durations_s(workload: Workload) -> list[float]:
    """Seconds on the reference GPUs."""
    rates = {
        (k.id, t.gpus): t.steps_per_s
        for k in workload.kinds
        for t in k.throughputs
        if t.gpu_type == "V100"
    }
    return [j.total_steps / rates[j.kind, j.gpus_min] for j in workload.jobs]


@given(
    mode=st.sampled_from(MODES),
    jobs=st.integers(1, 300),
    gap_s=st.one_of(st.none(), st.floats(0.0, 1e6)),
    heavy=st.floats(0.0, 1.0),
    slos=st.lists(st.floats(0.1, 100.0), max_size=3),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=60, deadline=None)
def test_every_job_is_within_the_bounds_of_the_evaluation(
    mode: str, jobs: int, gap_s: float | None, heavy: float, slos: list[float], seed: int
) -> None:
    gap = {} if gap_s is None or mode.startswith("static") else {"gap_s": gap_s}
    workload = generated(seed, mode=mode, jobs=jobs, heavy=heavy, slos=slos, **gap)
    arrival_s = workload.jobs.columns.numbers["arrival_s"]
    assert len(workload.jobs) == jobs
    assert arrival_s[0] == 0.0
    assert np.all(np.diff(arrival_s) >= 0.0)
    assert not mode.startswith("static") or not arrival_s.any()
    for job, duration_s in zip(workload.jobs, durations_s(workload), strict=True):
        assert (
            10**1.5 * MINUTE_S * 0.95 <= duration_s <= 10**4 * MINUTE_S * 1.05
        )  # whole steps, of up to two seconds
        assert job.total_steps == job.remaining_steps == round(job.total_steps) >= 1.0
        assert job.gpus_min == job.gpus_max
        assert job.gpus_min in ((1,) if mode.endswith("single") else GPUS)
        assert job.weight in (1.0, 5.0)
        factor = (job.due_s - job.arrival_s) / duration_s
        assert (
            any(factor == pytest.approx(slo, rel=0.1) for slo in slos)
            if slos
            else job.due_s == np.inf
        )


def test_durations_gpus_gaps_weights_and_slos_are_as_often_as_the_paper_says() -> None:
    workload = generated(
        7, mode="continuous-multiple", jobs=20_000, gap_s=120, heavy=0.2, slos=[1.2, 2.0, 10.0]
    )
    columns, lengths = workload.jobs.columns, np.array(durations_s(workload))
    assert np.mean(lengths > 1000 * MINUTE_S) == pytest.approx(0.2, abs=0.01)
    exponents = np.log10(lengths / MINUTE_S)
    assert np.mean(exponents[exponents < 3]) == pytest.approx(2.25, abs=0.02)
    assert np.mean(exponents[exponents > 3]) == pytest.approx(3.5, abs=0.02)
    gpus = columns.counts["gpus_min"]
    assert [np.mean(gpus == g) for g in GPUS] == pytest.approx([0.7, 0.1, 0.15, 0.05], abs=0.01)
    assert np.mean(np.diff(columns.numbers["arrival_s"])) == pytest.approx(120, rel=0.03)
    assert np.mean(columns.numbers["weight"] == 5.0) == pytest.approx(0.2, abs=0.01)
    factors = (columns.numbers["due_s"] - columns.numbers["arrival_s"]) / lengths
    assert [
        np.mean(np.isclose(factors, slo, rtol=0.1)) for slo in (1.2, 2.0, 10.0)
    ] == pytest.approx([1 / 3] * 3, abs=0.02)


@pytest.mark.parametrize("mode", MODES)
def test_equal_seeds_give_the_same_bytes_and_others_other_jobs(mode: str) -> None:
    options: dict[str, Any] = {
        "mode": mode,
        "jobs": 50,
        "heavy": 0.2,
        "slos": [1.2, 2.0],
        "tardiness_weight": [0.1, 0.2],
    }
    one, same, other = (
        json.dumps(_plain(generated(seed, **options)), sort_keys=True) for seed in (1, 1, 2)
    )
    assert one == same
    assert one != other


def _plain(workload: Workload) -> Any:
    snapshot = replace(a_snapshot(jobs=(), kinds=workload.kinds), jobs=workload.jobs)
    return [workload.name, to_json(snapshot), dict(workload.facts)]


def test_weights_and_due_dates_leave_the_jobs_as_they_are() -> None:
    plain, with_more = (
        generated(jobs=40),
        generated(jobs=40, heavy=0.5, slos=[2.0], tardiness_weight=[1.0, 2.0]),
    )
    assert {j.weight for j in with_more.jobs} == {1.0, 5.0}
    assert [
        replace(j, weight=1.0, due_s=np.inf, tardiness_weight=0.0) for j in with_more.jobs
    ] == list(plain.jobs)


def test_the_kinds_may_be_gavels_tables_by_path_or_as_text(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps(TABLES))
    by_path, by_text = (
        generated(jobs=30, throughputs=str(tmp_path / "t.json")),
        generated(jobs=30, tables=json.dumps(TABLES)),
    )
    assert _plain(by_path) == _plain(by_text)
    assert {k.id for k in by_path.kinds} == {"ResNet-18 (batch size 64)", "LM (batch size 5)"}
    assert all(j.may_share for j in by_path.jobs)
    assert any(k.pairs for k in by_path.kinds)


def test_without_pairs_no_job_shares_a_gpu() -> None:
    workload = generated(jobs=30, tables=json.dumps(TABLES), pairs=False)
    assert not any(j.may_share for j in workload.jobs)
    assert not any(k.pairs for k in workload.kinds)


def test_a_job_on_several_gpus_is_of_a_kind_that_is_known_on_as_many() -> None:
    workload = generated(jobs=300, mode="static-multiple", kinds=kinds_as_json(*KINDS, SINGLE))
    assert {j.kind for j in workload.jobs if j.gpus_min == 1} == {"fast", "slow", "alone"}
    assert {j.kind for j in workload.jobs if j.gpus_min > 1} == {"fast", "slow"}


def test_the_reference_may_be_another_gpu_type() -> None:
    on_v100, on_k80 = generated(jobs=20), generated(jobs=20, reference="K80")
    shares = [
        k80.total_steps / v100.total_steps
        for k80, v100 in zip(on_k80.jobs, on_v100.jobs, strict=True)
    ]
    assert shares == pytest.approx([0.25] * 20, rel=1e-2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"mode": "static"},
            (
                "mode: must be one of continuous-single, continuous-multiple, static-single,"
                " static-multiple, not"
            ),
        ),
        (
            {"mode": "static-single", "gap_s": 60},
            "gap_s: the jobs of static-single are all there at the start; leave gap_s out",
        ),
        ({"gap_s": -1}, "gap_s: must be >= 0"),
        ({"heavy": 1.5}, "heavy: must be >= 0 and <= 1, not 1.5"),
        ({"heavy_weight": 0}, "heavy_weight: must be > 0"),
        ({"slos": [1.2, -1]}, r"slos\[1\]: must be > 0"),
        ({"tardiness_weight": [2, 1]}, r"tardiness_weight: must be \[least, most\]"),
        ({"jobs": 0}, "jobs: must be >= 1"),
        ({"colour": 1}, "colour: no such field; known are: type, mode, jobs"),
        (
            {"reference": "H100"},
            "reference: no kind is known on GPUs of type H100; known are: K80, V100",
        ),
        ({"kinds": []}, "throughputs: give Gavel's throughput tables"),
        ({"tables": "{}", "throughputs": "t.json"}, "throughputs: give either the path"),
        ({"tables": "{}"}, "reference: no kind is known on GPUs of type V100; known are: none"),
        ({"tables": "no json"}, "throughputs: that is no table of Gavel's"),
        ({"throughputs": "nowhere.json"}, "path: nowhere.json cannot be read"),
        (
            {"tables": "{}", "kinds": kinds_as_json(*KINDS)},
            "kinds: give either Gavel's throughput tables or kinds, not both",
        ),
        ({"kinds": kinds_as_json(KINDS[0]) * 2}, "kinds: two have the same id"),
        (
            {"kinds": kinds_as_json(SINGLE), "mode": "static-multiple"},
            "mode: static-multiple has jobs on 2 GPUs, and no kind is known on 2 of type V100",
        ),
    ],
)
def test_a_wrong_option_is_told_what_would_be_right(options: dict[str, Any], words: str) -> None:
    with pytest.raises(WorkloadError, match=words):
        generated(jobs=options.pop("jobs", 100), **options)


def test_gavels_own_tables_give_every_one_of_its_job_types() -> None:
    tables = str(whole_file("gavel/simulation_throughputs.json"))
    workload = generated(jobs=2000, mode="continuous-multiple", throughputs=tables)
    assert len(workload.kinds) == 26
    assert {j.kind for j in workload.jobs if j.gpus_min == 8} <= {k.id for k in workload.kinds}
    assert not {"A3C", "CycleGAN"} & {j.kind for j in workload.jobs if j.gpus_min > 1}
