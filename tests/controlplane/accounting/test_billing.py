"""Bills: what an assignment's energy was and cost, measured or modelled, shared with its neighbours
on the node.
"""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from clusters.models import EnergyTariff, Node
from controlplane.accounting.ledger import bill, bill_until
from jobs.models import Assignment, AssignmentSlot, Job, UsagePoint
from tests.builders import a_cluster, a_gpu_type, a_job, a_node

pytestmark = pytest.mark.django_db

START = datetime(2026, 5, 1, 12, tzinfo=UTC)
PRICE = 0.172 * 1.33


def later(hours: float) -> datetime:
    return START + timedelta(hours=hours)


@pytest.fixture
def node() -> Node:
    """A V100 node as ANDREAS measured it: 360 + 170 g watts."""
    gpu_type = a_gpu_type("V100", idle_w=30.0, peak_w=200.0)
    cluster = a_cluster()
    EnergyTariff.objects.filter(cluster=cluster).update(
        effective_from=datetime(2020, 1, 1, tzinfo=UTC)
    )
    cluster.pues.update(effective_from=datetime(2020, 1, 1, tzinfo=UTC))
    return a_node(cluster, gpu_type=gpu_type, gpus=2, base_w=300.0)


def an_assignment(
    node: Node, devices: list[int], hours: tuple[float, float], **values: Any
) -> Assignment:
    """One that was accepted, ran at once and ended: hours since START."""
    begin, end = later(hours[0]), later(hours[1])
    given = {
        "accepted_at": begin,
        "running_at": begin,
        "ended_at": end,
        "state": "succeeded",
        "fence": 1,
        **values,
    }
    assignment = Assignment.objects.create(
        job=a_job(node.cluster), node=node, gpus=len(devices), **given
    )
    held = [node.devices.order_by("pk")[i] for i in devices]
    AssignmentSlot.objects.bulk_create(
        AssignmentSlot(assignment=assignment, device=d, live=False) for d in held
    )
    return assignment


def shared(node: Node, hours: tuple[float, float], slot: int, share: float = 0.5) -> Assignment:
    """One that holds a share of the node's first GPU."""
    assignment = an_assignment(node, [0], hours, share=share)
    assignment.slots.update(slot=slot, share=share)
    return assignment


def a_sample(
    assignment: Assignment, hours: float, watts: float | None, source: str = "measured"
) -> None:
    UsagePoint.objects.create(
        assignment=assignment,
        at=later(hours),
        cores=1.0,
        memory_gb=1.0,
        gpu_power_w=watts,
        power_source=source,
    )


def test_alone_on_a_node_a_job_pays_for_all_of_it(node: Node) -> None:
    result = bill(an_assignment(node, [0, 1], (0, 2)))
    assert result.energy_kwh == pytest.approx(2 * 0.700)
    assert float(result.energy_cost) == pytest.approx(2 * 0.700 * PRICE)
    assert result.power_source == "modelled"


def test_a_job_alone_with_one_of_two_gpus_pays_for_the_idle_one_too(node: Node) -> None:
    assert bill(an_assignment(node, [0], (0, 1))).energy_kwh == pytest.approx(0.530)


def test_neighbours_share_what_the_node_takes_and_their_bills_add_up(node: Node) -> None:
    long, short = an_assignment(node, [0], (0, 4)), an_assignment(node, [1], (1, 3))
    assert bill(long).energy_kwh == pytest.approx(2 * 0.530 + 2 * 0.350)
    assert bill(short).energy_kwh == pytest.approx(2 * 0.350)


def by_cores(node: Node, cores: float, hours: tuple[float, float]) -> Assignment:
    """One without GPUs."""
    assignment = an_assignment(node, [], hours)
    Job.objects.filter(pk=assignment.job_id).update(cores=cores)
    return Assignment.objects.get(pk=assignment.pk)


def test_jobs_without_gpus_share_a_node_by_their_cores_and_their_bills_add_up(
    node: Node,
) -> None:
    small, large = by_cores(node, 4.0, (0, 2)), by_cores(node, 12.0, (0, 1))
    whole = 0.300 + 2 * 0.030  # with both GPUs idle
    assert bill(large).energy_kwh == pytest.approx(whole * 12 / 16)
    assert bill(small).energy_kwh == pytest.approx(whole * 4 / 16 + whole)


def test_beside_jobs_with_gpus_one_without_pays_its_cores_part_of_the_machine(node: Node) -> None:
    """The node has 32 cores: a quarter of its 300 W."""
    trains, batch = an_assignment(node, [0], (0, 1)), by_cores(node, 8.0, (0, 1))
    assert bill(batch).energy_kwh == pytest.approx(0.075)
    assert bill(trains).energy_kwh == pytest.approx(0.530 - 0.075)


def test_a_node_without_gpus_is_billed_to_the_jobs_on_it(node: Node) -> None:
    alone = a_node(node.cluster, gpus=0, base_w=200.0)
    result = bill(by_cores(alone, 2.0, (0, 3)))
    assert result.energy_kwh == pytest.approx(3 * 0.200)
    assert result.power_source == "modelled"


