"""PCP'20's evaluation again, at the least size."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.reproduce.pcp20.__main__ import Asked, options, reproduce
from experiments.reproduce.pcp20.claims import claims_of, timed_claims
from experiments.reproduce.pcp20.instances import instance_in, variables_on_every_node
from experiments.reproduce.pcp20.scenarios import EURORA, FIRST, QUICK, Scale, cases, settings
from policies.batch.cp.optional_units import variables
from tests.builders_policies import a_batch_job, a_cpu_node, a_node, a_snapshot


def a_record(n: int) -> str:
    """Line of a log: submitted, run time, processors, requested time, user."""
    cores = 4 + 4 * (n % 3)
    run_s, walltime_s = 30 + 40 * (n % 5), 120 + 40 * n
    head = f"{n + 1} {20 * n} -1 {run_s} {cores} -1 -1 {cores} {walltime_s}"
    return f"{head} -1 1 {n % 3} -1 -1 -1 -1 -1 -1"


TINY = Scale("tiny", 12, 12, 12, 12, 1, 3)


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    (tmp_path / "hpc").mkdir()
    (tmp_path / "hpc/hpc2n-seth-slice.swf").write_text(
        "".join(f"{a_record(n)}\n" for n in range(30))
    )
    return Asked(TINY, tmp_path, tmp_path / "out", 1, ("seth", "kit"))


def test_all_dispatchers_are_there() -> None:
    assert all(case.dispatcher.is_there for case in cases(settings(QUICK)))


def test_a_reproduction_has_every_simulation_and_goes_on_where_it_stopped(asked: Asked) -> None:
    said: list[str] = []
    reproduce(asked, said.append)
    first = (asked.folder / "results.json").read_bytes()
    results = json.loads(first)
    labels = [(row["setting"], row["label"]) for row in results["rows"]]
    assert len(labels) == len(set(labels)) == 16
    assert all(row["wait_s"]["mean"] >= 0 for row in results["rows"])
    assert results["not_run"] == []
    one = next((asked.folder / "cells").glob("seth-easy-w-*.json"))
    one.unlink()
    said.clear()
    reproduce(replace(asked, computes=False), said.append)
    partial = json.loads((asked.folder / "results.json").read_text())
    assert len(partial["rows"]) == 15
    assert partial["not_run"] == ["Not run yet: Seth: EASY-W."]
    said.clear()
    reproduce(asked, said.append)
    assert "cells: 16, 15 of them done before" in said
    assert (asked.folder / "results.json").read_bytes() == first
    assert "Seth" in (asked.folder / "report.html").read_text()


def test_times_are_compared_with_hcp19_and_quality_with_easy_and_the_log() -> None:
    def ran(label: str, ms: float, wait_s: float) -> dict[str, Any]:
        means = {name: {"mean": wait_s} for name in ("wait_s", "slowdown", "bounded_slowdown")}
        log = {"wait_in_the_log_s": {"mean": 200.0}, "slowdown_in_the_log": None}
        timing = {"mean_ms": ms, "cpu_s": 10 * ms}
        return {"setting": FIRST, "label": label, "log": log, "timing": timing, **means}

    rows = [ran("EASY-W", 1.0, 100.0), ran("HCP'19-D", 10.0, 50.0), ran("PCP'20-D", 5.0, 25.0)]
    pcp20 = next(line for line in timed_claims(rows) if line["label"] == "PCP'20-D")
    assert (pcp20["here_ratio"], pcp20["here_total_ratio"]) == (0.5, 0.5)
    assert pcp20["paper_total_ratio"] == pytest.approx(134_240 / 219_142)
    rows += [{**row, "setting": EURORA} for row in rows]
    found = {(of["claim"], of["label"]): of["here"] for of in claims_of(rows)}
    assert found["slowdown over EASY's", "HCP'19-D"] == 0.5
    assert found["wait over PBS's", "PCP'20-D"] == 0.125


def test_pcp19_on_every_node_has_a_variable_for_each_unit_and_node() -> None:
    nodes = [a_node("g1", gpus=1, cores=4.0), *(a_cpu_node(f"c{i}", cores=4.0) for i in range(3))]
    jobs = [a_batch_job("gpu", 1, 1, cores=1.0), a_batch_job("wide", 2, cores=4.0)]
    instance = instance_in(a_snapshot(nodes, jobs))
    assert variables(instance) == 2 + 1 + 4
    assert variables_on_every_node(instance) == 2 + 1 * 4 + 2 * 4


def test_unknown_settings_and_missing_logs_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, told in (
        (["--settings", "etna"], "no such setting: etna"),
        (["--settings", "kit", "--first", "-1"], "give a number of jobs above 0"),
        (["--settings", "seth", "--data", str(tmp_path)], "has no hpc/hpc2n-seth-slice.swf"),
    ):
        with pytest.raises(SystemExit):
            options(arguments)
        assert told in capsys.readouterr().err
