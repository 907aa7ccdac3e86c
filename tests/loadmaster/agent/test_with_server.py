"""The real agent and the real server, without a network between them."""

import shutil
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from clusters.models import Node
from clusters.services.enrolment import issue_enrolment_token
from controlplane.execution.services.stops import stop_assignment
from jobs.lifecycle import JobState
from loadmaster.agent.node.machine import Devices
from loadmaster.agent.runtimes.cgroups import Cgroups
from loadmaster.agent.runtimes.process import ProcessRuntime
from loadmaster.agent.server.client import Duplicate, Unauthorized
from loadmaster.features import SHARED, limits_of
from loadmaster.protocol import AssignmentState, ReasonClass, StopReason
from tests.builders import a_job
from tests.builders_agent import python, until
from tests.builders_agent_site import NodeSite, a_site_cluster, is_state
from tests.builders_agents import an_offer
from tests.builders_cgroups import own_cgroups
from tests.builders_jobs import kept_output
from tests.builders_live import a_round

pytestmark = pytest.mark.django_db

SLEEPS = "import time; time.sleep(60)"
TRAINER = python(
    "import loadmaster.training as training\n"
    "done = [0]\n"
    "def save(path): path.write_text(str(done[0]))\n"
    "def load(path): done[0] = int(path.read_text())\n"
    "for batch in training.steps(range(10), save=save, load=load):\n"
    "    done[0] += 1\n"
    "    training.report(loss=1.0 / done[0])\n"
    "print('steps', done[0])\n"
)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeSite]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    site = NodeSite(a_site_cluster(), tmp_path)
    yield site
    site.leave()


def test_a_training_job_is_preempted_resumed_after_a_restart_of_the_agent_and_finished(
    site: NodeSite,
) -> None:
    job = a_job(site.cluster, command=list(TRAINER), total_steps=60)
    first = an_offer(site.node, job)
    until(lambda: is_state(first, AssignmentState.RUNNING) and first.steps_done > 5, site.agent)
    stop_assignment(first, StopReason.PREEMPT)
    until(lambda: is_state(first, AssignmentState.PREEMPTED), site.agent)
    job.refresh_from_db()
    assert (first.exit_code, first.reason_class, job.state) == (
        75,
        ReasonClass.PREEMPT,
        JobState.QUEUED,
    )
    second = an_offer(site.node, job)
    until(lambda: is_state(second, AssignmentState.RUNNING), site.agent)
    site.restart()
    until(lambda: is_state(second, AssignmentState.SUCCEEDED) and site.agent.is_idle, site.agent)
    job.refresh_from_db()
    assert (kept_output(second), second.steps_done, job.state) == (
        b"steps 60\n",
        60,
        JobState.COMPLETED,
    )


def test_a_failing_job_says_why(site: NodeSite) -> None:
    assignment = an_offer(
        site.node, a_job(site.cluster, command=list(python("raise SystemExit('no data')")))
    )
    until(lambda: is_state(assignment, AssignmentState.FAILED), site.agent)
    assert assignment.reason_class == ReasonClass.USER
    assert "no data" in assignment.reason


@pytest.mark.parametrize("exit_code", [0, 3])
def test_a_job_that_outlives_its_walltime_is_ended_and_not_tried_again_whatever_it_returns(
    site: NodeSite, exit_code: int
) -> None:
    script = f"import signal,sys,time; signal.signal(15, lambda *_: sys.exit({exit_code}));"
    job = a_job(
        site.cluster,
        command=list(python(f"{script} time.sleep(60)")),
        batch=True,
        walltime_s=1.5,
        on_walltime="kill",
        max_retries=3,
    )
    assignment = an_offer(site.node, job)
    until(lambda: is_state(assignment, AssignmentState.FAILED), site.agent)
    job.refresh_from_db()
    assert (assignment.reason_class, job.state) == (ReasonClass.LIMIT, JobState.FAILED)
    assert "it ran for its whole walltime and was ended" in job.failure_reason
    assert job.retries_used == 0


