import json
from pathlib import Path
from typing import Any

import pytest

from controlplane.simulation.report.run_metrics import interval
from experiments.reproduce.andreas.__main__ import _options, reproduce
from experiments.reproduce.andreas.armida import told
from experiments.reproduce.andreas.grid import POLICIES, Cell, Grid, cluster
from experiments.reproduce.andreas.page import COLOURS, SYMBOLS, _part
from experiments.reproduce.andreas.summary import claims, summarise
from policies.andreas.randomized_greedy import RandomizedGreedy
from policies.host import registry

SMALL = Grid(
    scenarios=(1, 2),
    nodes=(2,),
    tunings=(1.0,),
    policies=("FIFO", "EDF", "PS", "RG as coded"),
    seeds=2,
    jobs_per_node=4,
)


def quiet(line: str) -> None:
    assert line


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reproduced")
    reproduce(SMALL, folder, processes=1, say=quiet)
    return folder


def a_row(
    policy: str, total: float, nodes: int = 10, seed: int = 1, **fields: Any
) -> dict[str, Any]:
    told = {
        "scenario": 1,
        "nodes": nodes,
        "tuning": 1.0,
        "policy": policy,
        "seed": seed,
        "load": 0.5,
    }
    figures = dict.fromkeys(
        ("makespan_s", "jobs_late", "gpus_busy", "preemptions", "migrations"), 1.0
    )
    costs = {"energy_cost": 1.0, "tardiness_cost": total - 1.0, "total_cost": total}
    return {**told, **figures, **costs, "timing": {"mean_ms": 2.0, "most_ms": 3.0}, **fields}


def test_every_simulation_of_the_grid_is_in_the_results_with_its_load(folder: Path) -> None:
    results = json.loads((folder / "results.json").read_text())
    assert len(results["cells"]) == len(list(SMALL.cells())) == 16
    assert {cell["policy"] for cell in results["cells"]} == set(SMALL.policies)
    assert all(
        cell["load"] > 0 and cell["total_cost"] >= cell["energy_cost"] > 0
        for cell in results["cells"]
    )


def test_the_page_holds_the_four_panels_the_claims_and_the_validation_and_needs_no_internet(
    folder: Path,
) -> None:
    page = (folder / "report.html").read_text()
    for words in (
        "Energy cost (EUR)",
        "Total cost",
        "Time until all jobs are done",
        "Mean time of a call",
    ):
        assert words in page
    assert "Validation on ARMIDA" in page
    assert "The paper's claims" in page
    assert "<script src" not in page
    assert "<link " not in page


def test_a_second_run_takes_what_is_done_and_writes_the_same_results(folder: Path) -> None:
    before = (folder / "results.json").read_bytes()
    cells = {path: path.stat().st_mtime_ns for path in (folder / "cells").iterdir()}
    lines: list[str] = []
    reproduce(SMALL, folder, processes=1, say=lines.append)
    assert "16 of them done before" in lines[0]
    found = json.loads((folder / "results.json").read_text())["validation"]
    assert lines[-len(told(found)) :] == told(found)
    assert {path: path.stat().st_mtime_ns for path in (folder / "cells").iterdir()} == cells
    assert (folder / "results.json").read_bytes() == before


def test_the_validation_is_told_with_the_papers_figures_the_costs_and_the_noise() -> None:
    found = {
        "predicted_eur": 1.08, "off_the_papers_prediction": -0.004, "late_s": {"J9": 12.3},
        "real_eur": 1.2, "seeds": 2,
        "fitted": {"convnet": 0.85, "energy_eur": 1.07, "late_s": {}}, "reconfigured_eur": 1.15,
        "deviation": 0.1111,
        "real_switches": {"restart_cost_s": 30.0, "power_noise": 0.05}, "paper_deviation": 0.1229,
    }  # fmt: skip
    lines = told(found)
    assert "power_noise 0.05, restart_cost_s 30" in lines[0]
    assert [" ".join(line.split()) for line in lines[1:]] == [
        "predicted 1.0800 paper 1.0844 -0.4%; late: J9 by 12.3 s",
        "predicted, ConvNet x 0.85 1.0700 late: nothing",
        "with what reconfigurations cost 1.1500",
        "simulated real 1.2000 paper 0.9511 mean of 2 seeds",
        "prediction and real cost 11.11% apart (paper 12.29%)",
    ]


def test_the_simulated_real_run_pays_for_reconfigurations_and_its_power_is_noisy(
    folder: Path,
) -> None:
    found = json.loads((folder / "results.json").read_text())["validation"]
    assert found["real_switches"] == {
        "launch_s": 20.0,
        "stop_s": 10.0,
        "restart_cost_s": 30.0,
        "power_noise": 0.05,
    }
    assert found["reconfigured_eur"] != found["predicted_eur"]
    assert len(set(found["real_each_eur"])) == SMALL.seeds
    assert found["real_eur"] == pytest.approx(sum(found["real_each_eur"]) / SMALL.seeds)


