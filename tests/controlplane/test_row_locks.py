"""Each action locks the rows on which its writes rest, in the order node, job, assignment."""

from collections.abc import Callable, Mapping
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db.models import Model
from django.utils import timezone

from clusters.models import Device, Node
from clusters.services.enrolment import issue_enrolment_token, register
from clusters.services.nodes import node_set_slots
from controlplane.execution.outcomes import fail_never_ready, fail_overdue, settle_job
from controlplane.execution.services.assignment_metrics import record_metrics
from controlplane.execution.services.assignments import accept, report_state
from controlplane.execution.services.logs import _lock_last_chunk
from controlplane.execution.services.sessions import open_session
from controlplane.execution.services.stops import stop_assignment
from controlplane.operations.models import PruneClock
from controlplane.operations.retention import is_steady, prune
from controlplane.studies.models import Simulation
from jobs.arrays.actions import array_act
from jobs.models import (
    Assignment,
    Dependency,
    Job,
    Kind,
    LogChunk,
    Membership,
    RunTimeHistory,
    Secret,
    Team,
    UnfinishedArray,
)
from jobs.people import remove_member, save_person, save_team
from jobs.secrets import rotate, set_secret
from jobs.services import end_rests, job_hold, job_submit
from jobs.submission.quotas import Quotas
from jobs.submission.submit import finish_array
from loadmaster.protocol import Accept, AssignmentState, StopReason
from loadmaster.samples import MetricsBatch
from profiling.models import Profile, RunTimeGroup
from profiling.publication import publish, withdraw
from profiling.run_times.history import run_ended
from profiling.runs import lock_kind
from tests.builders import a_cluster, a_job, a_kind, a_node, a_team, a_user
from tests.builders_agents import (
    a_heartbeat,
    a_node_with_agent,
    a_registration,
    a_report,
    a_running_assignment,
    a_session_request,
    an_offer,
    heartbeat,
)
from tests.builders_jobs import job_fields, output
from tests.builders_live import a_round, devices_of, placing
from tests.builders_studies import a_done_simulation, a_simulation
from tests.row_locks import noted_locks

pytestmark = pytest.mark.django_db

Action = Callable[[], object]


def opening_a_session() -> Action:
    node = a_node_with_agent()
    known = a_heartbeat(a_running_assignment(node)).assignments
    return lambda: open_session(node.pk, a_session_request(node, assignments=known))


def accepting_an_offer() -> Action:
    offer = an_offer(a_node_with_agent())
    return lambda: accept(offer.node_id, offer.pk, Accept(epoch=1, fence=offer.fence))


def reporting_a_state() -> Action:
    run = a_running_assignment(a_node_with_agent())
    report = a_report(run, AssignmentState.STOPPING)
    return lambda: report_state(run.node_id, run.pk, report)


def reporting_progress() -> Action:
    run = a_running_assignment(a_node_with_agent())
    return lambda: record_metrics(run.node, run.pk, MetricsBatch(1, run.fence, 1))


def renewing_leases() -> Action:
    run = a_running_assignment(a_node_with_agent())
    return lambda: heartbeat(run.node_id, a_heartbeat(run))


def continuing_a_log() -> Action:
    run = a_running_assignment(a_node_with_agent())
    output(run, b"epoch 1\n")
    return lambda: _lock_last_chunk(run.pk, "stdout")


def stopping_a_launch() -> Action:
    run = a_running_assignment(a_node_with_agent())
    return lambda: stop_assignment(run, StopReason.PREEMPT)


def settling_a_job() -> Action:
    job = a_job(a_cluster(), state="running")
    return lambda: settle_job(job.pk)


def failing_a_job_at_its_deadline() -> Action:
    now = timezone.now()
    job = a_job(a_cluster(), deadline_at=now)
    return lambda: fail_overdue(job.pk, now)


def failing_a_job_for_another() -> Action:
    cluster = a_cluster()
    job = a_job(cluster)
    Dependency.objects.create(job=job, on=a_job(cluster, state="failed"))
    return lambda: fail_never_ready(job.pk, timezone.now())


def holding_a_job() -> Action:
    job = a_job(a_cluster())
    return lambda: job_hold(job, job.user)


def ending_rests() -> Action:
    a_job(a_cluster(), retry_at=timezone.now())
    return lambda: end_rests(Job.objects.all(), "ada")


def a_member() -> User:
    a_node(a_cluster())
    return a_user("ada", team=a_team("vision"))


