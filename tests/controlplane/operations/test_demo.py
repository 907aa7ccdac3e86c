"""The demo's scenario is Table V in minutes, its jobs are valid, and its report tells what the
database holds.
"""

import json
from datetime import timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.utils import timezone
from rich.console import Console

from clusters.models import Cluster, Device, GpuType
from controlplane.operations.bootstrap import ADMIN, CLUSTER, EMULATED_NODES, bootstrap
from controlplane.operations.demo.report import print_summary, report
from controlplane.operations.demo.scenario import JOBS, SECONDS_PER_EPOCH, step_s
from jobs.models import Assignment, AssignmentSlot, Forecast, Job, JobEvent, ProgressPoint
from jobs.submission.validation import validate_job
from loadmaster.demo.report import check_report
from tests.builders import a_job, a_kind, a_node

pytestmark = pytest.mark.django_db


def test_a_first_start_makes_an_admin_whose_password_works_and_is_told_once() -> None:
    password = bootstrap()
    assert password is not None
    assert User.objects.get(username=ADMIN).check_password(password)
    assert bootstrap() is None
    assert Cluster.objects.count() == 1


def test_the_bootstrap_command_says_the_password_only_the_first_time() -> None:
    first, second = StringIO(), StringIO()
    call_command("bootstrap", stdout=first)
    call_command("bootstrap", stdout=second)
    assert "shown once" in first.getvalue()
    assert "nothing was changed" in second.getvalue()


def test_emulated_nodes_draw_the_watts_of_the_paper() -> None:
    """P_V100(g) = 360 + 170 g for two GPUs, P_T4(g) = 330 + 70 g for one."""
    volta, turing = EMULATED_NODES[0], EMULATED_NODES[2]
    assert [volta.base_w + (2 - g) * volta.idle_w + g * volta.peak_w for g in range(3)] == [
        360,
        530,
        700,
    ]
    assert [turing.base_w + (1 - g) * turing.idle_w + g * turing.peak_w for g in range(2)] == [
        330,
        400,
    ]


def test_every_job_of_the_demo_is_valid_without_a_warning() -> None:
    bootstrap()
    cluster = Cluster.objects.get(name=CLUSTER)
    for node in EMULATED_NODES:
        a_node(cluster, gpu_type=GpuType.objects.get(name=node.gpu_type), gpus=node.gpus)
    admin = User.objects.get(username=ADMIN)
    for job in JOBS:
        request = validate_job(admin, job.request())
        assert request.warnings == ()
        assert request.job.epochs == job.epochs


def test_submissions_are_twenty_seconds_apart_and_in_order() -> None:
    assert [job.arrival_s for job in JOBS] == [20.0 * i for i in range(8)]


def test_an_epoch_on_an_emulated_device_takes_a_sixtieth_of_the_papers() -> None:
    for kind, table in SECONDS_PER_EPOCH.items():
        assert 4 * step_s("V100")[kind][1] == pytest.approx(table["V100"][1] / 60, rel=1e-3)
        assert step_s("P100")[kind][2] == pytest.approx(1.5 * step_s("V100")[kind][2], rel=1e-3)


def a_history() -> tuple[Cluster, Job]:
    """A job that was pre-empted at step 40 on one device and completed on another."""
    bootstrap()
    cluster = Cluster.objects.get(name=CLUSTER)
    node = a_node(cluster, gpus=2)
    job = a_job(
        cluster,
        kind=a_kind("convnet"),
        state="completed",
        first_loss=2.0,
        last_loss=0.5,
        due_at=timezone.now(),
    )
    now = timezone.now()
    Job.objects.filter(pk=job.pk).update(
        completed_at=now - timedelta(seconds=5), due_at=now, tardiness_weight=0.1
    )
    JobEvent.objects.create(job=job, event="submitted")
    devices = list(Device.objects.filter(node=node))
    for fence, (device, start, end, state) in enumerate(
        [(devices[0], 0, 40, "preempted"), (devices[1], 40, 100, "succeeded")], 1
    ):
        begun = now - timedelta(seconds=300 - start)
        assignment = Assignment.objects.create(
            job=job, node=node, fence=fence, state=state, start_steps=start, steps_done=end,
            checkpoint_steps=end,
            accepted_at=begun, running_at=begun, ended_at=begun + timedelta(seconds=end - start),
            predicted_run_s=float(100 - start),
            predicted_energy_cost=Decimal("0.01"), energy_cost=Decimal("0.011"), energy_kwh=0.05,
            power_source="modelled",
        )  # fmt: skip
        AssignmentSlot.objects.create(assignment=assignment, device=device, live=False)
        ProgressPoint.objects.create(
            assignment=assignment,
            at=begun,
            event="start",
            step=start,
            launch_steps=0,
            elapsed_s=0,
            steps_per_s=None,
            loss=None,
        )
    return cluster, job