def test_a_machine_without_gpus_enrols_and_runs_a_batch_job_that_is_billed(
    tmp_path: Path,
) -> None:
    site = NodeSite(a_site_cluster(), tmp_path, devices=Devices())
    try:
        assert (site.node.gpu_type, site.node.devices.count()) == (None, 0)
        script = "import os; print('GPUs:', repr(os.environ['CUDA_VISIBLE_DEVICES']))"
        fields: dict[str, Any] = {"gpus_min": 0, "gpus_max": 0, "batch": True, "total_steps": 1}
        job = a_job(site.cluster, command=list(python(script)), **fields)
        listens = Node.objects.filter(pk=site.node.pk, session_expires_at__isnull=False)
        until(listens.exists, site.agent)
        a_round(site.cluster)
        assignment = job.assignments.get()
        until(lambda: is_state(assignment, AssignmentState.SUCCEEDED), site.agent)
        until(lambda: site.agent.is_idle, site.agent)
        job.refresh_from_db()
        assert (job.state, assignment.gpus) == (JobState.COMPLETED, 0)
        assert kept_output(assignment) == b"GPUs: ''\n"
        assert assignment.energy_kwh is not None
    finally:
        site.leave()


def test_nothing_of_a_job_runs_after_its_deadline(site: NodeSite) -> None:
    deadline = timezone.now() + timedelta(seconds=2)
    job = a_job(site.cluster, command=list(python(SLEEPS)), deadline_at=deadline)
    assignment = an_offer(site.node, job)
    until(lambda: is_state(assignment, AssignmentState.FAILED), site.agent)
    job.refresh_from_db()
    assert (assignment.reason_class, job.state) == (ReasonClass.LIMIT, JobState.FAILED)
    assert "its deadline came while it ran" in job.failure_reason


def test_a_job_is_sent_its_signal_before_its_walltime_is_over(site: NodeSite) -> None:
    script = "import signal, time; signal.signal(10, lambda *_: exit(0)); time.sleep(60)"
    fields: dict[str, Any] = {"walltime_s": 5.0, "on_walltime": "kill", "batch": True}
    job = a_job(site.cluster, command=list(python(script)), signal="USR1@3", **fields)
    assignment = an_offer(site.node, job)
    until(lambda: is_state(assignment, AssignmentState.SUCCEEDED), site.agent)


def test_a_cancelled_job_ends(site: NodeSite) -> None:
    assignment = an_offer(
        site.node, a_job(site.cluster, command=list(python("import time; time.sleep(60)")))
    )
    until(lambda: is_state(assignment, AssignmentState.RUNNING), site.agent)
    stop_assignment(assignment, StopReason.CANCEL)
    until(lambda: is_state(assignment, AssignmentState.CANCELLED), site.agent)


def test_a_used_token_enrols_no_other_machine(site: NodeSite) -> None:
    token = issue_enrolment_token(site.cluster)
    words = site.registration()
    site.client.register(token, words)
    site.restart()
    with pytest.raises(Unauthorized):
        site.client.register("no such token", words)


def test_of_two_agents_with_one_state_folder_the_first_gives_up(
    site: NodeSite, tmp_path: Path
) -> None:
    until(lambda: site.agent.session.epoch is not None, site.agent)
    clone_dir = tmp_path / "clone"
    clone_dir.mkdir()
    shutil.copy(site.state_dir / "journal.jsonl", clone_dir)
    original, state_dir = site.agent, site.state_dir

    # The copy begins as the same machine would, and takes the session over.
    site.state_dir = clone_dir
    site.agent = site.start()
    until(lambda: site.agent.session.epoch == 2, site.agent)
    with pytest.raises(Duplicate, match="by a copy of this state folder"):
        until(lambda: False, original, within_s=10.0)
    original.close()
    site.agent.tick()
    assert (site.agent.session.epoch, state_dir.exists()) == (2, True)


@pytest.mark.root
def test_a_job_killed_for_memory_learns_the_field_to_raise(tmp_path: Path) -> None:
    with own_cgroups() as groups:
        site = NodeSite(a_site_cluster(), tmp_path, runtime=partial(runtime_with_cgroups, groups))
        try:
            code = "held = bytearray(400 * 10**6); print(len(held))"
            job = a_job(site.cluster, command=list(python(code)), memory_gb=0.1, max_retries=0)
            assignment = an_offer(site.node, job)
            until(lambda: is_state(assignment, AssignmentState.FAILED), site.agent)
            job.refresh_from_db()
        finally:
            site.leave()
    assert assignment.reason_class == ReasonClass.OOM
    assert "it asked for 0.1 GB of memory; raise memory_gb" in job.failure_reason
    assert limits_of(site.node.features) == ("memory", "processes", "cores")


def runtime_with_cgroups(groups: Cgroups, state_dir: Path) -> ProcessRuntime:
    """Return the runtime of a node that all teams share, with cgroups."""
    runtime = ProcessRuntime(state_dir / "runs", cgroups=groups)
    runtime.features = (SHARED, *runtime.features)
    return runtime