def holding_an_array() -> Action:
    user = a_member()
    array = job_submit(user, job_fields(array="0-1")).job.array
    assert array is not None
    return lambda: array_act("hold", array, user)


def finishing_an_array() -> Action:
    array = job_submit(a_member(), job_fields(array="0-1")).job.array
    assert array is not None
    return lambda: finish_array(array.pk)


def changing_a_person() -> Action:
    team = a_team()
    user = a_user(team=team)
    return lambda: save_person(user.username, teams=[team])


def taking_a_person_out() -> Action:
    team = a_team()
    user = a_user(team=team)
    return lambda: remove_member(team, user)


def changing_a_team() -> Action:
    team = a_team()
    return lambda: save_team(team.name, {"weight": 2.0})


def counting_a_quota() -> Action:
    team = a_team(max_queued_jobs=5)
    return lambda: Quotas([team])


def encrypting_secrets_anew() -> Action:
    set_secret(a_team(), "token", "value")
    return rotate


def setting_slots() -> Action:
    node = a_node(a_cluster())
    return lambda: node_set_slots(node, 2, [devices_of(node)[0].uuid])


def enrolling_a_machine() -> Action:
    node = a_node(a_cluster(), session_expires_at=None)
    token = issue_enrolment_token(node.cluster, node=node)
    return lambda: register(token, a_registration(machine_id="another"))


def applying_a_plan() -> Action:
    cluster = a_cluster()
    node = a_node(cluster)
    a_job(cluster, name="a")
    return lambda: a_round(cluster, placing(a=(node, devices_of(node)[0])))


def settling_runs_of_a_kind() -> Action:
    kind = a_kind()
    return lambda: lock_kind(kind.pk)


def publishing_a_kind() -> Action:
    kind = a_kind(team=a_team(), steps_per_s={("V100", 1): 1.0})
    return lambda: publish(kind)


def withdrawing_a_kind() -> Action:
    shared = publish(a_kind(team=a_team(), steps_per_s={("V100", 1): 1.0}))
    return lambda: withdraw(shared)


def learning_a_run_time() -> Action:
    cluster = a_cluster()
    node = a_node_with_agent(cluster)
    job = a_job(cluster, batch=True, walltime_s=100.0)
    run = a_running_assignment(node, job)
    run.state = AssignmentState.SUCCEEDED
    run.ended_at = timezone.now() + timedelta(seconds=5)
    return lambda: run_ended(run)


def looking_at_the_clock() -> Action:
    return lambda: is_steady(timezone.now())


def pruning_simulations() -> Action:
    later = timezone.now() + timedelta(days=4000)
    a_done_simulation()
    return lambda: prune(later, names=("simulations",))


def asking_for_a_simulation() -> Action:
    user = a_user()
    return lambda: a_simulation(user)


LOCKS: Mapping[Callable[[], Action], list[type[Model]]] = {
    opening_a_session: [Node, Assignment],
    accepting_an_offer: [Node, Job, Assignment],
    reporting_a_state: [Node, Job, Assignment],
    reporting_progress: [Job, Assignment],
    renewing_leases: [Node, Assignment],
    continuing_a_log: [LogChunk],
    stopping_a_launch: [Job, Assignment],
    settling_a_job: [Job],
    failing_a_job_at_its_deadline: [Job],
    failing_a_job_for_another: [Job],
    holding_a_job: [Job],
    ending_rests: [Job],
    holding_an_array: [UnfinishedArray, Job],
    finishing_an_array: [UnfinishedArray],
    changing_a_person: [User, Membership],
    taking_a_person_out: [Membership],
    changing_a_team: [Team],
    counting_a_quota: [Team],
    encrypting_secrets_anew: [Secret],
    setting_slots: [Device],
    enrolling_a_machine: [Node, Node],
    applying_a_plan: [Node, Job],
    settling_runs_of_a_kind: [Kind],
    publishing_a_kind: [Kind, Profile],
    withdrawing_a_kind: [Kind],
    learning_a_run_time: [RunTimeHistory, RunTimeGroup],
    looking_at_the_clock: [PruneClock],
    pruning_simulations: [Simulation],
    asking_for_a_simulation: [User],
}
"""Models whose rows each action locks, in order."""


@pytest.mark.parametrize("prepared", LOCKS, ids=lambda prepared: str(prepared.__name__))
def test_an_action_locks_its_rows_in_order(prepared: Callable[[], Action]) -> None:
    act = prepared()
    with noted_locks() as locked:
        act()
    assert locked == LOCKS[prepared]
