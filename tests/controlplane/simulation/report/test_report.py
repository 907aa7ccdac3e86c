import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controlplane.simulation.report.report import facts_of, report_of, worded
from controlplane.simulation.report.run_metrics import METRICS
from controlplane.simulation.report.summary import (
    MOST_LANES,
    MOST_STAYS,
    Summary,
    summarise,
    timeline_of,
)
from controlplane.simulation.study.document import Failure, Run, Study
from controlplane.simulation.world.outcome import Outcome, Stays, Unplaceable
from tests.builders_outcomes import a_finished_run, a_study_document, an_outcome

METRIC = {metric.name: metric for metric in METRICS}


def a_summary(document: dict[str, Any] | None = None, *, failed: int = 0, **facts: Any) -> Summary:
    """Of a study whose second policy costs half; the last runs failed."""
    study = Study.of(document or a_study_document())
    runs = study.runs()
    done = runs[: len(runs) - failed]
    found = [(run, a_finished_run(_of(run, facts.pop("outcome", None)), **facts)) for run in done]
    failures = [Failure(run, "it <i>broke</i>") for run in runs[len(done) :]]
    return summarise(study, found, failures)


def _of(run: Run, outcome: Outcome | None) -> Outcome:
    return outcome or an_outcome(
        energy_cost=0.4 / (1 + run.policy) + 0.01 * run.seed, seed=run.seed
    )


def figures(page: str) -> dict[str, Any]:
    found = re.search(
        r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL
    )
    assert found
    parsed = json.loads(found[1])
    assert isinstance(parsed, dict)
    return parsed


def test_the_report_needs_nothing_from_anywhere() -> None:
    page = report_of(a_summary())
    own = page.replace(re.findall(r"<script>(.*?)</script>", page, re.DOTALL)[0], "")
    assert not re.findall(r"(?:\bsrc=|href|url\(|@import|https?:)", own)
    assert "default-src 'none'" in own
    assert "Plotly" in page


def test_every_metric_and_policy_is_in_the_table_with_its_interval() -> None:
    page = report_of(a_summary())
    for metric in METRICS:
        assert (f'<th scope="row">{metric.words}' in page) == metric.always, (
            "figures that no run has are left out if they may be"
        )
    assert '<th scope="col">fifo</th><th scope="col">edf</th>' in page
    assert "±" in page
    assert "% against fifo" in page


