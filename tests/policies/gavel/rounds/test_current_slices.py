"""Placements on which running jobs may go on."""

from dataclasses import replace

from policies.contract.snapshot import Snapshot
from policies.gavel.allocation.observe import GroupingOptions, observe
from policies.gavel.rounds.placements import GroupRequests, current_slices
from policies.placement.time_slices import ALONE
from tests.builders_policies import a_device, a_job, a_node, a_snapshot, on

NODES = [a_node("n1", gpus=2), a_node("n2", gpus=2)]


def jobs_in_place(snapshot: Snapshot) -> dict[str, tuple[str, tuple[str, ...]]]:
    """By job its node and devices, of jobs that may go on."""
    observed = observe(snapshot)
    layout = observed.state.layout
    found = {}
    for row, current in current_slices(observed, GroupRequests(observed)).items():
        (part,) = current.allocation.parts
        found[snapshot.jobs[row].id] = layout.nodes[part.node].id, layout.ids(*part[::2])
    return found


def test_a_running_job_may_go_on_where_it_is() -> None:
    jobs = [a_job("a", running=on("n1", "gpu0")), a_job("b", running=on("n2", "gpu1")), a_job("c")]
    found = jobs_in_place(a_snapshot(NODES, jobs))
    assert found == {"a": ("n1", ("gpu0",)), "b": ("n2", ("gpu1",))}


def test_a_job_that_needs_more_gpus_than_it_has_may_not_go_on() -> None:
    wider = a_job("a", running=on("n1", "gpu0"), gpus_min=2, gpus_max=2)
    jobs = [wider, a_job("b", running=on("n1", "gpu1"))]
    assert list(jobs_in_place(a_snapshot(NODES, jobs))) == ["b"]


def test_a_job_on_a_broken_device_may_not_go_on() -> None:
    broken = a_node("n1", devices=(a_device("gpu0", healthy=False), a_device("gpu1")))
    jobs = [a_job("a", running=on("n1", "gpu0")), a_job("b", running=on("n1", "gpu1"))]
    assert list(jobs_in_place(a_snapshot([broken], jobs))) == ["b"]


def test_a_job_on_a_device_that_is_gone_may_not_go_on() -> None:
    jobs = [a_job("a", running=on("n1", "gpu7")), a_job("b", running=on("n9", "gpu0"))]
    assert jobs_in_place(a_snapshot(NODES, jobs)) == {}


def test_jobs_on_one_device_are_partners() -> None:
    node = a_node("n1", devices=(a_device("gpu0", slots=2),))
    runs = on("n1", "gpu0")
    half = (replace(runs[0], ranks=(replace(runs[0].ranks[0], share=0.5),)),)
    jobs = [a_job(name, running=half, may_share=True) for name in "ab"]
    snapshot = a_snapshot([node], jobs)
    observed = observe(snapshot)
    assert current_slices(observed, GroupRequests(observed)) == {}  # pairs are not asked for
    observed = observe(snapshot, GroupingOptions(pairs=True))
    found = current_slices(observed, GroupRequests(observed))
    assert {row: current.partner for row, current in found.items()} == {0: 1, 1: 0}
    alone = observe(a_snapshot([node], jobs[:1]), GroupingOptions(pairs=True))
    assert current_slices(alone, GroupRequests(alone))[0].partner == ALONE