def test_a_neighbour_that_still_runs_counts(node: Node) -> None:
    an_assignment(node, [1], (0, 9), ended_at=None, state="running")
    assert bill(an_assignment(node, [0], (0, 1))).energy_kwh == pytest.approx(0.350)


def test_before_the_first_step_a_gpu_only_idles(node: Node) -> None:
    slow_start = an_assignment(node, [0, 1], (0, 2), running_at=later(0.5), setup_s=1800.0)
    assert bill(slow_start).energy_kwh == pytest.approx(1 * 0.360 + 1 * 0.700)


def test_one_that_never_ran_pays_for_holding_idle_gpus(node: Node) -> None:
    assert bill(
        an_assignment(node, [0], (0, 1), running_at=None, state="failed")
    ).energy_kwh == pytest.approx(0.360)


def test_an_offer_nobody_took_costs_nothing(node: Node) -> None:
    result = bill(
        an_assignment(node, [0], (0, 1), accepted_at=None, running_at=None, state="preempted")
    )
    assert (result.energy_kwh, result.energy_cost) == (0.0, Decimal(0))


def test_measured_watts_hold_until_the_next_sample(node: Node) -> None:
    assignment = an_assignment(node, [0, 1], (0, 4))
    a_sample(assignment, 1, 100.0)
    a_sample(assignment, 3, 300.0)
    result = bill(assignment)
    assert result.energy_kwh == pytest.approx(4 * 0.300 + 3 * 0.100 + 1 * 0.300)
    assert result.power_source == "measured"


def test_samples_without_watts_are_passed_over_and_modelled_ones_are_said_to_be(node: Node) -> None:
    assignment = an_assignment(node, [0, 1], (0, 1))
    a_sample(assignment, 0.1, None)
    a_sample(assignment, 0.2, 500.0, source="modelled")
    result = bill(assignment)
    assert result.energy_kwh == pytest.approx(0.300 + 0.500)
    assert result.power_source == "modelled"


def test_a_bill_follows_the_tariff_over_time(node: Node) -> None:
    EnergyTariff.objects.create(
        cluster=node.cluster, effective_from=later(1), default_price_per_kwh=Decimal("0.5")
    )
    result = bill(an_assignment(node, [0, 1], (0, 2)))
    assert float(result.energy_cost) == pytest.approx(0.700 * 1.33 * (0.172 + 0.5))


def test_a_bill_is_written_to_its_row(node: Node) -> None:
    assignment = an_assignment(node, [0, 1], (0, 1))
    result = bill(assignment)
    stored = Assignment.objects.get(pk=assignment.pk)
    assert stored.energy_kwh == pytest.approx(0.7)
    assert (stored.energy_cost, stored.power_source) == (result.energy_cost, "modelled")


def test_what_it_has_cost_so_far_can_be_asked(node: Node) -> None:
    running = an_assignment(node, [0, 1], (0, 1), ended_at=None, state="running")
    assert bill_until(running, later(0.5)).energy_kwh == pytest.approx(0.350)
    with pytest.raises(ValueError, match="bill_until"):
        bill(running)


def test_two_on_one_gpu_pay_for_it_once_between_them(node: Node) -> None:
    first, second = shared(node, (0, 4), 0), shared(node, (1, 3), 1)
    assert bill(first).energy_kwh == pytest.approx(2 * 0.530 + 2 * 0.530 / 2)
    assert bill(second).energy_kwh == pytest.approx(2 * 0.530 / 2)


def test_shares_say_who_of_two_on_a_gpu_pays_how_much_where_nothing_was_sampled(node: Node) -> None:
    small, large = shared(node, (0, 1), 0, 0.25), shared(node, (0, 1), 1, 0.75)
    assert (bill(small).energy_kwh, bill(large).energy_kwh) == pytest.approx(
        (0.530 / 4, 0.530 * 3 / 4)
    )


def test_bills_of_sharers_and_neighbours_add_up_to_the_nodes_power(node: Node) -> None:
    rows = [shared(node, (0, 1), 0), shared(node, (0, 1), 1), an_assignment(node, [1], (0, 1))]
    for assignment, watts in zip(rows, (60.0, 60.0, 150.0), strict=True):
        a_sample(assignment, 0.1, watts)
    assert sum(bill(assignment).energy_kwh for assignment in rows) == pytest.approx(
        0.300 + 0.120 + 0.150
    )


def test_jobs_of_other_nodes_are_no_neighbours(node: Node) -> None:
    other = a_node(node.cluster, gpu_type="V100", gpus=2, base_w=300.0)
    an_assignment(other, [0, 1], (0, 2))
    by_cores(other, 8.0, (0, 2))
    assert bill(an_assignment(node, [0], (0, 2))).energy_kwh == pytest.approx(2 * 0.530)
