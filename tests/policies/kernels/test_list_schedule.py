"""List schedule on positions: the first job first, each at its earliest start and last position."""

from policies.batch.cp.list_schedule import UnitPlace, listed
from tests.builders_policies import a_batch_job, a_cpu_node, a_snapshot
from tests.policies.batch.cp.instances import an_instance, runs


def test_jobs_take_the_last_positions_of_the_last_nodes_and_later_ones_what_is_left() -> None:
    jobs = [
        runs("c2", 50.0, units=2),
        a_batch_job("first", 2, cores=3.0, walltime_s=100.0),
        a_batch_job("second", cores=1.0, walltime_s=200.0, arrival_s=1.0),
        a_batch_job("third", cores=4.0, walltime_s=400.0, arrival_s=2.0),
    ]
    instance = an_instance(a_snapshot([a_cpu_node(f"c{i}", cores=4.0) for i in range(3)], jobs))
    found = listed(instance, [job.nodes for job in instance.jobs])
    assert [job.source.row for job in instance.jobs] == [1, 2, 3]
    assert found.starts == (0, 0, 10)
    assert found.places == (
        (UnitPlace(0, (1,)), UnitPlace(1, (1,))),
        (UnitPlace(2, (3,)),),
        (UnitPlace(1, (0,)),),
    )
