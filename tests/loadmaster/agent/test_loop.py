"""The whole agent on a virtual clock: fake runtime, fake server."""

import random
from pathlib import Path

import pytest

from loadmaster.agent.journal import JournalError
from loadmaster.agent.runtimes.base import Launch, RunId
from loadmaster.protocol import AssignmentState, LaunchSpec, ReasonClass, StopReason
from tests.builders_agent import VirtualWorld, a_spec
from tests.fake_runtime import FakeRuntime, Script


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    return VirtualWorld(tmp_path, lease_s=10.0, heartbeat_s=2.0)


def test_a_job_is_accepted_run_and_told_to_its_end(world: VirtualWorld) -> None:
    held = world.server.offer(a_spec(steps=10))
    world.pass_time(15)
    assert held.states == ["running", "succeeded"]
    assert held.reports[-1].steps == 10
    assert held.reports[-1].observed_at_s == pytest.approx(1010.0, abs=0.5)
    assert [sample.step for sample in held.progress] == sorted(
        sample.step for sample in held.progress
    )
    assert held.progress[-1].event == "end"
    assert world.agent.is_idle


def test_nothing_starts_before_the_first_lease(world: VirtualWorld) -> None:
    world.server.grants = False
    held = world.server.offer(a_spec())
    world.pass_time(6)
    assert held.states == ["preparing"]
    assert world.runtime.launches == []
    world.server.grants = True
    world.pass_time(3)
    assert world.runtime.launches == [RunId("a1", 1)]


def test_an_offer_that_never_gets_a_lease_is_given_up(world: VirtualWorld) -> None:
    world.server.grants = False
    held = world.server.offer(a_spec())
    world.pass_time(15)
    assert (held.states[-1], held.reports[-1].reason_class) == ("failed", ReasonClass.LEASE)
    assert world.runtime.launches == []


