from pathlib import Path

import pytest
import yaml

from controlplane.simulation.study.document import Study, StudyError
from controlplane.simulation.study.files import (
    policy_of,
    read_study,
    seeds_of,
    switches_of,
    workload_of,
)
from tests.builders_outcomes import A_CLUSTER, a_study_document


def test_a_studys_file_may_name_its_cluster_and_its_workload_as_files_beside_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(dict(A_CLUSTER)))
    (tmp_path / "jobs.yaml").write_text("type: poisson\njobs: 5\n")
    text = (
        "cluster: cluster.yaml\nworkload: jobs.yaml\npolicies: [fifo,"
        " 'randomized_greedy:mode=coded']\n"
    )
    (tmp_path / "study.yaml").write_text(text)
    document = read_study(tmp_path / "study.yaml")
    assert document["cluster"] == A_CLUSTER
    assert document["workload"] == {"type": "poisson", "jobs": 5}
    assert [p.parameters for p in Study.of(document).policies] == [{}, {"mode": "coded"}]


def test_paths_in_a_studys_file_count_from_its_folder(tmp_path: Path) -> None:
    document = a_study_document(
        workload={"type": "swf", "path": "a.swf"}, policies=["mine.py", {"file": "other.py"}]
    )
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(document))
    found = read_study(tmp_path / "study.yaml")
    assert found["workload"]["path"] == str(tmp_path / "a.swf")
    assert [p["file"] for p in found["policies"]] == [
        str(tmp_path / "mine.py"),
        str(tmp_path / "other.py"),
    ]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("andreas:nodes=10,tuning=0.7", {"type": "andreas", "nodes": 10, "tuning": 0.7}),
        ("andreas", {"type": "andreas"}),
        (
            'poisson:jobs=5,gpus={"1": 0.7, "2": 0.3}',
            {"type": "poisson", "jobs": 5, "gpus": {"1": 0.7, "2": 0.3}},
        ),
        (
            "poisson:gap_s=1e2,due_factor=[1, 4]",
            {"type": "poisson", "gap_s": 100.0, "due_factor": [1, 4]},
        ),
        ("trace.swf", {"type": "swf", "path": "/data/trace.swf"}),
        ("gavel:path=trace.txt", {"type": "gavel", "path": "/data/trace.txt"}),
        (
            "gavel_generator:jobs=5,throughputs=tables.json",
            {"type": "gavel_generator", "jobs": 5, "throughputs": "/data/tables.json"},
        ),
        ("/else/trace.csv", {"type": "csv", "path": "/else/trace.csv"}),
    ],
)
def test_a_workload_in_words(words: str, wanted: dict[str, object]) -> None:
    assert workload_of(words, Path("/data")) == wanted


def test_a_policy_in_words() -> None:
    assert policy_of("fifo") == {"name": "fifo", "parameters": {}}
    assert policy_of("randomized_greedy:mode=coded,rho=1e2") == {
        "name": "randomized_greedy",
        "parameters": {"mode": "coded", "rho": 100.0},
    }
    assert policy_of("/tmp/mine.py:x=1") == {"file": "/tmp/mine.py", "parameters": {"x": 1}}


def test_seeds_and_switches_in_words() -> None:
    assert seeds_of("1,2,7") == [1, 2, 7]
    assert seeds_of("1-3,9") == [1, 2, 3, 9]
    assert switches_of(["restart_cost_s=30", "stop_s=1.5"]) == {"restart_cost_s": 30, "stop_s": 1.5}


@pytest.mark.parametrize("words", ["", "one", "3-1", "1-99999999", "-1"])
def test_seeds_that_are_none_are_refused(words: str) -> None:
    with pytest.raises(StudyError, match="seeds: "):
        seeds_of(words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("fifo:x", "policy fifo: write name=value, not 'x'"),
        ("fifo:x=1,x=2", "x is given twice"),
        ("fifo:x=[1", "fifo: x: is no YAML"),
    ],
)
def test_parameters_that_cannot_be_read_are_named(words: str, message: str) -> None:
    with pytest.raises(StudyError) as error:
        policy_of(words)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "is no YAML"),
        ("- 1\n", "must hold fields by name"),
        ("seeds: [1]\nseeds: [2]\n", "line 2: 'seeds' is given twice"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    with pytest.raises(StudyError) as error:
        read_study(path)
    assert str(path) in str(error.value)
    assert message in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"none.yaml cannot be read: No such file"):
        read_study(tmp_path / "none.yaml")
