"""One trace with gangs over two GPU types goes the same way through both worlds."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from clusters.models import Cluster
from jobs.models import Job
from policies.contract.snapshot import KindView, Source, Throughput
from tests.builders_worlds import Incident, LookingEngine
from tests.controlplane.test_worlds_agree import INCIDENTS, RATES, both_worlds, the_wide_jobs
from tests.controlplane.test_worlds_agree import engine as _engine

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

engine = _engine
"""The clock that Django reads too."""

MIXED = (("M1", 0, 500), ("M2", 262, 300), ("M3", 640, 800))
"""Training jobs of four GPUs, which only nodes of both types have together."""

OVER_NODES = 0.7
"""Fraction of its speed that a job of two GPUs keeps over nodes."""


def the_mixed_jobs(
    cluster: Cluster, kinds: dict[str, KindView], trace: Sequence[tuple[str, int, int]]
) -> list[Job]:
    """Training jobs of four GPUs that may mix types; a T4 among them makes all slower."""
    jobs = the_wide_jobs(cluster, kinds, trace)
    Job.objects.filter(pk__in=[job.pk for job in jobs]).update(gpus_min=4, gpus_max=4, may_mix=True)
    known = (
        Throughput("V100", 4, 2.6, Source.MEASURED, spread=True),
        Throughput("T4", 4, 1.3, Source.MEASURED, spread=True),
    )
    kinds["wide"] = replace(kinds["wide"], throughputs=known)

    # The policy may spread jobs of two GPUs, too: it is told how fast they are then.
    for name in RATES:
        kind = kinds[name]
        over_nodes = [
            replace(one, steps_per_s=OVER_NODES * one.steps_per_s, spread=True)
            for one in kind.throughputs
            if one.gpus == 2
        ]
        kinds[name] = replace(kind, throughputs=(*kind.throughputs, *over_nodes))
    return jobs


@pytest.mark.parametrize("incidents", [(), INCIDENTS], ids=["quiet", "nodes_lost"])
def test_gangs_over_two_types_run_the_same_in_both_worlds(
    incidents: Sequence[Incident], engine: LookingEngine
) -> None:
    simulation = both_worlds("hadar", {}, engine, incidents, wide=MIXED, gangs=the_mixed_jobs)
    type_of = {node.id: node.gpu_type for node in simulation.state.scenario.nodes}
    launches = [
        launch
        for job in simulation.state.jobs.values()
        if job.view.may_mix
        for launch in job.launches
    ]
    assert len(launches) >= len(MIXED)
    for launch in launches:
        assert {type_of[seat.node] for seat in launch.ranks} == {"V100", "T4"}
