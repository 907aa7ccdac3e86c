"""Many processes at once on PostgreSQL, where transactions really run side by side: nobody waits
for ever.
"""

import asyncio
import gzip
import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import OperationalError, connection, connections

from clusters.agent_errors import AgentCallError
from clusters.models import Node
from clusters.services.enrolment import issue_enrolment_token, register
from controlplane.execution.protocol.threads import Threads
from controlplane.execution.reconciler import reconcile_clusters
from controlplane.execution.services.assignments import accept, report_state
from controlplane.execution.services.logs import append_log
from controlplane.execution.services.sessions import open_session
from controlplane.execution.services.stops import stop_assignment
from jobs.models import Assignment, AssignmentSlot, Job
from loadmaster.protocol import Accept, AssignmentState, ReasonClass, StopReason
from tests.builders import a_cluster, a_gpu_type, a_job
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
from tests.builders_asgi import close_threads
from tests.builders_jobs import kept_output

S = AssignmentState
pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


def _at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Make all calls begin together, each with its own connection; their answers, refusals among
    them.
    """
    gate = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        gate.wait()
        try:
            return call()
        except AgentCallError as refusal:
            return refusal
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


@pytest.fixture(autouse=True)
def _needs_postgres() -> None:
    assert connection.vendor == "postgresql", (
        "this test needs DATABASE_URL to name a PostgreSQL server"
    )


def test_a_connection_that_dies_while_it_is_believed_to_live_fails_one_call() -> None:
    """Its thread asks seldom whether it lives: calls that come all the time are spared the
    question.
    """
    threads = Threads("believing", 1, trusted_s=60.0)

    async def pid() -> int:
        return await threads.run(_pid)

    async def play() -> list[object]:
        first = await pid()
        await sync_to_async(_end)(first)
        return [
            first,
            *(await asyncio.gather(pid(), return_exceptions=True)),
            await pid(),
            await pid(),
        ]

    first, failed, again, later = asyncio.run(play())
    close_threads(threads)
    assert isinstance(failed, OperationalError)
    assert again == later != first


def _end(pid: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [pid])
    connections.close_all()


def _pid() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (number,) = cursor.fetchone()
    return int(number)


def test_of_many_machines_with_one_token_one_gets_in() -> None:
    a_gpu_type("V100")
    token = issue_enrolment_token(a_cluster())
    machines = [a_registration(machine_id=f"machine-{n}", hostname=f"host-{n}") for n in range(8)]
    answers = _at_once(*(partial(register, token, machine) for machine in machines))
    assert sum(not isinstance(answer, AgentCallError) for answer in answers) == 1
    assert Node.objects.count() == 1


def test_sessions_opened_at_once_get_epochs_of_their_own() -> None:
    node = a_node_with_agent()
    request = a_session_request(node)
    answers = _at_once(*[lambda: open_session(node.pk, request)] * 8)
    assert sorted(answer.epoch for answer in answers) == list(range(2, 10))


def test_an_offer_is_either_accepted_or_withdrawn() -> None:
    node = a_node_with_agent()
    for _ in range(10):
        offer = an_offer(node)
        words = Accept(epoch=1, fence=offer.fence)
        taken, _ = _at_once(
            partial(accept, node.pk, offer.pk, words),
            partial(stop_assignment, offer, StopReason.PREEMPT),
        )
        offer.refresh_from_db()
        was_taken = not isinstance(taken, AgentCallError)
        assert (offer.state, offer.desired) == (S.ACCEPTED if was_taken else S.PREEMPTED, "preempt")
        assert AssignmentSlot.objects.filter(assignment=offer, live=True).exists() is was_taken
        if was_taken:
            report_state(node.pk, offer.pk, a_report(offer, S.PREEMPTED))


def test_ranks_that_end_at_once_move_their_job_once() -> None:
    nodes = [a_node_with_agent(token="first")]
    nodes += [a_node_with_agent(nodes[0].cluster, token=f"node {n}") for n in range(3)]
    for end, state in [(S.PREEMPTED, "queued"), (S.FAILED, "queued"), (S.SUCCEEDED, "completed")]:
        job = a_job(nodes[0].cluster, max_retries=10)
        ranks = [
            a_running_assignment(node, job, rank=n, world_size=4) for n, node in enumerate(nodes)
        ]
        reports = [a_report(rank, end, reason_class=ReasonClass.USER) for rank in ranks]
        _at_once(
            *(
                partial(report_state, a.node_id, a.pk, report)
                for a, report in zip(ranks, reports, strict=True)
            )
        )
        job.refresh_from_db()
        assert job.state == state
        assert job.events.exclude(event="place").exclude(event="run").count() == 1


def test_a_piece_of_output_sent_several_times_at_once_is_kept_once() -> None:
    assignment, text = a_running_assignment(a_node_with_agent()), b""
    for number in range(30):
        piece = f"{number:>4}\n".encode() * (1 + 997 * number % 200)
        digest, body = hashlib.sha256(piece).hexdigest(), gzip.compress(piece)
        send = partial(
            append_log, assignment.node, assignment.pk, "stdout", len(text), 1, 1, body, digest
        )
        text += piece
        answers = _at_once(send, send, send)
        assert answers.count(len(text)) == 1
        assert {a.expected for a in answers if isinstance(a, AgentCallError)} == {len(text)}
    assert kept_output(assignment) == text


def test_heartbeats_reports_stops_and_reconcilers_do_not_wait_for_each_other() -> None:
    nodes = [a_node_with_agent(token="first", gpus=4)]
    nodes.append(a_node_with_agent(nodes[0].cluster, token="second", gpus=4))
    jobs = [a_job(nodes[0].cluster) for _ in range(4)]
    held = [
        [
            a_running_assignment(node, job, rank=rank, world_size=2)
            for rank, node in enumerate(nodes)
        ]
        for job in jobs
    ]
    own = [[gang[n] for gang in held] for n in range(2)]

    def beats(node: Node, assignments: list[Assignment]) -> None:
        for seq in range(1, 15):
            heartbeat(node.pk, a_heartbeat(*assignments, seq=seq))

    _at_once(
        lambda: beats(nodes[0], own[0]),
        lambda: beats(nodes[1], own[1]),
        lambda: [report_state(nodes[0].pk, a.pk, a_report(a, S.PREEMPTED)) for a in own[0]],
        lambda: [
            report_state(nodes[1].pk, a.pk, a_report(a, S.PREEMPTED)) for a in reversed(own[1])
        ],
        lambda: [stop_assignment(a, StopReason.PREEMPT) for gang in held for a in gang],
        lambda: [reconcile_clusters() for _ in range(8)],
    )
    assert set(Job.objects.values_list("state", flat=True)) == {"queued"}
    assert not AssignmentSlot.objects.filter(live=True).exists()
