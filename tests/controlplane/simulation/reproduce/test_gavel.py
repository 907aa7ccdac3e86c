"""Gavel's evaluation again: every figure is there, runs end to end, goes on where it stopped, and
its figures are the paper's.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.reproduce.gavel import cells, sharing
from experiments.reproduce.gavel.__main__ import options, reproduce
from experiments.reproduce.gavel.cells import Cell, cells_of, run
from experiments.reproduce.gavel.figures import experiments
from experiments.reproduce.gavel.model import Experiment, Series
from experiments.reproduce.gavel.runners import RUNNERS
from experiments.reproduce.gavel.scale import FULL, QUICK, Data
from policies.contract.snapshot_json import to_json
from policies.host import registry
from tests.builders_reproduced import TINY, a_data_folder

FIGURES = ("8", "9", "10", "11", "12", "13", "14", "16", "17", "18", "19", "20", "21", "T3", "cost")


def quiet(line: str) -> None:
    assert line


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return a_data_folder(tmp_path_factory.mktemp("data"))


def tiny(data: Data, *wanted: str) -> list[Experiment]:
    return [e for e in experiments(TINY, data) if e.id in wanted]


@pytest.fixture(scope="module")
def folder(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Figures 13 and 11, and a policy that nobody has in figure 13."""
    folder = tmp_path_factory.mktemp("reproduced")
    reproduce(with_a_stranger(data), folder, scale="tiny", seeds=2, processes=1, say=quiet)
    return folder


def with_a_stranger(data: Data) -> list[Experiment]:
    eleven, thirteen = tiny(data, "11", "13")
    return [
        replace(thirteen, series=(*thirteen.series, Series.of("stranger", "nobodys_policy"))),
        eleven,
    ]


def results(folder: Path) -> Any:
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize("scale", [FULL, QUICK])
def test_every_figure_and_table_of_the_evaluation_is_an_experiment(scale: Any, data: Data) -> None:
    assert tuple(e.id for e in experiments(scale, data)) == FIGURES


def test_every_cell_names_a_runner_and_every_claim_a_series_and_a_point_charted_or_measured(
    data: Data,
) -> None:
    for experiment in experiments(FULL, data):
        labels = [s.label for s in experiment.series]
        assert len(set(labels)) == len(labels)
        assert experiment.claims
        assert experiment.note
        for _, _, spec in experiment.points():
            assert spec["runner"] in RUNNERS
        for claim in experiment.claims:
            assert {claim.of, claim.over} <= {*labels, None}, claim
            assert claim.at is None or claim.at in experiment.specs, claim


def test_the_policies_asked_for_by_name_are_those_of_the_house_or_on_their_way(data: Data) -> None:
    asked = {spec.get("policy") for e in experiments(FULL, data) for _, _, spec in e.points()} - {
        None
    }
    on_their_way = {"finish_time_fairness", "makespan", "fifo_shares", "max_throughput", "min_cost"}
    assert asked <= {*registry.BUILT_IN, *on_their_way}


