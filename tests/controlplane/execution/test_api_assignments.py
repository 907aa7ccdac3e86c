"""An assignment's way over HTTP: offered, accepted, reported, stopped; and what stale or foreign
calls get.
"""

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from clusters.models import Node
from controlplane.execution.services.assignments import accept, report_state
from controlplane.execution.services.stops import stop_assignment
from jobs.models import Assignment, AssignmentEvent, AssignmentSlot, Job
from jobs.secrets import delete_secret, set_secret
from loadmaster.protocol import Accept, AssignmentState, ReasonClass, StopReason
from tests.builders import a_job, a_team
from tests.builders_agents import (
    LONG_AGO,
    a_node_with_agent,
    a_report,
    a_running_assignment,
    accepts,
    an_offer,
    reports,
)

S = AssignmentState
pytestmark = pytest.mark.django_db


def test_an_accepted_offer_tells_the_agent_everything(call: Any) -> None:
    node = a_node_with_agent(gpus=2)
    job = a_job(
        node.cluster,
        command=["python", "train.py"],
        environment={"EPOCHS": "3"},
        checkpoint_place="/checkpoints/job",
        total_steps=500,
        cores=2.0,
    )
    assignment = an_offer(node, job, gpus=2, steps_quota=100)
    spec = accepts(call, assignment).json()
    assert spec["assignment"] == str(assignment.pk)
    assert spec["command"] == ["python", "train.py"]
    assert spec["devices"] == [d.uuid for d in node.devices.order_by("uuid")]
    assert (spec["gpu_type"], spec["steps"], spec["steps_quota"], spec["cores"]) == (
        "V100",
        500,
        100,
        2.0,
    )
    assert (spec["environment"], spec["secrets"]) == ({"EPOCHS": "3"}, {})
    assert (spec["checkpoint_place"], spec["grace_s"]) == ("/checkpoints/job", 30.0)
    assert (spec["kind"], spec["kind_name"]) == (job.kind.digest, job.kind.name)
    assert spec["required_features"] == ["checkpoint", "process", "steps_quota"]
    assignment.refresh_from_db()
    assert (assignment.state, assignment.epoch) == (S.ACCEPTED, 1)
    assert assignment.lease_expires_at is not None


@pytest.mark.parametrize("to", [S.SUCCEEDED, S.PREEMPTED, S.FAILED])
def test_a_report_with_fewer_steps_takes_none_back(call: Any, to: AssignmentState) -> None:
    assignment = a_running_assignment(a_node_with_agent())
    Assignment.objects.filter(pk=assignment.pk).update(steps_done=80)
    reports(call, assignment, to, seq=2, steps=50)
    assignment.refresh_from_db()
    assert (assignment.state, assignment.steps_done) == (to, 80)


def test_secrets_are_revealed_to_the_agent_that_accepts_alone(call: Any) -> None:
    node = a_node_with_agent()
    team = a_team()
    set_secret(team, "api-key", "hunter2")
    assignment = an_offer(
        node, a_job(node.cluster, team=team, environment={"KEY": {"secret": "api-key"}, "A": "b"})
    )
    spec = accepts(call, assignment).json()
    assert (spec["secrets"], spec["environment"]) == ({"KEY": "hunter2"}, {"A": "b"})
    assert "hunter2" not in str(list(AssignmentEvent.objects.values()))


def test_a_job_whose_secret_has_gone_fails_with_its_name_and_not_the_agent(call: Any) -> None:
    node = a_node_with_agent()
    job = a_job(node.cluster, environment={"KEY": {"secret": "gone"}}, max_retries=0)
    assignment = an_offer(node, job)
    assert accepts(call, assignment).status_code == 409
    job.refresh_from_db()
    assert job.state == "failed"
    assert "gone" in job.failure_reason
    assert not AssignmentSlot.objects.filter(live=True).exists()


def test_accepting_again_gets_the_same_specification_and_no_longer_lease(call: Any) -> None:
    node = a_node_with_agent()
    assignment = an_offer(node)
    first = accepts(call, assignment)
    lease = Assignment.objects.get(pk=assignment.pk).lease_expires_at
    second = accepts(call, assignment)
    assert (first.status_code, second.status_code) == (200, 200)
    assert first.json() == second.json()
    assert Assignment.objects.get(pk=assignment.pk).lease_expires_at == lease


def test_an_accepted_launch_goes_on_though_its_secret_is_gone(call: Any) -> None:
    node, team = a_node_with_agent(), a_team()
    set_secret(team, "key", "hunter2")
    job = a_job(node.cluster, team=team, environment={"KEY": {"secret": "key"}})
    assignment = an_offer(node, job)
    assert accepts(call, assignment).status_code == 200
    delete_secret(team, "key")
    assert accepts(call, assignment).status_code == 409
    assert Assignment.objects.get(pk=assignment.pk).state == S.ACCEPTED


