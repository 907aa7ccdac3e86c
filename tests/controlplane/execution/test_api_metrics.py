"""Progress and use that agents ship."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from jobs.models import Assignment, ProgressPoint, UsagePoint
from jobs.pages.job_page import history_line
from loadmaster.protocol import AssignmentState
from loadmaster.samples import NOT_NUMBERS, MetricsBatch, ProgressSample, UsageSample
from profiling import services as profiling_services
from tests.builders import a_job
from tests.builders_agents import (
    a_node_with_agent,
    a_report,
    a_running_assignment,
    a_session_request,
)
from tests.builders_live import said

pytestmark = pytest.mark.django_db
AT_S = 1_700_000_000.0


def _progress(
    step: int, at_s: float = 0.0, event: str = "progress", **values: Any
) -> ProgressSample:
    return ProgressSample(
        at_s=AT_S + at_s, event=event, step=step, launch_steps=step, elapsed_s=1.0, **values
    )


def _measure(
    call: Any, assignment: Assignment, *progress: ProgressSample, seq: int = 1, **values: Any
) -> Any:
    given = {"epoch": 1, "fence": assignment.fence, **values}
    return call(
        "post",
        f"assignments/{assignment.pk}/metrics",
        MetricsBatch(seq=seq, progress=progress, **given),
    )


def test_progress_reaches_the_assignment_and_its_job(call: Any) -> None:
    node = a_node_with_agent()
    assignment = a_running_assignment(node, a_job(node.cluster, total_steps=100))
    samples = (
        _progress(1, 0.0, "start", setup_s=0.8),
        _progress(10, 5.0, loss=2.0, steps_per_s=4.0),
        _progress(20, 10.0, "checkpoint"),
        _progress(25, 15.0, loss=1.0, steps_per_s=5.0, overrun_fraction=0.01),
    )
    assert _measure(call, assignment, *samples).status_code == 202
    assignment.refresh_from_db()
    assert (assignment.steps_done, assignment.checkpoint_steps, assignment.loss) == (25, 20, 1.0)
    assert (assignment.steps_per_s, assignment.setup_s, assignment.overrun_fraction) == (
        5.0,
        0.8,
        0.01,
    )
    job = assignment.job
    job.refresh_from_db()
    assert (job.steps_done, job.checkpoint_steps, job.first_loss, job.last_loss) == (
        25,
        20,
        2.0,
        1.0,
    )
    assert ProgressPoint.objects.count() == 4


def test_a_batch_seen_before_changes_nothing(call: Any) -> None:
    assignment = a_running_assignment(a_node_with_agent())
    assert _measure(call, assignment, _progress(10, loss=2.0), seq=2).json() == {"new": True}
    assert _measure(call, assignment, _progress(5, 9.0, loss=3.0), seq=2).json() == {"new": False}
    assert _measure(call, assignment, _progress(5, 9.0, loss=3.0), seq=1).json() == {"new": False}
    assert (Assignment.objects.get().loss, ProgressPoint.objects.count()) == (2.0, 1)


def test_progress_never_goes_backwards(call: Any) -> None:
    assignment = a_running_assignment(a_node_with_agent())
    _measure(call, assignment, _progress(50, 0.0, "checkpoint"), seq=1)
    _measure(call, assignment, _progress(30, 5.0, "checkpoint"), seq=2)
    assignment.refresh_from_db()
    assignment.job.refresh_from_db()
    assert (assignment.steps_done, assignment.checkpoint_steps) == (50, 50)
    assert (assignment.job.steps_done, assignment.job.checkpoint_steps) == (50, 50)


def test_a_jobs_progress_is_not_touched_by_an_earlier_launch(call: Any) -> None:
    node = a_node_with_agent(gpus=2)
    old = a_running_assignment(node)
    call("put", f"assignments/{old.pk}/state", a_report(old, AssignmentState.PREEMPTED))
    old.job.refresh_from_db()
    new = a_running_assignment(node, old.job)
    assert new.fence == old.fence + 1
    assert _measure(call, old, _progress(90, loss=0.1), seq=9).status_code == 202
    old.job.refresh_from_db()
    assert (old.job.steps_done, old.job.last_loss) == (0, None)


def _resumed(call: Any, at_step: int, *later: ProgressSample, **values: Any) -> Assignment:
    """A second launch of a job with 80 of 100 steps done, 60 of them in a checkpoint; the launch
    says that it began at a step.
    """
    node = a_node_with_agent()
    job = a_job(node.cluster, total_steps=100, steps_done=80, checkpoint_steps=60)
    given = {"start_steps": 60, "steps_done": 60, "checkpoint_steps": 60, **values}
    assignment = a_running_assignment(node, job, **given)
    assert _measure(call, assignment, _progress(at_step, 0.0, "start"), *later).status_code == 202
    assignment.refresh_from_db()
    assignment.job.refresh_from_db()
    return assignment


def test_a_launch_without_its_checkpoint_is_counted_from_where_it_began_and_the_history_says_so(
    call: Any,
) -> None:
    assignment = _resumed(call, 0, _progress(5, 2.0))
    assert (assignment.start_steps, assignment.steps_done, assignment.checkpoint_steps) == (0, 5, 0)
    assert (
        assignment.job.steps_done,
        assignment.job.checkpoint_steps,
        assignment.job.remaining_steps,
    ) == (5, 0, 100)
    line = history_line(assignment.job.events.get(event="progress_lost"))
    assert line.text == "Progress lost"
    assert "began at step 0" in line.particulars
    assert "the checkpoint of step 60 was not found" in line.particulars


def test_a_launch_that_began_at_an_older_checkpoint_goes_on_from_that(call: Any) -> None:
    assignment = _resumed(call, 40)
    assert (assignment.start_steps, assignment.job.steps_done, assignment.job.checkpoint_steps) == (
        40,
        40,
        40,
    )


def test_a_launch_that_began_at_its_checkpoint_lost_nothing_but_what_lay_beyond(call: Any) -> None:
    assignment = _resumed(call, 60)
    assert (assignment.job.steps_done, assignment.job.checkpoint_steps) == (60, 60)
    assert not assignment.job.events.filter(event="progress_lost").exists()


def test_the_beginning_of_a_launch_sent_again_by_a_new_session_takes_nothing_back(
    call: Any,
) -> None:
    assignment = _resumed(call, 0, _progress(30, 2.0, "checkpoint"))
    session = a_session_request(assignment.node, assignments=(_known(assignment),))
    call("post", f"nodes/{assignment.node.pk}/session", session)
    assert _measure(call, assignment, _progress(0, 0.0, "start"), seq=1, epoch=2).json() == {
        "new": True
    }
    assignment.job.refresh_from_db()
    assert (assignment.job.steps_done, assignment.job.checkpoint_steps) == (30, 30)
    assert assignment.job.events.filter(event="progress_lost").count() == 1


def test_another_process_of_a_gang_may_begin_without_a_checkpoint_of_its_own(call: Any) -> None:
    assignment = _resumed(call, 0, rank=1, world_size=2)
    assert (assignment.job.steps_done, assignment.job.checkpoint_steps) == (80, 60)
    assert not assignment.job.events.filter(event="progress_lost").exists()


def test_the_loss_of_a_gang_is_what_rank_0_says(call: Any) -> None:
    node = a_node_with_agent(gpus=2)
    first = a_running_assignment(node, world_size=2)
    second = a_running_assignment(node, first.job, rank=1, world_size=2)
    _measure(call, second, _progress(3, 0.1, loss=9.0))
    _measure(call, first, _progress(2, 0.1, loss=4.0))
    _measure(call, second, _progress(5, 0.2, loss=8.0), seq=2)
    first.job.refresh_from_db()
    assert (first.job.first_loss, first.job.last_loss, first.job.steps_done) == (4.0, 4.0, 5)


def test_the_late_beginning_of_an_earlier_launch_takes_nothing_back(call: Any) -> None:
    node = a_node_with_agent(gpus=2)
    old = a_running_assignment(node, a_job(node.cluster, total_steps=100))
    call("put", f"assignments/{old.pk}/state", a_report(old, AssignmentState.PREEMPTED))
    old.job.refresh_from_db()
    new = a_running_assignment(node, old.job)
    _measure(call, new, _progress(50, 0.0, "checkpoint"))
    _measure(call, old, _progress(0, 0.0, "start"), seq=9)
    old.job.refresh_from_db()
    assert (old.job.steps_done, old.job.checkpoint_steps) == (50, 50)


def test_a_profile_run_leaves_the_jobs_progress_alone(call: Any) -> None:
    node = a_node_with_agent()
    job = a_job(node.cluster, state="profiling")
    assignment = a_running_assignment(node, job, purpose="profiling", steps_quota=20)
    _measure(call, assignment, _progress(20, 0.0, "checkpoint", loss=1.0))
    job.refresh_from_db()
    assignment.refresh_from_db()
    assert (job.steps_done, job.checkpoint_steps, job.first_loss) == (0, 0, None)
    assert assignment.steps_done == 20


def test_samples_are_thinned_to_one_a_second_but_events_are_kept(call: Any) -> None:
    assignment = a_running_assignment(a_node_with_agent())
    often = [_progress(n, n / 10) for n in range(1, 31)]
    _measure(call, assignment, *often, _progress(31, 3.05, "checkpoint"))
    assert list(ProgressPoint.objects.values_list("step", flat=True)) == [1, 11, 21, 31]
    usage = tuple(
        UsageSample(AT_S + n / 4, cores=1.0, memory_gb=0.5, gpu_power_w=100.0) for n in range(9)
    )
    _measure(call, assignment, seq=2, usage=usage)
    assert UsagePoint.objects.count() == 3


def test_samples_tell_the_quota_and_what_it_withholds(call: Any) -> None:
    assignment = a_running_assignment(a_node_with_agent())
    limited = UsageSample(AT_S, 0.5, 0.5, throttled_cores=0.25, cores_limit=0.5)
    unlimited = UsageSample(AT_S + 2.0, 0.5, 0.5)
    _measure(call, assignment, usage=(limited, unlimited))
    kept = UsagePoint.objects.values_list("throttled_cores", "cores_limit")
    assert list(kept) == [(0.25, 0.5), (None, None)]


def test_of_each_event_one_a_second_is_kept_and_the_newest_checkpoint_counts(call: Any) -> None:
    node = a_node_with_agent()
    assignment = a_running_assignment(node, a_job(node.cluster, total_steps=1000))
    events = ("checkpoint", "start", "end")
    often = [_progress(n, n / 100, events[n % 3]) for n in range(300)]
    _measure(call, assignment, *often)
    kept = ProgressPoint.objects.values_list("event", flat=True)
    assert sorted(kept) == 3 * ["checkpoint"] + 3 * ["end"] + 3 * ["start"]
    assignment.refresh_from_db()
    assignment.job.refresh_from_db()
    assert (assignment.checkpoint_steps, assignment.job.checkpoint_steps) == (297, 297)


def test_a_launch_cannot_report_more_seconds_than_it_has_run(call: Any) -> None:
    assignment = a_running_assignment(a_node_with_agent())
    for seq in (1, 2):
        long_ago = [_progress(n, n, "checkpoint") for n in range(500 * seq)]
        assert _measure(call, assignment, *long_ago, seq=seq).status_code == 202
    assert ProgressPoint.objects.count() <= 65, "a second each, and what a clock may be wrong by"
    warning = assignment.job.events.get(event="warning")
    assert "clock" in history_line(warning).particulars


def test_a_batch_sent_again_by_a_new_session_doubles_no_points(call: Any) -> None:
    node = a_node_with_agent()
    assignment = a_running_assignment(node)
    _measure(call, assignment, _progress(10, 0.0), _progress(20, 5.0), seq=7)
    session = a_session_request(node, assignments=(_known(assignment),))
    call("post", f"nodes/{node.pk}/session", session)
    assert _measure(
        call, assignment, _progress(20, 5.0), _progress(30, 9.0), seq=1, epoch=2
    ).json() == {"new": True}
    assert list(ProgressPoint.objects.values_list("step", flat=True)) == [10, 20, 30]


def _known(assignment: Assignment) -> Any:
    from loadmaster.protocol import KnownAssignment

    return KnownAssignment(str(assignment.pk), assignment.fence, AssignmentState.RUNNING)


@pytest.mark.parametrize(
    ("values", "status", "field"),
    [
        ({"fence": 9}, 409, None),
        ({"epoch": 9}, 409, "epoch"),
        ({"seq": -1}, 400, "seq"),
    ],
)
def test_a_stale_batch_is_refused(
    call: Any, values: dict[str, Any], status: int, field: str | None
) -> None:
    answer = _measure(call, a_running_assignment(a_node_with_agent()), **values)
    assert (answer.status_code, answer.json()["error"].get("field")) == (status, field)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (_progress(-5, 1.0), "reported -5 steps"),
        (_progress(10, 1.0), "went back from 20 to 10"),
        (replace(_progress(30, 1.0), elapsed_s=0.5), "time went back from 1 to 0.5 s"),
        (replace(_progress(30, 1.0), elapsed_s=-1.0), "after -1 s"),
        (_progress(10**12, 1.0), "steps in 1 s, which cannot be"),
        (_progress(30, 1.0, steps_per_s=1e12), "1e+12 steps/s"),
        (_progress(30, 1.0, steps_per_s=-2.0), "-2 steps/s"),
        (_progress(30, 1.0, steps_per_s=0.0), "0 steps/s"),
        (_progress(30, 1.0, setup_s=1e9), "longer than its launch"),
        (_progress(30, 1e300), "clock"),
        (_progress(30, 1e9), "clock"),
        (_progress(30, -7200.0), "clock"),
        (_progress(0, event=NOT_NUMBERS), "no numbers (NaN, infinite)"),
    ],
)
def test_nonsense_is_dropped_and_the_rest_is_kept(
    call: Any, sample: ProgressSample, message: str
) -> None:
    assignment = a_running_assignment(a_node_with_agent())
    _measure(call, assignment, _progress(20))
    for seq in (2, 3):
        assert _measure(call, assignment, sample, seq=seq).status_code == 202
    assert _measure(call, assignment, _progress(40, 5.0), seq=4).status_code == 202
    assignment.refresh_from_db()
    assert (assignment.steps_done, assignment.steps_per_s, assignment.setup_s) == (40, None, None)
    (said,) = assignment.job.events.filter(event="warning")
    assert message in said.data["message"]
    assert message in history_line(said).particulars


def test_a_clock_that_jumps_ahead_does_not_hide_later_progress(call: Any) -> None:
    assignment = a_running_assignment(a_node_with_agent())
    _measure(call, assignment, _progress(10, 1e9))
    now = timezone.now().timestamp() - AT_S
    _measure(call, assignment, _progress(20, now + 5.0), seq=2)
    assert ProgressPoint.objects.count() == 2


def test_points_go_on_after_the_servers_clock_was_ahead_for_a_while(call: Any) -> None:
    assignment = a_running_assignment(a_node_with_agent())
    now_s = timezone.now().timestamp()
    use = UsageSample(at_s=now_s, cores=1.0, memory_gb=0.1)
    _measure(call, assignment, _progress(10, now_s - AT_S), usage=(use,))
    ahead = timezone.now() + timedelta(hours=1)
    ProgressPoint.objects.update(at=ahead)
    UsagePoint.objects.update(at=ahead)
    use = replace(use, at_s=now_s + 5.0)
    _measure(call, assignment, _progress(20, now_s - AT_S + 5.0), usage=(use,), seq=2)
    assert (ProgressPoint.objects.count(), UsagePoint.objects.count()) == (2, 2)
    assert not assignment.job.events.filter(event="warning").exists()


def test_a_launch_accepted_while_the_servers_clock_was_ahead_reports_as_others_do(
    call: Any,
) -> None:
    assignment = a_running_assignment(a_node_with_agent())
    ahead = timezone.now() + timedelta(hours=1)
    Assignment.objects.filter(pk=assignment.pk).update(accepted_at=ahead, running_at=None)
    now_s = timezone.now().timestamp()
    started = _progress(1, now_s - AT_S, setup_s=3.0, event="start")
    _measure(call, assignment, started, _progress(2, now_s - AT_S + 1.0))
    assert ProgressPoint.objects.count() == 2
    assert not assignment.job.events.filter(event="warning").exists()
    said(assignment, AssignmentState.SUCCEEDED, steps=10_000, ran_s=5.0)
    assignment.refresh_from_db()
    assert assignment.steps_done == 10_000
    assert assignment.running_at is not None
    assert assignment.running_at < timezone.now()


def test_metrics_of_another_node_are_refused(call: Any) -> None:
    assignment = a_running_assignment(a_node_with_agent())
    a_node_with_agent(assignment.node.cluster, token="the other's")
    batch = MetricsBatch(epoch=1, fence=assignment.fence, seq=1)
    assert (
        call("post", f"assignments/{assignment.pk}/metrics", batch, token="the other's").status_code
        == 409
    )


def test_a_later_profile_run_does_not_hide_a_launchs_progress(call: Any) -> None:
    node = a_node_with_agent(gpus=2)
    run = a_running_assignment(node)
    a_running_assignment(node, run.job, purpose="profiling", copy=1)
    _measure(call, run, _progress(40, 0.0, "checkpoint"))
    run.job.refresh_from_db()
    assert (run.job.steps_done, run.job.checkpoint_steps) == (40, 40)


@pytest.mark.parametrize(
    "values", [{"rank": 1, "world_size": 2}, {"purpose": "profiling", "copy": 1}]
)
def test_other_ranks_and_profile_runs_teach_no_speed_by_progress(
    call: Any, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any]
) -> None:
    told: list[Assignment] = []
    monkeypatch.setattr(profiling_services, "progress_reported", lambda run, *_: told.append(run))
    node = a_node_with_agent(gpus=2)
    lead = a_running_assignment(node)
    other = a_running_assignment(node, lead.job, **values)
    for run in (lead, other):
        _measure(call, run, _progress(40, 0.0))
    assert told == [lead]


def test_a_batch_without_new_steps_teaches_nothing(
    call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(
        profiling_services, "progress_reported", lambda _, before, now: told.append((before, now))
    )
    run = a_running_assignment(a_node_with_agent())
    for seq, at_s in ((1, 0.0), (2, 5.0)):
        _measure(call, run, _progress(40, at_s), seq=seq)
    assert told == [(0, 40)]