def test_the_report_of_a_migrated_job_holds_what_it_claims(tmp_path: Path) -> None:
    cluster, job = a_history()
    facts = report(cluster, Job.objects.filter(pk=job.pk), timezone.now() - timedelta(seconds=400))
    path = tmp_path / "report.json"
    path.write_text(json.dumps(facts))
    assert check_report(path) == []
    assert (facts["summary"]["preemptions"], facts["summary"]["migrations"]) == (0, 1)
    assert facts["summary"]["energy_cost"] == pytest.approx(0.022)
    assert facts["jobs"][0]["due_met"] is True


@pytest.mark.parametrize(("late_s", "inside"), [(4.0, 1), (7.0, 0)])
def test_the_report_compares_the_first_forecast_with_the_start(late_s: float, inside: int) -> None:
    cluster, job = a_history()
    since = timezone.now() - timedelta(seconds=400)
    for first, start_s in ((True, 20.0), (False, 90.0)):
        told = {f"{name}_at": since + timedelta(seconds=start_s + at_s) for name, at_s in
                (("made", -10.0), ("low", -5.0), ("start", 0.0), ("high", 5.0))}  # fmt: skip
        Forecast.objects.create(job=job, fence=0, first=first, round=1, **told)
    Job.objects.filter(pk=job.pk).update(started_at=since + timedelta(seconds=20.0 + late_s))
    facts = report(cluster, Job.objects.filter(pk=job.pk), since)
    (row,) = facts["jobs"]
    assert row["forecast"] == {"made_s": 10.0, "low_s": 15.0, "start_s": 20.0, "high_s": 25.0}
    assert row["started_s"] == 20.0 + late_s
    assert (facts["summary"]["forecasts"], facts["summary"]["forecasts_inside"]) == (1, inside)


def test_a_launch_cut_short_is_predicted_by_the_steps_it_did() -> None:
    cluster, job = a_history()
    placements = report(cluster, Job.objects.filter(pk=job.pk), timezone.now())["jobs"][0][
        "placements"
    ]
    assert [p["predicted_run_s"] for p in placements] == [40.0, 60.0]
    assert [p["measured_run_s"] for p in placements] == [40.0, 60.0]


def test_a_launch_cut_short_is_predicted_with_its_whole_set_up() -> None:
    cluster, job = a_history()
    for assignment in Assignment.objects.all():
        planned = 100 - assignment.start_steps
        predicted = {
            "predicted_run_s": 5.0 + planned / 2.0,
            "predicted_steps_per_s": 2.0,
            "predicted_energy_cost": Decimal("0.55"),
        }
        Assignment.objects.filter(pk=assignment.pk).update(**predicted)
    placements = report(cluster, Job.objects.filter(pk=job.pk), timezone.now())["jobs"][0][
        "placements"
    ]
    assert [p["predicted_run_s"] for p in placements] == [
        pytest.approx(5.0 + 20.0),
        pytest.approx(5.0 + 30.0),
    ]
    assert [p["predicted_energy_cost"] for p in placements] == [
        pytest.approx(0.25),
        pytest.approx(0.55),
    ]


def test_the_summary_says_what_is_emulated_and_modelled() -> None:
    cluster, job = a_history()
    console = Console(record=True, width=200, file=StringIO())
    print_summary(report(cluster, Job.objects.filter(pk=job.pk), timezone.now()), console)
    words = console.export_text()
    assert "emulated" in words
    assert "modelled" in words
    assert "1 of 1 jobs completed" in words


def test_a_launch_without_a_prediction_is_not_compared_with_one() -> None:
    cluster, job = a_history()
    first = job.assignments.order_by("fence").first()
    assert first is not None
    job.assignments.filter(pk=first.pk).update(predicted_run_s=None, predicted_energy_cost=None)
    told = report(cluster, Job.objects.filter(pk=job.pk), timezone.now())
    assert told["summary"]["energy_cost_of_predicted"] < told["summary"]["energy_cost"]
    job.assignments.update(predicted_run_s=None, predicted_energy_cost=None)
    console = Console(record=True, width=240, file=StringIO())
    print_summary(report(cluster, Job.objects.filter(pk=job.pk), timezone.now()), console)
    assert "- / " in console.export_text()
