"""Units of a batch job as they are submitted: what is taken, and what is refused with a remedy."""

from math import nan
from typing import Any

import pytest
from django.contrib.auth.models import User
from hypothesis import given
from hypothesis import strategies as st

from clusters.models import Cluster
from jobs.kinds import kinds_for
from jobs.models import Job
from jobs.services import job_data
from jobs.submission.feasibility import Demand, Infeasible, NodeCapacity, check_feasible
from jobs.submission.validation import JobInvalid, JobRequest, validate_job
from tests.builders import a_cluster, a_node, a_team, a_user
from tests.builders_jobs import job_fields


@pytest.fixture
def user(db: None) -> User:
    return a_user("ada", team=a_team("research"))


@pytest.fixture
def cluster(db: None) -> Cluster:
    """Two nodes of 16 cores with 4 GPUs each, and one of 8 cores without."""
    cluster = a_cluster(name="lab")
    for _ in range(2):
        a_node(cluster, gpus=4, cores=16, memory_gb=64)
    a_node(cluster, gpus=0, cores=8, memory_gb=32)
    return cluster


def taken(user: User, **fields: Any) -> JobRequest:
    return validate_job(user, job_fields(**{"steps": None, **fields}))


def refused(user: User, **fields: Any) -> dict[str, list[str]]:
    with pytest.raises(JobInvalid) as raised:
        taken(user, **fields)
    return raised.value.fields


def test_a_batch_job_is_one_unit_unless_it_says_otherwise(user: User, cluster: Cluster) -> None:
    job = taken(user).job
    assert (job.units, job.units_per_node, job.nodes, job.processes) == (1, 0, 0, "first")
    assert not {"units", "units_per_node", "nodes", "processes"} & set(job_data(_saved(job, user)))


def test_a_job_of_several_units_can_be_submitted_again_as_it_is(
    user: User, cluster: Cluster
) -> None:
    job = taken(user, units=4, units_per_node=2, nodes=2, processes="each", gpus=4).job
    assert (job.units, job.units_per_node, job.nodes, job.processes) == (4, 2, 2, "each")
    again = validate_job(user, job_data(_saved(job, user))).job
    assert (again.units, again.units_per_node, again.nodes, again.processes) == (4, 2, 2, "each")
    assert again.gpus_min == 4


def _saved(job: Job, user: User) -> Job:
    job.user, (job.kind,) = user, kinds_for({(job.team_id, "k" * 64): ""}).values()
    job.save()
    return job


@pytest.mark.parametrize("field", ["units", "units_per_node", "nodes"])
@pytest.mark.parametrize("value", [0, -1, nan, 1.5, "two", 10**9, True])
def test_a_number_of_units_or_nodes_is_a_whole_number_from_1(
    user: User, cluster: Cluster, field: str, value: object
) -> None:
    assert "from 1 to" in refused(user, **{field: value})[field][0]


def test_a_process_runs_first_or_each(user: User, cluster: Cluster) -> None:
    assert refused(user, processes="all")["processes"][0].startswith("must be first or each")


@pytest.mark.parametrize(
    "field", [{"units": 2}, {"units_per_node": 1}, {"nodes": 1}, {"processes": "each"}]
)
def test_a_training_job_has_no_units_and_is_told_what_to_do(
    user: User, cluster: Cluster, field: dict[str, Any]
) -> None:
    ((name, (message,)),) = refused(user, steps=10, **field).items()
    assert name in field
    assert "a training job is spread by its GPUs" in message


def test_gpus_are_of_the_whole_job_and_divide_evenly(user: User, cluster: Cluster) -> None:
    assert taken(user, units=2, gpus=8).job.gpus_max == 8
    (message,) = refused(user, units=3, gpus=4)["gpus"]
    assert message == "4 GPUs cannot be divided evenly over 3 units; give 0 or a multiple of 3"


def test_nodes_and_units_per_node_must_hold_the_units(user: User, cluster: Cluster) -> None:
    assert "need as many units" in refused(user, units=2, nodes=3)["nodes"][0]
    (message,) = refused(user, units=5, nodes=2, units_per_node=2)["units_per_node"]
    assert message.startswith("2 nodes with at most 2 units each hold 4 of 5 units")


