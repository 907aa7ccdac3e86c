import json
from pathlib import Path
from typing import Any

import pytest

from controlplane.simulation.cluster.cluster_file import scenario_of
from controlplane.simulation.study.document import StudyError
from controlplane.simulation.study.files import cluster_of

EURORA: dict[str, Any] = {
    "groups": {
        "mic": {"core": 16, "mem": 16777216, "mic": 2},
        "gpu": {"core": 16, "mem": 16777216, "gpu": 2},
    },
    "resources": {"mic": 32, "gpu": 31},
}


def written(tmp_path: Path, **fields: Any) -> dict[str, Any]:
    (tmp_path / "system.json").write_text(json.dumps({**EURORA, **fields}))
    return cluster_of("system.json", tmp_path)


@pytest.mark.parametrize("field", ["resources", "nodes"])
def test_groups_become_nodes_with_their_resources(tmp_path: Path, field: str) -> None:
    (tmp_path / "s.json").write_text(
        json.dumps({"groups": EURORA["groups"], field: EURORA["resources"]})
    )
    nodes = scenario_of(cluster_of("s.json", tmp_path)).nodes
    assert [n.name for n in nodes[30:34]] == ["mic-31", "mic-32", "gpu-1", "gpu-2"]
    assert (nodes[0].cores, nodes[0].resources, len(nodes[0].devices)) == (16, (("mic", 2.0),), 0)
    assert (len(nodes[-1].devices), nodes[-1].gpu_type, len(nodes)) == (2, "GPU", 63)
    assert nodes[0].memory_gb == pytest.approx(17.179869184)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"groups": {"mic": {"core": 0}, "gpu": {"core": 1}}}, "groups.mic.core: a node needs"),
        ({"groups": {"mic": {"mem": 9}, "gpu": {"core": 1}}}, "groups.mic.core: a node needs"),
        ({"groups": {"mic": 5, "gpu": {"core": 1}}}, "groups.mic: must give amounts"),
        ({"groups": {"mic": {"core": -1}, "gpu": {}}}, "groups.mic.core: must be a whole number"),
        ({"groups": {"mic": {"core": 1.5}, "gpu": {}}}, "groups.mic.core: must be a whole"),
        ({"groups": {"mic": {"core": "8"}, "gpu": {}}}, "groups.mic.core: must be a whole"),
        ({"resources": {"mic": 0, "gpu": 1}}, "resources.mic: must be a whole number >= 1"),
        ({"resources": {"mic": 1}}, "resources.gpu: is missing"),
        ({"resources": {"mic": 1, "gpu": 1, "fat": 1}}, "resources.fat: is not among the groups"),
        ({"resources": 3}, "resources: must give the number of nodes"),
        ({"equivalence": {"processor": {"gpu": 1}}}, "equivalence: must be such as"),
        ({"equivalence": {"core": {"processor": 2}}}, "equivalence: must be such as"),
        ({"equivalence": {"processor": {"core": 2, "mem": 1}}}, "equivalence: must be such as"),
        ({"equivalence": {"processor": {"core": 0}}}, "equivalence.processor.core: must be a"),
        ({"equivalence": {"processor": {"core": 32}}}, "groups.mic.core: must be >= 32"),
        ({"equivalence": []}, "equivalence: must be such as"),
        ({"power": {}}, "power: is not read here"),
    ],
)
def test_a_bad_configuration_is_refused_with_the_field(
    tmp_path: Path, fields: dict[str, Any], problem: str
) -> None:
    with pytest.raises(StudyError, match=problem):
        written(tmp_path, **fields)


def test_equivalent_cores_make_a_processor(tmp_path: Path) -> None:
    document = written(tmp_path, equivalence={"processor": {"core": 3}})
    assert [node["cores"] for node in document["nodes"]] == [5, 5]


def test_accasims_own_file_indented_by_tabs_is_read(tmp_path: Path) -> None:
    own = {
        "system_name": "Seth - HPC2N", "groups": {"g0": {"core": 2, "mem": 4194304}},
        "resources": {"g0": 120}, "equivalence": {"processor": {"core": 1}},
        "start_time": 1027839845,
    }  # fmt: skip
    (tmp_path / "HPC2N.config").write_text("\ufeff" + json.dumps(own, indent="\t"))
    scenario = scenario_of(cluster_of("HPC2N.config", tmp_path))
    assert (scenario.cluster, len(scenario.nodes), scenario.nodes[0].cores) == (
        "Seth - HPC2N", 120, 2,
    )  # fmt: skip
