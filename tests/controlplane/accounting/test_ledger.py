"""The energy ledger: what an assignment drew, hour by hour."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.models import EnergyTariff, Node
from controlplane.accounting.ledger import bill, bill_until, hours, meter, write_entries
from controlplane.accounting.models import EnergyEntry
from jobs.models import Assignment
from tests.builders_costs import PRICE, a_priced_cluster, a_sample, a_v100_node, later, some_work

DAY_S = 86_400.0


@pytest.fixture(name="node")
def _node() -> Node:
    return a_v100_node(a_priced_cluster())


def entries(assignment: Assignment) -> list[EnergyEntry]:
    return list(EnergyEntry.objects.filter(assignment=assignment).order_by("hour"))


@given(
    st.floats(1.7e9, 1.8e9),
    st.floats(1.0, 3 * DAY_S),
    st.sampled_from(["UTC", "Europe/Rome", "Asia/Kolkata", "Australia/Lord_Howe"]),
)
def test_the_hours_of_a_time_touch_each_other_and_cover_it(
    from_s: float, length_s: float, zone: str
) -> None:
    found = list(hours(zone, from_s, from_s + length_s))
    assert found[0][1] == from_s
    assert found[-1][2] == from_s + length_s
    assert all(before[2] == after[1] for before, after in pairwise(found))
    assert all(start <= a < b <= start + 3600.0 for start, a, b in found)
    assert len({start for start, _, _ in found}) == len(found)


@pytest.mark.django_db
def test_the_hours_of_an_assignment_add_up_to_its_bill(node: Node) -> None:
    work = some_work(node, (0.5, 3.25))
    a_sample(work, 1.0, 250.0)
    a_sample(work, 2.1, 380.0)
    billed = bill(work)
    kept = entries(work)
    assert [e.hour for e in kept] == [later(h) for h in (0, 1, 2, 3)]
    assert sum(e.measured_kwh + e.modelled_kwh + e.rest_kwh for e in kept) == pytest.approx(
        billed.energy_kwh
    )
    assert sum((e.cost for e in kept), Decimal(0)) == billed.energy_cost
    assert sum(e.gpu_s for e in kept) == pytest.approx(2 * 2.75 * 3600)


@pytest.mark.django_db
def test_measured_and_modelled_energy_and_the_rest_of_the_node_are_told_apart(node: Node) -> None:
    work = some_work(node, (0, 1))
    a_sample(work, 0.0, 350.0)
    a_sample(work, 0.5, 400.0, source="modelled")
    bill(work)
    [hour] = entries(work)
    assert hour.measured_kwh == pytest.approx(0.175)
    assert hour.modelled_kwh == pytest.approx(0.200)
    assert hour.rest_kwh == pytest.approx(0.300)
    assert hour.facility_kwh == pytest.approx(0.675 * 1.33)
    assert hour.emissions_g == pytest.approx(0.675 * 1.33 * 300.0)
    assert float(hour.measured_cost) == pytest.approx(0.175 * PRICE)
    assert float(hour.cost) == pytest.approx(0.675 * PRICE)


@pytest.mark.django_db
def test_each_hour_has_the_price_of_its_time(node: Node) -> None:
    EnergyTariff.objects.create(
        cluster=node.cluster, effective_from=later(1), default_price_per_kwh=Decimal("0.5")
    )
    work = some_work(node, (0, 2))
    bill(work)
    assert [float(e.cost) for e in entries(work)] == [
        pytest.approx(0.7 * PRICE),
        pytest.approx(0.7 * 0.5 * 1.33),
    ]


@pytest.mark.django_db
def test_a_prediction_is_for_the_same_time_and_missing_where_nothing_was_predicted(
    node: Node,
) -> None:
    foreseen, unforeseen = (
        some_work(node, (0, 0.5), predicted_power_w=650.0),
        some_work(node, (2, 3)),
    )
    bill(foreseen)
    bill(unforeseen)
    [hour] = entries(foreseen)
    assert hour.predicted_kwh == pytest.approx(0.325)
    assert float(hour.predicted_cost or 0) == pytest.approx(0.325 * PRICE)
    assert [(e.predicted_kwh, e.predicted_cost) for e in entries(unforeseen)] == [(None, None)]


@pytest.mark.django_db
def test_running_work_comes_into_the_ledger_and_its_past_hours_stay(node: Node) -> None:
    work = some_work(node, (0, 9), ended_at=None, state="running")
    assert meter(later(1.5)) == 1
    first = entries(work)
    assert sum(e.cost for e in first) == bill_until(work, later(1.5)).energy_cost
    assert meter(later(1.5) + timedelta(minutes=1)) == 0
    assert meter(later(2.5)) == 1
    kept = entries(work)
    assert [e.pk for e in kept][:1] == [first[0].pk]
    assert sum(e.cost for e in kept) == bill_until(work, later(2.5)).energy_cost
    assert kept[-1].gpu_s == pytest.approx(2 * 1800)


@pytest.mark.django_db
def test_a_sample_holds_over_the_edge_of_an_hour_that_is_written_later(node: Node) -> None:
    work = some_work(node, (0, 9), ended_at=None, state="running")
    a_sample(work, 0.25, 260.0)
    meter(later(0.9))
    a_sample(work, 1.5, 300.0)
    meter(later(2.0))
    assert [e.measured_kwh for e in entries(work)] == [
        pytest.approx(0.260),
        pytest.approx(0.130 + 0.150),
    ]


@pytest.mark.django_db
def test_what_ended_and_could_not_be_billed_is_found_by_the_meter(node: Node) -> None:
    work = some_work(node, (0, 1))
    assert meter(later(2)) == 1
    assert [e.hour for e in entries(work)] == [later(0)]
    assert meter(later(3)) == 0


@pytest.mark.django_db
def test_an_offer_nobody_took_is_not_in_the_ledger(node: Node) -> None:
    work = some_work(node, (0, 1), accepted_at=None, running_at=None, state="preempted")
    assert meter(later(2)) == 0
    write_entries(work, later(1), anew=True)
    assert entries(work) == []


@pytest.mark.django_db
def test_hours_are_those_of_the_clusters_wall_clock() -> None:
    node = a_v100_node(a_priced_cluster(timezone="Asia/Kolkata"))
    work = some_work(node, (0, 1))
    bill(work)
    assert [e.hour for e in entries(work)] == [
        datetime(2026, 5, 1, 11, 30, tzinfo=UTC),
        datetime(2026, 5, 1, 12, 30, tzinfo=UTC),
    ]


@pytest.mark.django_db
@pytest.mark.parametrize(
    "day", [datetime(2026, 4, 4, 10, tzinfo=UTC), datetime(2026, 10, 3, 10, tzinfo=UTC)]
)
def test_metering_by_the_minute_is_right_where_clocks_change_by_half_an_hour(
    day: datetime,
) -> None:
    node = a_v100_node(a_priced_cluster(timezone="Australia/Lord_Howe"))
    work = some_work(node, (0, 9), accepted_at=day, running_at=day, ended_at=None, state="running")
    for minute in range(10, 600, 10):
        assert meter(day + timedelta(minutes=minute)) == 1
    kept = entries(work)
    until = day + timedelta(minutes=590)
    assert sum(e.gpu_s for e in kept) == pytest.approx(2 * 590 * 60)
    assert sum(e.cost for e in kept) == bill_until(work, until).energy_cost


@pytest.mark.django_db
def test_one_that_cannot_be_metered_holds_up_no_other(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, whole = (some_work(node, (0, 9), ended_at=None, state="running") for _ in range(2))

    def write(assignment: Assignment, until: datetime, *, anew: bool) -> list[EnergyEntry]:
        if assignment == broken:
            raise ValueError("this one")
        return write_entries(assignment, until, anew=anew)

    monkeypatch.setattr("controlplane.accounting.ledger.write_entries", write)
    assert meter(later(1)) == 1
    assert entries(whole)


@pytest.mark.django_db
def test_of_more_than_a_pass_can_meter_those_come_first_whose_entries_are_oldest(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.accounting.ledger.AT_ONCE", 1)
    works = [some_work(node, (0, 9), ended_at=None, state="running") for _ in range(3)]
    meter(later(1)), meter(later(1)), meter(later(1))
    for passed in range(3):
        assert meter(later(2 + passed)) == 1
    assert {entries(work)[-1].hour for work in works} == {later(1), later(2), later(3)}
    assert meter(later(9), budget_s=0.0) == 0
