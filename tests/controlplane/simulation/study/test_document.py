import json
from pathlib import Path
from typing import Any

import pytest

from controlplane.simulation.study.document import Study, StudyError
from tests.builders_outcomes import A_CLUSTER, a_study_document


def without(field: str) -> dict[str, Any]:
    return {name: value for name, value in a_study_document().items() if name != field}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (
            a_study_document(polices=[]),
            ("polices", "known are: name, cluster, workload, policies, seeds, switches, skip_bad"),
        ),
        (without("cluster"), ("cluster: is missing",)),
        (without("workload"), ("workload: is missing",)),
        (without("policies"), ("policies: is missing",)),
        (a_study_document(cluster="live"), ("cluster: must be an object",)),
        (
            a_study_document(cluster={**A_CLUSTER, "nodes": []}),
            ("cluster: nodes: a cluster has at least one node",),
        ),
        (
            a_study_document(workload={"type": "nonsense"}),
            ("workload.type", "andreas", "poisson", "swf", "nonsense"),
        ),
        (
            a_study_document(workload={"type": "andreas", "tunning": 1}),
            ("workload.tunning: ", "tuning"),
        ),
        (a_study_document(policies=[]), ("policies: must be 1 to 50",)),
        (a_study_document(policies="fifo"), ("policies: must be an array",)),
        (
            a_study_document(policies=["fifo", {"name": "fifoo"}]),
            ("policies[1]", "fifoo", "known are: ", "edf"),
        ),
        (a_study_document(policies=[{"parameters": {}}]), ("policies[0].name: is missing", "fifo")),
        (
            a_study_document(policies=[{"name": "fifo", "params": {}}]),
            ("policies[0].params", "parameters"),
        ),
        (
            a_study_document(policies=[{"name": "randomized_greedy", "parameters": {"rhoo": 1}}]),
            ("policies[0]: rhoo", "rho"),
        ),
        (
            a_study_document(policies=[{"name": "randomized_greedy", "parameters": {"rho": -1}}]),
            ("policies[0]: rho", "-1"),
        ),
        (
            a_study_document(
                policies=[{"name": "fifo", "label": "x"}, {"name": "edf", "label": "x"}]
            ),
            ("policies[1].label",),
        ),
        (a_study_document(policies=["fifo", "fifo"]), ("policies[1].label", "a label of its own")),
        (a_study_document(seeds=[]), ("seeds: ",)),
        (a_study_document(seeds=3), ("seeds: ",)),
        (a_study_document(seeds=[1, 1]), ("seeds: must be 1 to 1000 different ones",)),
        (a_study_document(seeds=[-1]), ("seeds[0]: must be >= 0", "-1")),
        (a_study_document(seeds=[True]), ("seeds[0]: must be an integer", "true")),
        (a_study_document(switches={"restart": 1}), ("switches.restart: ", "restart_cost_s")),
        (a_study_document(switches={"restart_cost_s": -1}), ("switches.restart_cost_s: ", "-1")),
        (a_study_document(skip_bad="yes"), ("skip_bad: must be true or false",)),
        (a_study_document(name=""), ("name: ",)),
    ],
)
def test_what_is_wrong_is_refused_with_its_field_and_the_remedy(
    document: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(StudyError) as error:
        Study.of(document)
    for word in words:
        assert word in str(error.value)


def test_the_document_is_plain_json_and_a_study_of_it_is_the_same() -> None:
    study = Study.of(
        a_study_document(policies=["fifo", {"name": "edf"}], switches={"restart_cost_s": 5})
    )
    again = Study.of(json.loads(json.dumps(study.document)))
    assert again.document == study.document
    assert again.runs() == study.runs()


def test_policies_of_one_name_are_told_apart_by_their_parameters() -> None:
    policies = [
        {"name": "randomized_greedy", "parameters": {"mode": mode}} for mode in ("coded", "paper")
    ]
    study = Study.of(a_study_document(policies=[*policies, "fifo"]))
    assert [p.label for p in study.policies] == [
        "randomized_greedy (mode=coded)",
        "randomized_greedy (mode=paper)",
        "fifo",
    ]


def test_runs_go_seed_by_seed() -> None:
    runs = Study.of(a_study_document(seeds=[3, 1])).runs()
    assert [(run.label, run.seed) for run in runs] == [
        ("fifo", 3),
        ("edf", 3),
        ("fifo", 1),
        ("edf", 1),
    ]


def keys(**fields: Any) -> set[str]:
    return {run.key for run in Study.of(a_study_document(**fields), trusted=True).runs()}


def test_more_seeds_or_policies_keep_the_runs_that_are_there() -> None:
    assert keys() < keys(seeds=[1, 2, 3], policies=["fifo", "edf", "priority"], name="Other words")


@pytest.mark.parametrize(
    "change",
    [
        {"cluster": {**A_CLUSTER, "round_s": 60.0}},
        {"workload": {"type": "andreas", "nodes": 2, "jobs": 11}},
        {"switches": {"stop_s": 1.0}},
        {"skip_bad": True},
        {"seeds": [4, 5]},
    ],
)
def test_whatever_changes_a_result_changes_every_runs_key(change: dict[str, Any]) -> None:
    assert keys().isdisjoint(keys(**change))


def test_another_trace_under_the_same_name_is_another_run(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    workload = {"type": "csv", "path": str(trace)}
    trace.write_text("id,arrival_s,run_s\na,0,10\n")
    before = keys(workload=workload)
    trace.write_text("id,arrival_s,run_s\na,0,11\n")
    assert before.isdisjoint(keys(workload=workload))


def test_a_trace_on_the_server_is_read_only_for_those_who_may() -> None:
    document = a_study_document(workload={"type": "csv", "path": "/etc/passwd"})
    with pytest.raises(StudyError, match=r"workload\.path: .*`text`"):
        Study.of(document)
    assert Study.of(document, trusted=True).trusted


def test_a_policys_file_is_run_only_for_those_who_may(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "mine.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    document = a_study_document(policies=[{"file": str(tmp_path / "mine.py")}])
    with pytest.raises(StudyError, match=r"policies\[0\].file: .*command line"):
        Study.of(document)
    assert not ran.exists()
