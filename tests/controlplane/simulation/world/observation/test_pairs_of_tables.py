"""Studies whose pairs come from Gavel's throughput tables, on a cluster file whose GPUs have
slots.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from controlplane.simulation.report.run_metrics import metrics_of
from controlplane.simulation.study.document import Study
from controlplane.simulation.study.study import run_study
from controlplane.simulation.world.outcome import Outcome
from controlplane.simulation.world.run import simulate
from tests.builders_outcomes import a_study_document
from tests.builders_pairs import GAVEL_ALONE, GAVEL_BESIDE

NAMES = list(GAVEL_ALONE)
PAIRS = {"name": "max_min_fairness", "parameters": {"form": "sharing"}}


def tables() -> str:
    """Eight of Gavel's kinds on one V100, in the form of its tables."""
    column = {
        f"('{name}', 1)": {
            "null": GAVEL_ALONE[name],
            **{
                f"('{other}', 1)": [GAVEL_BESIDE[i][j], GAVEL_BESIDE[j][i]]
                for j, other in enumerate(NAMES)
            },
        }
        for i, name in enumerate(NAMES)
    }
    return json.dumps({"v100": column})


def a_study(*policies: dict[str, Any], slots: int = 2, **fields: Any) -> dict[str, Any]:
    cluster = {
        "nodes": [{"name": "v", "gpu_type": "V100", "gpus": 2, "slots": slots}],
        "round_s": 360.0,
    }
    workload = {
        "type": "gavel_generator",
        "mode": "continuous-single",
        "jobs": 10,
        "gap_s": 600.0,
        "tables": tables(),
    }
    return a_study_document(
        **{
            "cluster": cluster,
            "workload": workload,
            "policies": list(policies or (PAIRS,)),
            "seeds": [1],
            **fields,
        }
    )


def outcome(document: dict[str, Any]) -> Outcome:
    study = Study.of(document)
    return simulate(
        study.scenario,
        study.load(1),
        study.policies[0].make(),
        name="p",
        seed=1,
        switches=study.switches,
    )


def overlaps(found: Outcome) -> set[tuple[int, int]]:
    """Jobs that had a GPU together for a time."""
    stays = found.stays
    rows = list(
        zip(
            stays.job.tolist(),
            stays.devices,
            stays.start_s.tolist(),
            stays.end_s.tolist(),
            strict=True,
        )
    )
    return {
        (a, b)
        for a, devices, from_s, to_s in rows
        for b, others, since_s, until_s in rows
        if a < b and devices == others and max(from_s, since_s) < min(to_s, until_s)
    }


def test_pairs_of_the_tables_share_gpus_that_have_slots_and_all_jobs_end_sooner() -> None:
    shared, alone = outcome(a_study()), outcome(a_study(slots=1))
    assert overlaps(shared)
    assert not overlaps(alone)
    assert metrics_of(shared)["jct_mean_s"] < metrics_of(alone)["jct_mean_s"]
    assert metrics_of(shared)["unfinished"] == 0.0


def test_pairs_that_do_not_fit_into_a_gpu_never_share_it() -> None:
    document = a_study()
    kinds = Study.of(document).load(1).jobs.columns.kinds
    beside = {
        (NAMES[i], NAMES[j]): rate
        for i, row in enumerate(GAVEL_BESIDE)
        for j, rate in enumerate(row)
    }
    assert any(beside[one, other] == 0.0 for one in set(kinds) for other in set(kinds)), (
        "the jobs must include such a pair"
    )
    assert all(beside[kinds[a], kinds[b]] > 0.0 for a, b in overlaps(outcome(document)))


def test_a_study_reports_how_far_off_estimates_of_pairs_were(tmp_path: Path) -> None:
    study = Study.of(a_study(PAIRS, {"name": "fifo"}, switches={"pairs_observed": 0.5}))
    report = run_study(study, tmp_path, processes=1).read_text(encoding="utf-8")
    assert "Error of estimated pairs, median" in report
    assert "pairs_observed = 0.5" in report
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    pairs, fifo = (policy["mean"] for policy in results["policies"])
    assert (
        0.0
        < pairs["pair_error_p50"]["mean"]
        <= pairs["pair_error_p90"]["mean"]
        <= pairs["pair_error_most"]["mean"]
    )
    assert pairs["pairs_measured"]["mean"] > 0.0
    assert fifo["pair_error_p50"] == pairs["pair_error_p50"], (
        "estimates are of the world, not of the policy"
    )
    assert fifo["pair_ran_error_p50"]["mean"] is None, "nothing of them ran"


def test_a_study_without_estimates_has_no_rows_about_them(tmp_path: Path) -> None:
    report = run_study(Study.of(a_study()), tmp_path, processes=1).read_text(encoding="utf-8")
    assert "Error of estimated pairs" not in report


def test_jobs_csv_divides_the_energy_of_shared_gpus(tmp_path: Path) -> None:
    run_study(Study.of(a_study()), tmp_path, processes=1)
    head, *rows = [
        line.split(",") for line in (tmp_path / "jobs.csv").read_text(encoding="utf-8").splitlines()
    ]
    kwh = sum(float(row[head.index("energy_kwh")]) for row in rows)
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert kwh == pytest.approx(results["policies"][0]["mean"]["energy_kwh"]["mean"])
