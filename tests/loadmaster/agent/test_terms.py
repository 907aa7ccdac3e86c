"""Terms between server, agent and job: prolonged or not, whatever the machines' clocks say."""

from pathlib import Path

import pytest

from loadmaster.agent.guarding import guard_orders
from loadmaster.agent.runtimes.base import RunId, Term
from loadmaster.agent.runtimes.process import ProcessRuntime
from tests.builders_agent import Held, VirtualWorld, a_spec
from tests.fake_runtime import VirtualClock

RUN = RunId("a1", 1)


@pytest.fixture(params=[-5000.0, 0.0, 5000.0], ids=["slow", "right", "fast"])
def skew_s(request: pytest.FixtureRequest) -> float:
    """By how much the server's clock is ahead of the node's."""
    return float(request.param)


class World(VirtualWorld):
    """A node and a server whose clocks differ by `skew_s`; terms are said in seconds from now."""

    def __init__(self, state_dir: Path, skew_s: float) -> None:
        super().__init__(state_dir, lease_s=60.0, heartbeat_s=10.0)
        self.server.clock_s = self.server_s
        self._skew_s = skew_s

    def server_s(self) -> float:
        return self.clock.now_s + self._skew_s

    def offer(self, term_s: float | None) -> Held:
        until_s = None if term_s is None else self.server_s() + term_s
        return self.server.offer(a_spec(steps=1000, term_until_s=until_s))

    def prolong(self, held: Held, term_s: float | None) -> None:
        held.term_until_s = None if term_s is None else self.server_s() + term_s
        held.term_told = True


@pytest.fixture
def world(tmp_path: Path, skew_s: float) -> World:
    return World(tmp_path, skew_s)


def test_a_term_lasts_as_long_as_the_server_means_whatever_the_clocks_say(world: World) -> None:
    held = world.offer(30.0)
    world.pass_time(29)
    assert held.states[-1] == "running"
    world.pass_time(3)
    assert held.states[-1] == "preempted"
    assert (held.reports[-1].exit_code, held.reports[-1].reason) == (75, "the job's term was over")


def test_a_prolonged_term_costs_the_job_nothing(world: World) -> None:
    held = world.offer(30.0)
    world.pass_time(15)
    world.prolong(held, 45.0)
    world.pass_time(40)
    assert held.states == ["running"]
    world.pass_time(8)
    assert held.states[-1] == "preempted"
    assert len(world.runtime.launches) == 1


def test_a_term_that_is_prolonged_in_its_last_seconds_is_asked_for_in_time(world: World) -> None:
    held = world.offer(25.0)
    world.pass_time(20.5)  # its regular heartbeat is over, the next one would come too late
    world.prolong(held, 100.0)
    world.pass_time(10)
    assert held.states[-1] == "running"


def test_near_the_end_of_a_term_the_agent_asks_once_more_and_not_all_the_time(world: World) -> None:
    world.offer(25.0)
    world.pass_time(20.5)
    before = len(world.server.beats)
    world.pass_time(4.25)
    assert len(world.server.beats) == before + 1


def test_a_prolongation_that_comes_after_the_end_changes_nothing(world: World) -> None:
    held = world.offer(25.0)
    world.pass_time(26)
    assert held.states[-1] == "preempted"
    world.prolong(held, 100.0)
    world.pass_time(5)
    assert (held.states[-1], len(world.runtime.launches)) == ("preempted", 1)


def test_a_term_may_be_taken_back(world: World) -> None:
    held = world.offer(25.0)
    world.pass_time(12)
    world.prolong(held, None)
    world.pass_time(60)
    assert held.states[-1] == "running"


def test_a_job_may_be_given_a_term_later(world: World) -> None:
    held = world.offer(None)
    world.pass_time(12)
    world.prolong(held, 20.0)
    world.pass_time(25)
    assert held.states[-1] == "preempted"


def test_a_term_counts_on_while_the_agent_is_restarted(world: World) -> None:
    held = world.offer(30.0)
    world.pass_time(12)
    world.restart()
    world.server.clock_s = world.server_s
    world.pass_time(22)
    assert held.states[-1] == "preempted"


def test_an_answer_that_takes_long_never_makes_a_term_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, 0.0)
    answer = world.server.answer

    def slow(method: str, target: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        world.clock.advance(2.0 if target.endswith("/accept") else 0.0)
        return answer(method, target, headers, body)

    monkeypatch.setattr(world.server, "answer", slow)
    world.offer(30.0)
    world.agent.tick()
    term = world.runtime.plays[RUN].term
    assert term.ends_s == pytest.approx(1000.0 + 30.0 - 2.0)


def test_a_server_that_does_not_tell_its_clock_is_believed_to_have_the_nodes(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, 0.0)
    world.server.clock_s = None
    held = world.offer(30.0)
    world.pass_time(28)
    assert held.states[-1] == "running"
    world.pass_time(4)
    assert held.states[-1] == "preempted"


def test_a_clock_that_is_no_number_counts_as_none(tmp_path: Path) -> None:
    world = World(tmp_path, 0.0)
    world.server.clock_s = lambda: float("nan")
    held = world.offer(5.0)
    world.pass_time(8)
    assert held.states[-1] == "preempted"


class TestTheFile:
    """What the job reads: see docs/training.md."""

    @pytest.fixture
    def runtime(self, tmp_path: Path) -> ProcessRuntime:
        runtime = ProcessRuntime(tmp_path, VirtualClock(1000.0))
        runtime.folder(RUN).mkdir()
        return runtime

    def term(self, runtime: ProcessRuntime) -> dict[str, object]:
        return guard_orders.read_json(runtime.folder(RUN) / "term.json") or {}

    def test_it_ends_by_the_boot_clock_and_for_older_libraries_by_this_machines_own(
        self, runtime: ProcessRuntime
    ) -> None:
        runtime._clock = _Skewed(boot=50.0, wall=2000.0)
        runtime.update(RUN, Term(9e9, 80.0))
        assert self.term(runtime) == {
            "version": 1, "fence": 1, "stop": False, "reason": None, "grace_s": 30.0,
            "term_until_s": 2030.0, "term_ends_boot_s": 80.0,
        }  # fmt: skip

    def test_a_term_that_is_taken_back_is_none(self, runtime: ProcessRuntime) -> None:
        runtime.update(RUN, Term(9e9, 80.0))
        runtime.update(RUN, Term())
        assert (self.term(runtime)["term_until_s"], self.term(runtime)["term_ends_boot_s"]) == (
            None,
            None,
        )


class _Skewed:
    """Clocks that have nothing to do with each other."""

    def __init__(self, boot: float, wall: float) -> None:
        self._boot, self._wall = boot, wall

    def boot_s(self) -> float:
        return self._boot

    def wall_s(self) -> float:
        return self._wall
