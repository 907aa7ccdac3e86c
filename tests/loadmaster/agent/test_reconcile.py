"""The agent's decisions, each from one view of the world."""

from dataclasses import replace
from typing import Any

import pytest

from loadmaster.agent.journal import Entry
from loadmaster.agent.reconcile import (
    AcceptOffer,
    Action,
    Drop,
    Finish,
    Launch,
    RemoveStray,
    Renew,
    ReportPreparing,
    SetQuota,
    Settle,
    Stop,
    StopStray,
    Update,
    View,
    reconcile,
)
from loadmaster.agent.runtimes.base import Exit, RunId, RunState, RunStatus, StopBy, StopOrder
from loadmaster.protocol import AssignmentState, Directive, DirectiveAction, StopReason

RUN = RunId("a1", 3)
WAITING = Entry("a1", 3, AssignmentState.PREPARING, grace_s=30.0)
STARTED = replace(WAITING, state=AssignmentState.RUNNING, launched=True)
PREPARED = RunStatus(RunState.PREPARED)
RUNNING = RunStatus(RunState.RUNNING, lease_until_s=50.0)
ENDED = RunStatus(RunState.ENDED, Exit(ended_at_s=9.0, exit_code=0))


def directive(action: DirectiveAction, fence: int = 3, **more: Any) -> dict[str, Directive]:
    return {"a1": Directive("a1", fence, action, **more)}


START = directive(DirectiveAction.START)
CANCEL = directive(DirectiveAction.STOP, stop_reason=StopReason.CANCEL)
PREEMPT = directive(DirectiveAction.STOP, stop_reason=StopReason.PREEMPT, grace_s=7.0)


def decided(entry: Entry | None = None, run: RunStatus | None = None, **view: Any) -> list[Action]:
    entries = {entry.assignment: entry} if entry else {}
    runs = {RUN: run} if run else {}
    return reconcile(View(now_s=10.0, wall_s=1000.0, entries=entries, runs=runs, **view))


def test_an_offer_is_accepted() -> None:
    assert decided(directives=START) == [AcceptOffer(RUN)]


def test_renewals_come_before_anything_that_is_done_for_other_runs() -> None:
    other = RunId("a0", 1)
    actions = reconcile(
        View(
            now_s=10.0,
            wall_s=1000.0,
            entries={"a0": replace(STARTED, assignment="a0", fence=1), "a1": STARTED},
            runs={other: ENDED, RUN: RUNNING},
            leases={RUN: 90.0},
        )
    )
    assert [type(action) for action in actions] == [Renew, Finish]


def test_an_offer_is_left_alone_while_leaving() -> None:
    assert decided(directives=START, accepting=False) == []


@pytest.mark.parametrize("fence", [3, 4])
def test_an_offer_of_a_fence_that_is_over_is_never_taken_again(fence: int) -> None:
    assert decided(directives=START, ends={"a1": fence}) == []


def test_an_offer_that_was_taken_is_not_accepted_again() -> None:
    assert decided(WAITING, PREPARED, directives=START) == []


def test_a_prepared_run_waits_for_its_first_lease() -> None:
    assert decided(WAITING, PREPARED) == []


def test_a_lease_of_an_older_fence_starts_nothing() -> None:
    assert decided(WAITING, PREPARED, leases={RunId("a1", 2): 60.0}) == []


def test_a_lease_that_has_run_out_starts_nothing() -> None:
    assert decided(WAITING, PREPARED, leases={RUN: 9.0}) == []


def test_a_prepared_run_with_a_lease_is_launched() -> None:
    assert decided(WAITING, PREPARED, leases={RUN: 60.0}) == [Launch(WAITING, 60.0)]


def test_a_preparation_is_told_when_it_has_come_on_and_never_launched() -> None:
    preparing = RunStatus(RunState.PREPARING, prepared_fraction=0.5)
    assert decided(WAITING, preparing, leases={RUN: 60.0}, since_s={"a1": -100.0}) == [
        ReportPreparing(WAITING, 0.5)
    ]
    assert decided(replace(WAITING, told_fraction=0.48), preparing, leases={RUN: 60.0}) == []


def test_a_preparation_that_is_wanted_no_more_is_finished() -> None:
    (action,) = decided(WAITING, RunStatus(RunState.PREPARING), directives=CANCEL)
    assert isinstance(action, Finish)
    assert action.exit.stopped_by is StopBy.CANCEL


def test_a_run_nobody_grants_a_lease_is_given_up() -> None:
    (action,) = decided(WAITING, PREPARED, since_s={"a1": -100.0})
    assert isinstance(action, Finish)
    assert (action.exit.started, action.exit.stopped_by) == (False, StopBy.LEASE)


@pytest.mark.parametrize("run", [PREPARED, None])
def test_a_launch_that_was_journaled_but_does_not_run_is_settled_never_repeated(
    run: RunStatus | None,
) -> None:
    assert decided(STARTED, run, leases={RUN: 60.0}) == [Settle(STARTED)]


def test_a_run_whose_folder_is_gone_before_its_start_is_finished() -> None:
    (action,) = decided(WAITING, None, leases={RUN: 60.0})
    assert isinstance(action, Finish)
    assert action.exit.started is False


def test_a_later_lease_is_passed_on() -> None:
    assert decided(STARTED, RUNNING, leases={RUN: 60.0}) == [Renew(RUN, 60.0)]
    assert decided(STARTED, RUNNING, leases={RUN: 50.0}) == []


def test_an_end_is_finished() -> None:
    assert ENDED.exit is not None
    assert decided(STARTED, ENDED, directives=CANCEL) == [Finish(STARTED, ENDED.exit)]