def test_a_lease_counts_from_when_its_renewal_was_sent(
    world: VirtualWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.server.offer(a_spec(steps=1000))
    world.agent.tick()
    answer = world.server.answer

    def slow(method: str, target: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        answered = answer(method, target, headers, body)
        if target.endswith("/heartbeat"):
            world.clock.advance(3.0)
        return answered

    world.pass_time(4)
    monkeypatch.setattr(world.server, "answer", slow)
    sent: list[float] = []
    while not sent or world.server.beats[-1].sent_at_s == sent[0]:
        sent = sent or [world.server.beats[-1].sent_at_s]
        world.agent.tick()
        world.clock.advance(0.25)
    assert (
        world.runtime.plays[RunId("a1", 1)].lease_until_s == world.server.beats[-1].sent_at_s + 10.0
    )


def test_a_job_ends_with_its_lease_when_the_server_is_away_and_is_told_later(
    world: VirtualWorld,
) -> None:
    held = world.server.offer(a_spec(steps=1000))
    world.pass_time(4)
    world.server.down = True
    world.pass_time(30)
    assert world.runtime.poll(RunId("a1", 1)).exit is not None
    world.server.down = False
    world.pass_time(12)
    assert (held.states[-1], held.reports[-1].reason_class) == ("preempted", ReasonClass.LEASE)


def test_a_short_outage_costs_nothing(world: VirtualWorld) -> None:
    held = world.server.offer(a_spec(steps=20))
    world.pass_time(4)
    world.server.down = True
    world.pass_time(5)
    world.server.down = False
    world.pass_time(20)
    assert held.states == ["running", "succeeded"]
    assert world.runtime.launches == [RunId("a1", 1)]


@pytest.mark.parametrize("call", ["accept", "state", "heartbeat", "session", "metrics"])
def test_a_lost_answer_is_repaired_by_repeating(world: VirtualWorld, call: str) -> None:
    world.server.lost_answers[call] = 2
    held = world.server.offer(a_spec(steps=5))
    world.pass_time(40)
    assert held.states == ["running", "succeeded"]
    assert world.runtime.launches == [RunId("a1", 1)]
    assert held.progress[-1].event == "end"


def test_a_preempted_job_saves_leaves_and_resumes_elsewhere(world: VirtualWorld) -> None:
    held = world.server.offer(a_spec(steps=20))
    world.pass_time(8)
    world.server.stop("a1", StopReason.PREEMPT)
    world.pass_time(4)
    assert held.states == ["running", "stopping", "preempted"]
    done = held.reports[-1].steps
    assert done is not None
    assert done == world.runtime.saved["job-1"] > 0
    again = world.server.offer(a_spec("a2", fence=2, steps=20))
    world.pass_time(20)
    assert again.states[-1] == "succeeded"
    assert min(sample.step for sample in again.progress) > done


def test_a_cancelled_job_ends_without_saving(world: VirtualWorld) -> None:
    held = world.server.offer(a_spec(steps=20))
    world.pass_time(8)
    world.server.stop("a1", StopReason.CANCEL)
    world.pass_time(4)
    assert held.states[-1] == "cancelled"
    assert world.runtime.saved == {}


def test_an_offer_cancelled_before_its_start_never_starts(world: VirtualWorld) -> None:
    world.server.grants = False
    held = world.server.offer(a_spec())
    world.pass_time(1)
    world.server.stop("a1", StopReason.CANCEL)
    world.pass_time(3)
    assert held.states == ["preparing", "cancelled"]
    assert world.runtime.launches == []


def test_a_quota_of_steps_ends_a_launch_as_success(world: VirtualWorld) -> None:
    held = world.server.offer(a_spec(steps=20, steps_quota=4))
    world.pass_time(8)
    assert (held.states[-1], held.reports[-1].steps) == ("succeeded", 4)
    assert held.progress[-1].event == "quota"


def test_a_new_term_reaches_the_job(world: VirtualWorld) -> None:
    held = world.server.offer(a_spec(steps=1000))
    world.pass_time(4)
    held.term_until_s = world.clock.now_s + 5
    world.pass_time(12)
    assert (held.states[-1], held.reports[-1].reason_class) == ("preempted", ReasonClass.PREEMPT)


def test_a_restarted_agent_adopts_what_runs(world: VirtualWorld) -> None:
    held = world.server.offer(a_spec(steps=10))
    world.pass_time(4)
    world.restart()
    world.pass_time(10)
    assert held.states == ["running", "succeeded"]
    assert world.runtime.launches == [RunId("a1", 1)]
    assert [known.id for known in world.server.sessions[-1].assignments] == ["a1"]
    assert len({request.session_secret for request in world.server.sessions}) == 1


def test_a_crash_between_journal_and_start_never_starts_the_launch(
    world: VirtualWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(run: RunId, lease_until_s: float) -> None:
        raise KeyboardInterrupt

    held = world.server.offer(a_spec())
    with monkeypatch.context() as patch:
        patch.setattr(world.runtime, "start", crash)
        with pytest.raises(KeyboardInterrupt):
            world.pass_time(4)
    world.restart()
    world.pass_time(6)
    assert world.runtime.launches == []
    assert (held.states[-1], held.reports[-1].reason_class) == ("failed", ReasonClass.NODE)


def test_a_stray_is_stopped_after_a_while(world: VirtualWorld) -> None:
    spec = a_spec("stray", steps=1000)
    world.runtime.prepare(Launch(RunId("stray", 1), spec, {}, 2.0, "boot"))
    world.runtime.start(RunId("stray", 1), 1e9)
    world.pass_time(5)
    assert world.runtime.list() == (RunId("stray", 1),)
    world.pass_time(20)
    assert world.runtime.list() == ()


def test_what_the_server_does_not_know_is_stopped_at_the_next_session(world: VirtualWorld) -> None:
    world.server.offer(a_spec(steps=1000))
    world.pass_time(4)
    del world.server.held["a1"]
    world.restart()
    world.pass_time(6)
    assert world.runtime.list() == ()
    assert world.agent.is_idle


def test_a_stale_epoch_opens_a_new_session_and_loses_nothing(world: VirtualWorld) -> None:
    held = world.server.offer(a_spec(steps=10))
    world.pass_time(4)
    world.server.epoch += 1
    world.pass_time(16)
    assert held.states == ["running", "succeeded"]
    assert len(world.server.sessions) == 2


def test_a_node_whose_session_another_machine_holds_waits(world: VirtualWorld) -> None:
    world.server.secret = "another's"
    world.server.offer(a_spec())
    world.pass_time(10)
    assert world.server.beats == []
    world.server.secret = ""
    world.pass_time(15)
    assert "running" in world.server.held["a1"].states


def test_what_the_node_cannot_run_is_rejected(world: VirtualWorld) -> None:
    held = world.server.offer(a_spec(required_features=("teleport",)))
    world.pass_time(3)
    assert (held.states, held.reports[-1].reason_class) == (["rejected"], ReasonClass.NODE)
    assert "teleport" in held.reports[-1].reason


def test_a_device_is_given_to_one_assignment_at_a_time(world: VirtualWorld) -> None:
    world.server.offer(a_spec("a1", steps=1000))
    world.pass_time(3)
    second = world.server.offer(a_spec("a2"))
    world.pass_time(3)
    assert second.states == ["rejected"]


def test_an_old_offer_that_arrives_late_is_not_run_again(world: VirtualWorld) -> None:
    held = world.server.offer(a_spec(steps=2))
    world.pass_time(6)
    held.state = AssignmentState.OFFERED
    world.pass_time(6)
    assert world.runtime.launches == [RunId("a1", 1)]


def test_an_offer_not_yet_begun_is_given_back_when_the_agent_leaves(world: VirtualWorld) -> None:
    world.server.grants = False
    held = world.server.offer(a_spec())
    world.pass_time(1)
    world.agent.stop_all()
    assert held.states == ["preparing", "preempted"]


def test_use_and_modelled_watts_are_told(world: VirtualWorld) -> None:
    held = world.server.offer(a_spec(steps=10))
    world.pass_time(6)
    usage = [sample for batch in held.batches for sample in batch.usage]
    assert usage
    assert (usage[-1].gpu_power_w, usage[-1].power_source) == (250.0, "modelled")
    devices = {sample.uuid: sample.power_w for sample in world.server.beats[-1].devices}
    assert devices == {"emulated-n1-0": 250.0, "emulated-n1-1": 40.0}


def test_batches_are_numbered_without_repeating_over_a_restart(world: VirtualWorld) -> None:
    held = world.server.offer(a_spec(steps=20))
    world.pass_time(6)
    world.restart()
    world.pass_time(20)
    numbers = [batch.seq for batch in held.batches]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("seed", range(12))
def test_whatever_the_network_does_a_launch_happens_at_most_once_and_its_end_is_told(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    world = VirtualWorld(
        tmp_path, lambda spec: Script(step_s=0.5, leaves_in_s=0.5), lease_s=8.0, heartbeat_s=1.0
    )
    helds = [
        world.server.offer(
            a_spec(f"a{number}", job=f"job-{number}", devices=(f"emulated-n1-{number}",))
        )
        for number in range(2)
    ]
    for _ in range(30):
        match chance.randrange(6):
            case 0:
                world.server.down = not world.server.down
            case 1:
                call = chance.choice(["accept", "state", "heartbeat", "session", "metrics", "logs"])
                world.server.lost_answers[call] = chance.randrange(3)
            case 2:
                world.restart()
            case 3:
                world.server.epoch += 1
        world.pass_time(chance.uniform(0.1, 2.0))
    world.server.down = False
    world.pass_time(60)
    assert len(world.runtime.launches) == len(set(world.runtime.launches))
    assert world.agent.is_idle
    assert all(held.state.value in {"succeeded", "preempted", "failed"} for held in helds), [
        held.states for held in helds
    ]


def test_two_agents_cannot_share_a_state_folder(world: VirtualWorld) -> None:
    with pytest.raises(JournalError, match="another agent"):
        world.restart(close=False)


class TestFakeRuntime:
    """What the worlds without processes rest on."""

    def play(self, world: VirtualWorld, spec: LaunchSpec) -> FakeRuntime:
        run = RunId(spec.assignment, spec.fence)
        world.runtime.prepare(Launch(run, spec, {}, 5.0, "boot"))
        world.runtime.start(run, 1e9)
        return world.runtime

    def test_a_job_takes_its_steps_times(self, tmp_path: Path) -> None:
        world = VirtualWorld(tmp_path, lambda spec: Script(step_s=0.5, setup_s=2.0))
        runtime = self.play(world, a_spec(steps=10))
        world.clock.advance(100.0)
        ended = runtime.poll(RunId("a1", 1)).exit
        assert ended is not None
        assert ended.ended_at_s == 1000.0 + 2.0 + 5.0

    def test_profiling_neither_uses_nor_leaves_checkpoints(self, tmp_path: Path) -> None:
        world = VirtualWorld(tmp_path)
        world.runtime.saved["job-1"] = 7
        runtime = self.play(world, a_spec(purpose="profiling", steps=10, steps_quota=4))
        world.clock.advance(4.0)
        assert runtime.poll(RunId("a1", 1)).exit is not None
        assert runtime.saved == {"job-1": 7}

    def test_a_job_that_is_too_slow_to_leave_saves_nothing(self, tmp_path: Path) -> None:
        world = VirtualWorld(tmp_path, lambda spec: Script(leaves_in_s=60.0))
        held = world.server.offer(a_spec(steps=1000))
        world.pass_time(5)
        world.server.stop("a1", StopReason.PREEMPT)
        world.pass_time(10)
        assert held.states[-1] == "preempted"
        assert world.runtime.saved == {}

    def test_a_job_fails_where_its_script_says(self, tmp_path: Path) -> None:
        world = VirtualWorld(tmp_path, lambda spec: Script(fails_at_step=3, exit_code=9))
        held = world.server.offer(a_spec())
        world.pass_time(6)
        assert (held.states[-1], held.reports[-1].exit_code, held.reports[-1].steps) == (
            "failed",
            9,
            3,
        )


@pytest.mark.parametrize("grace_s", [1.0, 7.0])
def test_a_launch_has_the_grace_that_it_was_promised(world: VirtualWorld, grace_s: float) -> None:
    """For that the server waits, whatever the cluster's grace was when the session began."""
    world.server.offer(a_spec(grace_s=grace_s))
    world.pass_time(3)
    (play,) = world.runtime.plays.values()
    assert play.grace_s == grace_s