def test_two_experiments_run_end_to_end_into_a_page_that_needs_no_internet(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    for words in (
        "Figure 13: Rounds",
        "Figure 11: Hierarchical policy over time",
        "All claims",
        "Published program",
    ):
        assert words in page
    assert "A quick run" not in page
    assert "<script src" not in page
    assert "<link " not in page
    found = results(folder)["found"]
    assert 0.0 < found["11"]["claims"][0]["here"] < 1.0
    assert {p["series"]: p["seeds"] for p in found["13"]["points"]} == {
        "rounds": 2,
        "ideal": 2,
        "stranger": 0,
    }
    assert all(p["means"]["jct_h"] > 0.0 for p in found["13"]["points"] if p["seeds"])


def test_a_policy_that_is_not_there_is_said_so_in_its_place_and_stops_nothing(folder: Path) -> None:
    errors = {p["series"]: p["errors"] for p in results(folder)["found"]["13"]["points"]}
    assert errors["stranger"] == ["policy not available: 'nobodys_policy': no such policy"]
    assert errors["rounds"] == errors["ideal"] == []
    assert "policy not available" in (folder / "report.html").read_text()


def test_a_second_run_takes_what_is_done_runs_what_failed_again_and_writes_the_same_results(
    folder: Path, data: Data
) -> None:
    before = (folder / "results.json").read_bytes()
    made = {path: path.stat().st_mtime_ns for path in (folder / "cells").iterdir()}
    lines: list[str] = []
    reproduce(with_a_stranger(data), folder, scale="tiny", seeds=2, processes=1, say=lines.append)
    again = [line for line in lines if " of 2: " in line]
    assert lines[0] == "12 simulations, 10 of them done before, 2 to do"
    assert len(again) == 2
    assert all("stranger" in line for line in again)
    after = {path: path.stat().st_mtime_ns for path in (folder / "cells").iterdir()}
    assert {p.name for p in made if made[p] != after[p]} == {
        p.name for p in made if p.name.startswith("stranger")
    }
    assert (folder / "results.json").read_bytes() == before


def test_times_on_this_machine_are_apart_from_the_results(
    folder: Path, data: Data, tmp_path: Path
) -> None:
    assert "wall_s" not in (folder / "results.json").read_text()
    assert json.loads((folder / "timings.json").read_text())["cells"]
    reproduce(tiny(data, "12"), tmp_path, scale="tiny", seeds=3, processes=1, say=quiet)
    assert "seconds" not in json.dumps(
        [p["means"] for p in results(tmp_path)["found"]["12"]["points"]]
    )
    timed = json.loads((tmp_path / "timings.json").read_text())
    assert len(timed["cells"]) == 4, "timings are of one seed"
    assert all(cell["seconds"] > 0.0 for cell in timed["cells"])


def test_figures_share_the_cells_that_are_alike_and_other_seeds_specs_or_files_have_others(
    data: Data, tmp_path: Path
) -> None:
    spec = {"runner": "simulated", "workload": {"throughputs": data.tables(), "jobs": 3}}
    cell = Cell("8", "aware", 4.0, spec, 1)
    assert cell.file == Cell("13", "aware", 6.0, spec, 1).file
    elsewhere = a_data_folder(tmp_path)
    told = {**spec, "workload": {"throughputs": elsewhere.tables(), "jobs": 3}}
    assert cell.file == Cell("8", "aware", 4.0, told, 1).file
    Path(elsewhere.tables()).write_text("{}")
    others = [
        Cell("8", "aware", 4.0, told, 1),
        replace(cell, seed=2),
        replace(cell, spec={**spec, "round_s": 1.0}),
    ]
    assert len({cell.file, *(other.file for other in others)}) == 4


def test_of_seed_0_the_published_stream_is_taken_where_it_is_there(tmp_path: Path) -> None:
    data = a_data_folder(tmp_path)
    (tmp_path / "gavel_stream_single_seed0.csv").write_text(
        "job_id,unit_arrival,job_type,scale_factor,total_steps\n0,0,A3C,1,100\n"
    )
    eight = next(e for e in experiments(TINY, data) if e.id == "8")
    first, second = (c.told["workload"]["type"] for c in list(cells_of(eight, 2))[:2])
    assert (first, second) == ("gavel", "gavel_generator")
    nine = next(e for e in experiments(TINY, data) if e.id == "9")
    assert next(iter(cells_of(nine, 1))).told["workload"]["type"] == "gavel_generator"


def test_what_fails_is_told_with_its_reason_and_a_torn_file_is_made_again(
    data: Data, tmp_path: Path
) -> None:
    eight = tiny(data, "8")[0]
    spec = {
        **next(iter(eight.specs.values())),
        "policy": "max_min_fairness",
        "parameters": {"form": "warped"},
    }
    assert run(Cell("8", "x", 4.0, spec, 1))["error"].startswith(
        "policy not available as asked for: form: must be one of"
    )
    assert run(Cell("8", "x", 4.0, {"runner": "nobody"}, 1)) == {"error": "KeyError: 'nobody'"}
    torn = tmp_path / "torn.json"
    torn.write_text('{"jct_h": 1')
    assert not cells._is_done(torn)


def test_sharing_is_run_only_where_two_jobs_on_a_gpu_run_as_pairs_do(
    monkeypatch: pytest.MonkeyPatch, data: Data
) -> None:
    spec = {
        **next(iter(tiny(data, "8")[0].specs.values())),
        "policy": "max_min_fairness",
        "parameters": {"form": "sharing"},
    }
    monkeypatch.setattr(sharing, "runs_pairs", lambda: False)
    assert "do not run at the speeds of pairs" in run(Cell("8", "sharing", 4.0, spec, 1))["error"]
    aware = {**spec, "parameters": {"form": "aware"}}
    assert run(Cell("8", "aware", 4.0, aware, 1))["jct_h"] > 0.0
    assert [
        sharing.asks_for_pairs({"policy": "gandiva", "parameters": {"packing": p}})
        for p in (True, False)
    ] == [True, False]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_cells_of_a_tiny_evaluation_run_or_say_why_not(data: Data) -> None:
    """What an experiment asks of its runner, generator and policies is what they have."""
    for experiment in tiny(data, *FIGURES):
        for cell in cells_of(experiment, 1):
            if cell.series.endswith(("aware", "ideal", "partition")) or experiment.id in (
                "cost",
                "T3",
            ):
                found = run(cell)
                assert "error" not in found or excused(found["error"]), (
                    cell.experiment,
                    cell.series,
                    found,
                )


def excused(error: str) -> bool:
    """A policy on its way, pairs, or a recorded trace that this data folder has not."""
    return "no such policy" in error or "speeds of pairs" in error or ".trace" in error


def test_options_choose_figures_scale_and_seeds_and_refuse_what_is_not_there(
    data: Data, capsys: pytest.CaptureFixture[str]
) -> None:
    there = ["--data", str(data.folder)]
    asked = options([*there, "--figures", "8, T3", "--quick"])
    assert ([e.id for e in asked.wanted], asked.scale, asked.seeds) == (["8", "T3"], QUICK, 1)
    asked = options([*there, "--seeds", "2"])
    assert (len(asked.wanted), asked.scale, asked.seeds) == (len(FIGURES), FULL, 2)
    for wrong, told in (
        ([*there, "--figures", "15"], "no such figure: 15; known are: 8, 9"),
        ([*there, "--seeds", "0"], "must be a whole number of at least 1"),
        (["--data", "/nowhere"], "has no throughput tables of Gavel's"),
    ):
        with pytest.raises(SystemExit):
            options(wrong)
        assert told in capsys.readouterr().err


def test_the_kinds_of_the_test_are_documented_snapshot_kinds(data: Data) -> None:
    from controlplane.simulation.workloads import load
    from experiments.reproduce.gavel.scenarios import nodes, snapshot

    workload = load({"type": "gavel_generator", "jobs": 3, "throughputs": data.tables()}, 1)
    made = snapshot(nodes({"V100": 9, "K80": 1}), workload.kinds, workload.jobs)
    assert [len(n.devices) for n in made.nodes] == [8, 1, 1]
    assert to_json(made)["nodes"]
