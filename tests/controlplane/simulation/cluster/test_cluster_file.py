from math import inf
from pathlib import Path
from typing import Any

import pytest

from controlplane.simulation.cluster.cluster_file import ClusterFileError, scenario_of
from controlplane.simulation.study.document import StudyError
from controlplane.simulation.study.files import cluster_of
from policies.contract.snapshot import PowerCapStep, PriceInterval, TeamOrder, TeamView

FILE = """
name: two rooms
round_s: 120
nodes:
  - {name: big, gpu_type: V100, gpus: 2, count: 2, cores: 64, memory_gb: 256, labels: [imagenet]}
  - {name: small, gpu_type: A10, gpus: 1, power: {base_w: 200, idle_w: 10, peak_w: 150}}
gpu_types:
  - {name: V100, tflops: 15.7, memory_gb: 32}
energy:
  price_per_kwh: 0.10
  pue: 1.33
  emissions_g_per_kwh: 250
  by_hour:
    - {from_hour: 8, to_hour: 20, price_per_kwh: 0.30}
power_cap_w: 5000
power_caps:
  - {from_hour: 20, to_hour: 8, power_cap_w: 2000}
start_hour: 6
days: 1
"""


def a_cluster(**fields: Any) -> dict[str, Any]:
    return {"nodes": [{"name": "n", "gpu_type": "V100", "gpus": 2}], **fields}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    return path


def test_a_file_gives_nodes_by_count_with_their_devices_and_watts(file: Path) -> None:
    scenario = scenario_of(cluster_of(file.name, file.parent))
    assert [n.id for n in scenario.nodes] == ["big-1", "big-2", "small"]
    assert scenario.nodes[0].power_w == (360.0, 530.0, 700.0)
    assert scenario.nodes[2].power_w == (210.0, 350.0)
    assert [d.id for d in scenario.nodes[0].devices] == ["gpu0", "gpu1"]
    assert {d.memory_gb for d in scenario.nodes[0].devices} == {32.0}
    assert (scenario.nodes[0].cores, scenario.nodes[2].cores) == (64.0, inf)
    assert (scenario.cluster, scenario.round_s, scenario.power_cap_w) == (
        "two rooms",
        120.0,
        5000.0,
    )


def test_prices_and_caps_by_hour_begin_at_the_hour_at_which_the_simulation_starts(
    file: Path,
) -> None:
    scenario = scenario_of(cluster_of(file.name, file.parent))
    assert scenario.energy[:3] == (
        PriceInterval(0.0, 7200.0, 0.10, 1.33, 250.0),
        PriceInterval(7200.0, 50_400.0, 0.30, 1.33, 250.0),
        PriceInterval(50_400.0, 64_800.0, 0.10, 1.33, 250.0),
    )
    assert scenario.power_caps[:2] == (
        PowerCapStep(0.0, 7200.0, 2000.0),
        PowerCapStep(50_400.0, 64_800.0, 2000.0),
    )
    assert all(
        a.to_s == b.from_s for a, b in zip(scenario.energy, scenario.energy[1:], strict=False)
    )


def test_one_price_holds_for_ever() -> None:
    assert scenario_of(a_cluster(energy={"price_per_kwh": 0.172, "pue": 1.33})).energy == (
        PriceInterval(0.0, inf, 0.172, 1.33),
    )