def test_a_launch_that_runs_on_after_silence_keeps_its_beginning(call: Any) -> None:
    assignment = a_running_assignment(a_node_with_agent())
    began = assignment.running_at
    Assignment.objects.filter(pk=assignment.pk).update(state=S.UNKNOWN)
    assert reports(call, assignment, S.RUNNING, seq=2).json()["state"] == S.RUNNING
    assert Assignment.objects.get(pk=assignment.pk).running_at == began


def test_a_profile_run_has_no_place_for_checkpoints(call: Any) -> None:
    node = a_node_with_agent()
    job = a_job(node.cluster, state="profiling", checkpoint_place="/checkpoints/job")
    spec = accepts(call, an_offer(node, job, purpose="profiling", copy=3, steps_quota=20)).json()
    assert (spec["checkpoint_place"], spec["purpose"], spec["copy"]) == ("", "profiling", 3)


@pytest.mark.parametrize(
    ("epoch", "fence", "code"),
    [(1, 7, "stale_assignment"), (2, 1, "stale_epoch"), (0, 1, "stale_epoch")],
)
def test_a_stale_accept_is_refused_and_changes_nothing(
    call: Any, epoch: int, fence: int, code: str
) -> None:
    assignment = an_offer(a_node_with_agent())
    answer = accepts(call, assignment, epoch=epoch, fence=fence)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, code)
    assert Assignment.objects.get(pk=assignment.pk).state == S.OFFERED


def test_another_nodes_offer_is_refused_as_if_it_did_not_exist(call: Any) -> None:
    node = a_node_with_agent()
    a_node_with_agent(node.cluster, token="the other's")
    assignment = an_offer(node)
    answers = [
        accepts(call, assignment, token="the other's"),
        call("put", f"assignments/{uuid.uuid4()}/accept", Accept(1, 1)),
    ]
    assert [(a.status_code, a.json()["error"]["code"]) for a in answers] == [
        (409, "stale_assignment")
    ] * 2
    assert Assignment.objects.get(pk=assignment.pk).state == S.OFFERED


def test_an_offer_withdrawn_meanwhile_cannot_be_accepted(call: Any) -> None:
    assignment = an_offer(a_node_with_agent())
    stop_assignment(assignment, StopReason.PREEMPT)
    assert assignment.state == S.PREEMPTED
    assert accepts(call, assignment).status_code == 409
    assert not AssignmentSlot.objects.filter(live=True).exists()


def test_reports_lead_an_assignment_and_its_job_to_the_end(call: Any) -> None:
    node = a_node_with_agent()
    assignment = an_offer(node)
    accepts(call, assignment)
    states = [
        reports(call, assignment, to, seq=n).json()["state"]
        for n, to in enumerate([S.PREPARING, S.RUNNING], 1)
    ]
    assert states == ["preparing", "running"]
    assert Job.objects.get().state == "running"
    assert (
        reports(call, assignment, S.SUCCEEDED, seq=3, exit_code=0, steps=100).json()["state"]
        == "succeeded"
    )
    assignment.refresh_from_db()
    assert (assignment.exit_code, assignment.steps_done) == (0, 100)
    assert assignment.ended_at is not None
    assert Job.objects.get().state == "completed"
    moves = list(assignment.events.values_list("move", flat=True))
    assert moves == ["accept", "prepare", "run", "succeed"]


@pytest.mark.parametrize(("ran_s", "began_s"), [(2.5, 7.5), (1e6, 0.0)])
def test_an_end_without_a_report_of_the_start_tells_both(ran_s: float, began_s: float) -> None:
    node, now = a_node_with_agent(now=LONG_AGO), LONG_AGO
    assignment = an_offer(node)
    accept(node.pk, assignment.pk, Accept(1, assignment.fence), now)
    end = a_report(assignment, S.SUCCEEDED, exit_code=0, ran_s=ran_s)
    for _ in range(2):
        report_state(node.pk, assignment.pk, end, now + timedelta(seconds=10))
    assignment.refresh_from_db()
    job = Job.objects.get()
    assert assignment.running_at == job.started_at == now + timedelta(seconds=began_s)
    assert job.state == "completed"
    assert list(assignment.events.values_list("move", flat=True)) == ["accept", "succeed"]


def test_an_end_does_not_change_the_start_that_is_known(call: Any) -> None:
    assignment = a_running_assignment(a_node_with_agent())
    reports(call, assignment, S.SUCCEEDED, seq=2, exit_code=0, ran_s=1e6)
    began = assignment.running_at
    assignment.refresh_from_db()
    assert assignment.running_at == began


def _statements(queries: CaptureQueriesContext) -> int:
    return sum("SAVEPOINT" not in query["sql"] for query in queries)


@pytest.mark.parametrize("ran_s", [None, 0.5])
def test_a_launch_costs_few_queries(call: Any, ran_s: float | None) -> None:
    node = a_node_with_agent(gpus=0)
    assignment = an_offer(node, a_job(node.cluster, gpus_min=0, gpus_max=0), gpus=0)
    call("get", f"nodes/{node.pk}/directives")  # makes its token known to this process
    with CaptureQueriesContext(connection) as accepting:
        accepts(call, assignment)
    with CaptureQueriesContext(connection) as ending:
        reports(call, assignment, S.SUCCEEDED, seq=2, exit_code=0, ran_s=ran_s)
    assert [_statements(accepting), _statements(ending)] == [7, 22]