def test_a_running_job_is_stopped_with_the_grace_of_the_order_or_its_own() -> None:
    assert decided(STARTED, RUNNING, directives=PREEMPT) == [
        Stop(STARTED, StopOrder(StopBy.PREEMPT, 7.0))
    ]
    assert decided(STARTED, RUNNING, directives=CANCEL) == [
        Stop(STARTED, StopOrder(StopBy.CANCEL, 30.0))
    ]


def test_a_stop_is_ordered_once() -> None:
    assert decided(replace(STARTED, stop=StopBy.PREEMPT), RUNNING, directives=PREEMPT) == []


def test_a_preemption_may_become_a_cancellation_but_not_the_other_way() -> None:
    preempted, cancelled = (
        replace(STARTED, stop=StopBy.PREEMPT),
        replace(STARTED, stop=StopBy.CANCEL),
    )
    assert decided(preempted, RUNNING, directives=CANCEL) == [
        Stop(preempted, StopOrder(StopBy.CANCEL, 30.0))
    ]
    assert decided(cancelled, RUNNING, directives=PREEMPT) == []


def test_a_job_that_is_stopping_still_gets_its_lease() -> None:
    stopping = replace(STARTED, stop=StopBy.PREEMPT)
    assert decided(stopping, RUNNING, directives=PREEMPT, leases={RUN: 60.0}) == [Renew(RUN, 60.0)]


def test_a_stop_before_the_start_ends_the_assignment_at_once() -> None:
    (action,) = decided(WAITING, PREPARED, directives=CANCEL, leases={RUN: 60.0})
    assert isinstance(action, Finish)
    assert (action.exit.started, action.exit.stopped_by) == (False, StopBy.CANCEL)


def test_a_stop_of_an_older_fence_is_ignored() -> None:
    assert (
        decided(
            STARTED,
            RUNNING,
            directives=directive(DirectiveAction.STOP, fence=2, stop_reason=StopReason.CANCEL),
        )
        == []
    )


def test_a_new_term_is_passed_on_once() -> None:
    update = directive(DirectiveAction.UPDATE, term_until_s=2000.0)
    assert decided(STARTED, RUNNING, directives=update) == [Update(STARTED, 2000.0)]
    assert decided(replace(STARTED, term_until_s=2000.0), RUNNING, directives=update) == []


def test_a_newer_launch_is_taken_only_when_the_older_one_is_gone() -> None:
    newer = directive(DirectiveAction.START, fence=4)
    assert decided(STARTED, RUNNING, directives=newer) == [
        Stop(STARTED, StopOrder(StopBy.CANCEL, 30.0))
    ]
    over = replace(STARTED, state=AssignmentState.CANCELLED)
    assert decided(over, ENDED, directives=newer) == [Drop(over)]
    assert decided(directives=newer, ends={"a1": 3}) == [AcceptOffer(RunId("a1", 4))]


def test_a_stray_is_stopped_after_a_while_and_what_is_left_of_one_removed() -> None:
    assert decided(None, RUNNING) == []
    assert decided(None, RUNNING, since_s={RUN.name: -100.0}) == [StopStray(RUN)]
    assert decided(None, ENDED) == [RemoveStray(RUN)]
    assert decided(None, PREPARED) == [RemoveStray(RUN)]


def test_an_ended_entry_that_is_yet_to_be_told_is_left_alone() -> None:
    assert decided(replace(STARTED, state=AssignmentState.FAILED), ENDED, leases={RUN: 60.0}) == []


def test_a_term_of_an_older_fence_is_ignored() -> None:
    older = directive(DirectiveAction.UPDATE, fence=2, term_until_s=2000.0)
    assert decided(STARTED, RUNNING, directives=older) == []


def test_an_end_is_told_though_its_own_offer_comes_again() -> None:
    over = replace(STARTED, state=AssignmentState.FAILED)
    assert decided(over, ENDED, directives=START) == []


def test_other_cores_of_a_running_launch_are_set_once() -> None:
    halved = directive(DirectiveAction.UPDATE, cpu_quota=0.5)
    assert decided(STARTED, RUNNING, directives=halved) == [SetQuota(STARTED, 0.5)]
    assert decided(STARTED, RUNNING, directives=halved, quotas={RUN: 0.5}) == []


def test_cores_that_somebody_else_changed_are_set_again() -> None:
    halved = directive(DirectiveAction.UPDATE, cpu_quota=0.5)
    changed = decided(STARTED, RUNNING, directives=halved, quotas={RUN: 2.0})
    assert changed == [SetQuota(STARTED, 0.5)]


def test_cores_below_what_the_kernel_takes_are_not_set_for_ever() -> None:
    tiny = directive(DirectiveAction.UPDATE, cpu_quota=0.001)
    assert decided(STARTED, RUNNING, directives=tiny, quotas={RUN: 0.01}) == []


def test_directives_without_cores_leave_them_as_they_are() -> None:
    update = directive(DirectiveAction.UPDATE)
    assert decided(STARTED, RUNNING, directives=update, quotas={RUN: 0.5}) == []


def test_the_term_changes_before_the_cores() -> None:
    both = directive(DirectiveAction.UPDATE, cpu_quota=0.5, term_until_s=2000.0)
    assert decided(STARTED, RUNNING, directives=both) == [Update(STARTED, 2000.0)]
    after = replace(STARTED, term_until_s=2000.0)
    assert decided(after, RUNNING, directives=both) == [SetQuota(after, 0.5)]


def test_a_held_seat_has_no_cores_to_change() -> None:
    halved = directive(DirectiveAction.UPDATE, cpu_quota=0.5)
    assert decided(replace(STARTED, held=True), RUNNING, directives=halved) == []