def test_the_best_of_a_row_is_marked_and_no_row_whose_values_are_alike() -> None:
    page = report_of(a_summary())
    rows = dict(re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', page))
    assert [("best" in cell) for cell in rows["Total cost, EUR"].split("<td")[1:]] == [False, True]
    assert "best" not in rows["Makespan"]
    assert "best" not in rows["Rounds"]


def test_what_people_write_is_text_and_never_markup() -> None:
    hostile = "</script><script>alert(1)</script>"
    outcome = an_outcome(job_ids=(hostile, "b", "c"), nodes=(hostile, "n2"))
    document = a_study_document(
        name=hostile, policies=[{"name": "fifo", "label": hostile}], seeds=[1]
    )
    page = report_of(
        a_summary(
            document,
            outcome=outcome,
            name=hostile,
            facts={hostile: hostile},
            skipped=((1, hostile),),
        )
    )
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert page.count("</script>") == 3


def test_the_charts_show_every_policy() -> None:
    found = figures(report_of(a_summary()))
    assert set(found) == {"cost", "jct", "slowdown", "gpus", "timeline-0", "timeline-1"}
    assert [trace["name"] for trace in found["jct"]["figure"]["data"]] == ["fifo", "edf"]
    assert found["cost"]["figure"]["data"][0]["x"] == ["fifo", "edf"]
    assert found["cost"]["figure"]["data"][0]["y"] == pytest.approx([0.415, 0.215])
    assert found["timeline-0"]["figure"]["data"][0]["y"] == ["n1 gpu0", "n2 gpu0"]


def test_labels_and_nodes_cannot_become_links_in_charts() -> None:
    link, shown = "<a href='//x'>&\"</a>", "&lt;a href='//x'&gt;&amp;\"&lt;/a&gt;"
    document = a_study_document(policies=[{"name": "fifo", "label": link}, "edf"])
    stays = Stays(*(np.zeros(1, dtype=np.int64),) * 2, (("gpu0",),), np.zeros(1), np.ones(1))
    found = figures(report_of(a_summary(document, outcome=an_outcome(stays=stays, nodes=(link,)))))
    assert found["jct"]["figure"]["data"][0]["name"] == shown
    assert found["cost"]["figure"]["data"][0]["x"] == [shown, "edf"]
    assert found["timeline-0"]["figure"]["data"][0]["y"] == [f"{shown} gpu0"]


def test_failed_runs_are_counted_listed_and_in_no_figure() -> None:
    page = report_of(a_summary(failed=2))
    assert "2 of 4 runs failed" in page
    assert "edf, seed 2: it &lt;i&gt;broke&lt;/i&gt;" in page
    assert "different seeds" not in page
    assert "different seeds" in report_of(a_summary(failed=1))


def test_a_report_in_which_every_run_failed_says_so() -> None:
    page = report_of(a_summary(failed=4))
    assert "4 of 4 runs failed" in page
    assert figures(page) is not None


def test_unplaceable_jobs_are_counted_and_listed() -> None:
    outcome = an_outcome(
        unplaceable=(Unplaceable(2, "c", "needs 8 GPUs, no node has more than 2"),)
    )
    page = report_of(a_summary(a_study_document(policies=["fifo"], seeds=[1]), outcome=outcome))
    assert "No node can run 1 job" in page
    assert "c: needs 8 GPUs, no node has more than 2" in page


def test_a_policy_that_leaves_jobs_unfinished_says_so_and_is_best_in_nothing() -> None:
    cheap = an_outcome(
        energy_cost=0.1, tardiness_cost=0.0, unfinished_cost=0.05,
        unfinished=(Unplaceable(2, "c", "the policy left it waiting"),),
    )  # fmt: skip
    done = an_outcome(completion_s=np.array([200.0, 350.0, 400.0]), energy_cost=5.0)
    study = Study.of(a_study_document(seeds=[1]))
    runs = zip(study.runs(), map(a_finished_run, (cheap, done)), strict=True)
    page = report_of(summarise(study, runs))
    assert "fifo left 1 job unfinished" in page
    assert "c: the policy left it waiting" in page
    (row,) = re.findall(r">Total cost, EUR</th>(.*?)</tr>", page)
    assert re.findall(r"<td( class=best)?>", row) == ["", " class=best"]


def test_the_facts_say_what_a_reader_must_know() -> None:
    policies = ["fifo", {"name": "randomized_greedy", "parameters": {"rho": 5.0}}]
    document = a_study_document(switches={"restart_cost_s": 30.0}, policies=policies)
    facts = dict(facts_of(a_summary(document)))
    assert facts["Cluster"] == "3 nodes, 2 x T4, 2 x V100"
    assert facts["Seeds"] == "1, 2"
    assert facts["Switches that are on"] == "restart_cost_s = 30"
    assert facts["Load"] == "0.5"
    assert facts["Workload"].startswith("three jobs: 3 jobs of 1 kind over")
    assert facts["Policy randomized_greedy"] == "randomized_greedy: rho = 5.0"
    assert dict(facts_of(a_summary()))["Switches that are on"] == "none"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("jct_mean_s", 95.25, "95.25 s"),
        ("jct_mean_s", 600.0, "10 min"),
        ("jct_mean_s", 9000.0, "2.5 h"),
        ("makespan_s", 864000.0, "10 d"),
        ("total_cost", 1234.567, "1,235"),
        ("total_cost", 0.0123456, "0.01235"),
        ("late", 3.0, "3"),
        ("utilisation", 0.4567, "45.7%"),
        ("jct_mean_s", float("nan"), "–"),
    ],
)
def test_figures_are_worded_for_people(name: str, value: float, words: str) -> None:
    assert worded(METRIC[name], value) == words


def test_a_timeline_is_cut_to_what_a_chart_can_show() -> None:
    count = MOST_STAYS + 5
    stays = Stays(
        np.zeros(count, dtype=np.int64),
        np.arange(count, dtype=np.int64) % (MOST_LANES + 3),
        (("gpu0",),) * count,
        np.arange(count, dtype=np.float64),
        np.arange(count, dtype=np.float64) + 1.0,
    )
    found = timeline_of(
        an_outcome(stays=stays, nodes=tuple(f"n{i}" for i in range(MOST_LANES + 3)))
    )
    assert (len(found.lanes), found.hidden_lanes, found.hidden_stays) == (MOST_LANES, 3, 5)
    assert found.lanes[:3] == ("n0 gpu0", "n1 gpu0", "n2 gpu0")
    assert max(lane for lane, _, _, _ in found.stays) < MOST_LANES


def test_the_page_is_the_same_every_time(tmp_path: Path) -> None:
    assert report_of(a_summary()) == report_of(a_summary())