def test_a_unit_that_no_node_can_hold_is_named_with_the_largest_that_could(
    user: User, cluster: Cluster
) -> None:
    (message,) = refused(user, units=2, cores=17)["cores"]
    expected = "no node of lab that may run it has 17 cores for a unit; the largest has 16"
    assert message == expected
    (message,) = refused(user, units=2, gpus=10)["gpus"]
    assert "no node of lab can serve 5 GPUs for a unit" in message


def test_more_units_than_all_nodes_hold_together_are_refused(user: User, cluster: Cluster) -> None:
    assert taken(user, units=5, cores=8).warnings == ()
    (message,) = refused(user, units=6, cores=8)["units"]
    expected = "all nodes of lab hold at most 5 such units together, not 6"
    assert message == f"{expected}; ask for fewer or smaller ones"
    assert "hold at most 4 such units" in refused(user, units=5, cores=8, nodes=2)["units"][0]
    assert "only 2 nodes of lab could" in refused(user, units=3, cores=9, nodes=3)["nodes"][0]
    assert "at most 3 such" in refused(user, units=4, units_per_node=1)["units"][0]


@pytest.mark.parametrize(("units", "fits"), [(11, True), (12, False)])
def test_equal_parts_of_what_a_node_has_fit_into_it_together(units: int, fits: bool) -> None:
    large = NodeCapacity("", 0, 16.0, 1e8, frozenset(), frozenset())
    demand = Demand(0, 0, (), 0.1, 1e8 / 11, (), units=units)
    if fits:
        assert check_feasible("lab", demand, [large]) == []
    else:
        with pytest.raises(Infeasible, match="hold at most 11 such units together, not 12"):
            check_feasible("lab", demand, [large])


def test_resources_of_a_unit_that_nobody_offers_are_warned_of(user: User, cluster: Cluster) -> None:
    (warning,) = taken(user, units=2, resources={"mic": 1}).warnings
    assert warning.startswith("resources: no node that fits has 1 mic for a unit yet")


CAPACITIES = st.lists(
    st.builds(
        NodeCapacity,
        gpu_type=st.just("V100"),
        gpus=st.integers(0, 4),
        cores=st.integers(1, 16).map(float),
        memory_gb=st.integers(1, 32).map(float),
        labels=st.just(frozenset()),
        features=st.just(frozenset()),
        count=st.integers(1, 3),
    ),
    min_size=1,
    max_size=4,
)
DEMANDS = st.tuples(
    st.integers(1, 8), st.integers(0, 2), st.integers(1, 8), st.integers(1, 8),
    st.integers(0, 4), st.integers(0, 4),
)  # fmt: skip


@given(CAPACITIES, DEMANDS)
def test_a_job_is_refused_just_where_its_units_cannot_be_put_on_the_empty_nodes(
    capacities: list[NodeCapacity], wanted: tuple[int, ...]
) -> None:
    units, gpus, cores, memory_gb, most, nodes = wanted
    if nodes > units or (most and nodes and most * nodes < units):
        nodes = 0
    demand = Demand(
        units * gpus, units * gpus, (), cores, memory_gb, (), units=units, units_per_node=most,
        nodes=nodes,
    )  # fmt: skip
    empty = [[float(n.gpus), n.cores, n.memory_gb] for n in capacities for _ in range(n.count)]
    fits = _can_be_put(empty, [gpus, cores, memory_gb], units, most or units, nodes)
    try:
        check_feasible("lab", demand, capacities)
    except Infeasible:
        assert not fits
    else:
        assert fits


def _can_be_put(
    nodes: list[list[float]], unit: list[int], units: int, most: int, exactly: int
) -> bool:
    """Return True if units can be taken off the nodes one by one, trying the best node each time.

    All units are equal and a node holds any part of them, so that nodes fill independently.
    """
    held = []
    for free in nodes:
        count = 0
        while count < most and all(has >= wants for has, wants in zip(free, unit, strict=True)):
            free = [has - wants for has, wants in zip(free, unit, strict=True)]
            count += 1
        held.append(count)
    chosen = sorted(held, reverse=True)[: exactly or len(held)]
    return sum(chosen) >= units and (not exactly or (len(chosen) == exactly and all(chosen)))