def test_a_part_of_the_grid_may_be_asked_for_or_the_validation_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = [
        "reproduce",
        "--scenarios",
        "1",
        "--nodes",
        "10,20",
        "--seeds",
        "2",
        "--tunings",
        "1.0",
        "--policies",
        "FIFO, EDF",
    ]
    monkeypatch.setattr("sys.argv", asked)
    found = _options()
    assert (found.scenarios, found.nodes, found.seeds, found.tunings, found.policies) == (
        (1,),
        (10, 20),
        2,
        (1.0,),
        ("FIFO", "EDF"),
    )
    monkeypatch.setattr("sys.argv", ["reproduce", "--nodes", "none"])
    assert list(Grid(nodes=_options().nodes).cells()) == []


def test_times_of_calls_are_kept_apart_from_the_results(folder: Path) -> None:
    assert "_ms" not in (folder / "results.json").read_text()
    assert json.loads((folder / "timings.json").read_text())["calls"]


def test_half_the_nodes_have_v100s_and_the_scenario_says_how_many() -> None:
    gpus = [(n.gpu_type, len(n.devices)) for n in cluster(2, 5).nodes]
    assert gpus == [("V100", 4)] * 3 + [("T4", 2)] * 2


def test_savings_are_against_the_mean_and_against_the_best_of_the_baselines() -> None:
    rows = [a_row("FIFO", 10.0), a_row("EDF", 20.0), a_row("PS", 30.0), a_row("RG as coded", 5.0)]
    entry = next(e for e in summarise(rows) if e["policy"] == "RG as coded")
    assert entry["saving_on_mean"] == pytest.approx(0.75)
    assert entry["saving_on_best"] == pytest.approx(0.5)


def test_the_paper_is_held_against_the_mean_saving_over_all_n_at_its_load() -> None:
    rows = [a_row(p, 10.0, n) for n in (10, 20) for p in ("FIFO", "EDF", "PS")]
    rows += [
        a_row("RG as coded", 2.0, 10),
        a_row("RG as coded", 6.0, 20),
        a_row("RG as coded", 9.0, 20, tuning=2.5),
    ]
    found = claims(summarise(rows), rows, None)
    assert [(c["paper"], c["here"]) for c in found if "total cost" in c["claim"]] == [
        (0.62, pytest.approx(0.6))
    ]


def test_confidence_needs_more_than_one_seed() -> None:
    one = summarise([a_row("FIFO", 10.0)])[0]
    two = summarise([a_row("FIFO", 10.0), a_row("FIFO", 14.0, seed=2)])[0]
    assert one["total_cost_95"] is None
    assert two["total_cost_95"] == pytest.approx(interval([10.0, 14.0]).half_width)
    assert two["total_cost_95"] == pytest.approx(12.706 * 2.0, rel=1e-4)  # t of one degree, 97.5%


def test_the_greedy_as_published_has_no_hysteresis_and_looks_at_the_first_end() -> None:
    name, parameters = POLICIES["RG as published"]
    policy = registry.make(name, parameters)
    assert isinstance(policy, RandomizedGreedy)
    assert (policy.mode, policy.objective, policy.hysteresis) == ("paper", "first_end", 0.0)


def test_the_published_programs_figures_are_beside_those_of_the_greedy_as_coded() -> None:
    rows = [a_row(p, 10.0) for p in ("FIFO", "EDF", "PS", "RG as coded", "RG by default")]
    published = {e["policy"]: e["published"] for e in summarise(rows)}
    assert published["RG as coded"] == "66 to 69%"
    assert set(published.values()) == {"66 to 69%", ""}


def test_one_n_has_bars_and_several_have_lines_from_zero_on() -> None:
    rows = [a_row(p, 10.0, n) for p in ("FIFO", "EDF") for n in (10, 30)]
    (one, *_), (several, *_) = (
        _part(1, 1.0, summarise(of), ())[1].values() for of in (rows[::2], rows)
    )
    assert [(t["type"], t["x"]) for t in one["data"]] == [("bar", ["FIFO", "EDF"])]
    assert [t["x"] for t in several["data"]] == [[10, 30], [10, 30]]
    assert several["layout"]["xaxis"]["range"][0] == 0


def test_no_two_policies_look_alike() -> None:
    assert len(set(COLOURS)) == len(set(SYMBOLS)) == len(COLOURS) >= len(POLICIES)


def test_equal_cells_have_equal_files_and_others_others() -> None:
    cell = Cell(1, 10, 100, 2.5, "FIFO", 1)
    assert cell.file == Cell(1, 10, 100, 2.5, "FIFO", 1).file
    assert (
        len(
            {cell.file, Cell(2, 10, 100, 2.5, "FIFO", 1).file, Cell(1, 10, 100, 2.5, "EDF", 1).file}
        )
        == 3
    )