def test_a_replayed_report_gets_200_and_changes_nothing(call: Any) -> None:
    assignment = a_running_assignment(a_node_with_agent())
    for _ in range(3):
        assert (
            reports(
                call, assignment, S.FAILED, seq=4, exit_code=1, reason_class=ReasonClass.USER
            ).status_code
            == 200
        )
    assert assignment.events.filter(move="fail").count() == 1
    assert Job.objects.get().retries_used == 1


def test_a_late_replay_of_an_earlier_state_gets_200_and_the_newest_state(call: Any) -> None:
    assignment = an_offer(a_node_with_agent())
    accepts(call, assignment)
    reports(call, assignment, S.PREPARING, seq=1)
    reports(call, assignment, S.RUNNING, seq=2)
    answer = reports(call, assignment, S.PREPARING, seq=1)
    assert (answer.status_code, answer.json()["state"]) == (200, "running")


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"fence": 9}, "stale_assignment"),
        ({"epoch": 2}, "stale_epoch"),
        ({"seq": 0}, "stale_assignment"),
    ],
)
def test_a_stale_report_is_refused_and_changes_nothing(
    call: Any, values: dict[str, Any], code: str
) -> None:
    assignment = a_running_assignment(a_node_with_agent())
    answer = reports(call, assignment, S.FAILED, **{"seq": 5, **values})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, code)
    assert Assignment.objects.get(pk=assignment.pk).state == S.RUNNING


def test_an_end_is_final(call: Any) -> None:
    assignment = a_running_assignment(a_node_with_agent())
    reports(call, assignment, S.SUCCEEDED, seq=1)
    assert reports(call, assignment, S.FAILED, seq=2).status_code == 409
    assert reports(call, assignment, S.RUNNING, seq=3).status_code == 409
    assert Job.objects.get().state == "completed"


def test_a_move_the_table_lacks_is_refused_by_name(call: Any) -> None:
    assignment = a_running_assignment(a_node_with_agent())
    answer = reports(call, assignment, S.PREPARING, seq=1)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "illegal_move")


@pytest.mark.parametrize("to", [S.OFFERED, S.UNKNOWN, S.LOST])
def test_an_agent_cannot_say_what_only_the_server_can_know(call: Any, to: AssignmentState) -> None:
    assignment = a_running_assignment(a_node_with_agent())
    answer = reports(call, assignment, to)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "to")


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"exit_code": 2**40}, "exit_code"),
        ({"steps": -1}, "steps"),
        ({"container": "c" * 201}, "container"),
        ({"seq": -1}, "seq"),
        ({"ran_s": -1.0}, "ran_s"),
    ],
)
def test_an_absurd_report_is_refused_by_field(
    call: Any, values: dict[str, Any], field: str
) -> None:
    answer = reports(call, a_running_assignment(a_node_with_agent()), S.FAILED, **values)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)


def test_the_longest_path_leaves_the_node_free(call: Any) -> None:
    node = a_node_with_agent()
    for _ in range(3):
        assignment = an_offer(node)
        accepts(call, assignment)
        reports(call, assignment, S.RUNNING, seq=1)
        reports(call, assignment, S.SUCCEEDED, seq=2)
    assert Node.objects.get().devices.filter(slots_held__live=True).count() == 0


def test_a_preparation_is_told_by_its_fraction(call: Any) -> None:
    node = a_node_with_agent()
    assignment = an_offer(node)
    accepts(call, assignment)
    assert reports(call, assignment, S.PREPARING, seq=1).status_code == 200
    assert reports(call, assignment, S.PREPARING, seq=2, prepared_fraction=0.4).status_code == 200
    assignment.refresh_from_db()
    assert (assignment.state, assignment.prepared_fraction, assignment.report_seq) == (
        S.PREPARING,
        0.4,
        2,
    )
    assert (
        reports(call, assignment, S.PREPARING, seq=3, prepared_fraction=1.5).json()["error"][
            "field"
        ]
        == "prepared_fraction"
    )


def test_the_first_launch_pins_the_jobs_image_and_later_ones_get_it(call: Any) -> None:
    node = a_node_with_agent()
    job = a_job(node.cluster, runtime="docker", image="train:1")
    assignment = an_offer(node, job)
    assert accepts(call, assignment).json()["image_digest"] == ""
    digests = [f"sha256:{letter * 64}" for letter in "ab"]
    reports(call, assignment, S.PREPARING, seq=1)
    for seq, digest in enumerate(digests, 2):
        assert reports(call, assignment, S.RUNNING, seq=seq, image_digest=digest).status_code == 200
    job.refresh_from_db()
    assert job.image_digest == digests[0]
    assert accepts(call, assignment).json()["image_digest"] == digests[0]
    assert (
        reports(call, assignment, S.RUNNING, seq=9, image_digest="latest").json()["error"]["field"]
        == "image_digest"
    )