def test_steps_of_prices_are_taken_as_they_are() -> None:
    steps = [
        {"from_s": 0, "to_s": 60, "price_per_kwh": 0.1, "pue": 1.1},
        {"from_s": 60, "to_s": None, "price_per_kwh": 0.2, "pue": 1},
    ]
    found = scenario_of(a_cluster(energy={"steps": steps})).energy
    assert found == (PriceInterval(0.0, 60.0, 0.1, 1.1), PriceInterval(60.0, inf, 0.2, 1.0))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"nodes": []}, "nodes: a cluster has at least one node"),
        (
            {"nodes": [{"name": "n", "gpu_type": "V100", "gpus": 0}]},
            r"nodes\[0\].gpu_type: leave it out, the node has no GPUs",
        ),
        (
            {"nodes": [{"name": "n", "gpus": 0, "power_w": [100]}]},
            r"nodes\[0\].cores: a node without GPUs needs a number of cores",
        ),
        *(
            (
                {"nodes": [{"name": "n", "cores": 0, **gpus}]},
                r"nodes\[0\].cores: must be above 0",
            )
            for gpus in ({"gpus": 0}, {"gpus": 1, "gpu_type": "V100"})
        ),
        ({"nodes": [{"name": "n", "gpus": 1}]}, r"nodes\[0\].gpu_type: is missing"),
        (
            {"nodes": [{"name": "n", "gpus": 0, "cores": 8}]},
            r"nodes\[0\].power_w: give the watts of a node with no GPUs, such as",
        ),
        ({"nodes": [{"name": "n", "gpu_type": "V100"}]}, r"nodes\[0\].gpus: is missing"),
        (
            {"nodes": [{"name": "n", "gpu_type": "X9", "gpus": 1}]},
            r"nodes\[0\].power_w: give the watts of a node with X9, such as",
        ),
        (
            {"nodes": [{"name": "n", "gpu_type": "T4", "gpus": 1, "power_w": [1.0]}]},
            r"nodes\[0\].power_w: must have 2 numbers",
        ),
        (
            {"nodes": [{"name": "n", "gpu_type": "T4", "gpus": 1}] * 2},
            "nodes: two nodes are called 'n'",
        ),
        ({"energy": {"price": 1}}, "energy.price: no such field; known are: price_per_kwh, pue"),
        (
            {"energy": {"price_per_kwh": float("nan")}},
            "energy.price_per_kwh: must be a finite number",
        ),
        ({"energy": {"pue": 0.5}}, "energy.pue: must be >= 1"),
        ({"round_s": 0}, "round_s: must be >= 1"),
        ({"value_of_time": -1}, "value_of_time: must be >= 0"),
        ({"value_of_time": 1e9}, "value_of_time: must be .*10000"),
        (
            {"power_caps": [{"from_hour": 25, "to_hour": 3, "power_cap_w": 1}]},
            r"power_caps\[0\].from_hour: must be >= 0 and <= 24",
        ),
        (
            {"energy": {"steps": [{"from_s": 5, "to_s": 5, "price_per_kwh": 1, "pue": 1}]}},
            r"energy.steps\[0\].to_s: must be > from_s",
        ),
        *(
            (
                {
                    "energy": {
                        "steps": [
                            {"from_s": 0, "to_s": 3600, "price_per_kwh": 0.1, "pue": 1},
                            {"from_s": start_s, "to_s": None, "price_per_kwh": 0.2, "pue": 1},
                        ]
                    }
                },
                r"energy.steps\[1\].from_s: must be 3600, where the step before it ends",
            )
            for start_s in (1800, 7200)
        ),
    ],
)
def test_an_error_names_the_field_and_what_would_be_right(
    fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(ClusterFileError, match=words):
        scenario_of(a_cluster(**fields))


def test_a_file_that_is_no_yaml_or_holds_no_fields_is_refused(tmp_path: Path) -> None:
    for text in ("nodes: [", "- 1"):
        (tmp_path / "bad.yaml").write_text(text)
        with pytest.raises(StudyError):
            cluster_of("bad.yaml", tmp_path)
    with pytest.raises(StudyError, match="cannot be read"):
        cluster_of("none.yaml", tmp_path)


def test_a_file_names_teams_and_what_gpus_cost_by_the_hour() -> None:
    teams = [{"name": "red", "weight": 3}, {"name": "blue", "order": "fifo"}]
    types = [{"name": "V100", "tflops": 15.7, "memory_gb": 32, "price_per_hour": 3.1}]
    scenario = scenario_of(a_cluster(teams=teams, gpu_types=types))
    assert scenario.teams == (TeamView("red", 3.0), TeamView("blue", 1.0, TeamOrder.FIFO))
    assert [of.price_per_hour for of in scenario.gpu_types] == [3.1]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"teams": [{"name": "red", "weight": 0}]}, "teams[0].weight: must be >= 0.001"),
        ({"teams": [{"name": "red"}, {"name": "red"}]}, "teams[1].name: 'red' is there twice"),
        (
            {"gpu_types": [{"name": "T", "tflops": 1, "memory_gb": 1, "price_per_hour": -1}]},
            "gpu_types[0].price_per_hour: must be",
        ),
    ],
)
def test_a_wrong_team_or_price_is_named(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ClusterFileError) as raised:
        scenario_of(a_cluster(**fields))
    assert str(raised.value).startswith(said)
