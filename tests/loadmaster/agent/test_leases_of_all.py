"""Leases of all runs are kept, however long the agent works for one of them."""

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from loadmaster.agent.server.shipping import PIECE_BYTES
from tests.builders_agent import Held, VirtualWorld, a_spec
from tests.fake_runtime import Script

RUNS = 8


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    """A node whose runs print much, under leases of 6 s."""
    script = Script(stdout=b"x" * 4 * PIECE_BYTES)
    return VirtualWorld(tmp_path, lambda spec: script, lease_s=6.0, heartbeat_s=1.0)


def offer(world: VirtualWorld, *, steps: int = 1000) -> list[Held]:
    return [world.server.offer(a_spec(f"a{n}", steps=steps, devices=())) for n in range(RUNS)]


def take_time(
    world: VirtualWorld, part: str, seconds: float, error: Callable[[], Exception] | None = None
) -> None:
    """Let calls with `part` in their address take that long, and then fail with `error`."""
    answer = world.server.answer

    def late(method: str, target: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        if part in target:
            world.clock.advance(seconds)
            if error:
                raise error()
        return answer(method, target, headers, body)

    world.server.answer = late  # type: ignore[method-assign]


def test_a_server_slow_to_take_output_costs_no_run_its_lease(world: VirtualWorld) -> None:
    runs = offer(world)
    world.pass_time(3)
    take_time(world, "/logs/", 0.7)
    world.pass_time(30)
    assert [run.states for run in runs] == [["running"]] * RUNS
    assert min(len(run.logs["stdout"]) for run in runs) > PIECE_BYTES, "runs take turns"


def test_a_server_that_takes_no_output_costs_no_run_its_lease(world: VirtualWorld) -> None:
    runs = offer(world)
    world.pass_time(3)
    take_time(world, "/logs/", 0.75, lambda: httpx.ReadTimeout("no answer"))
    world.pass_time(60)
    assert [run.states for run in runs] == [["running"]] * RUNS


def test_the_output_of_ended_runs_costs_no_run_its_lease(world: VirtualWorld) -> None:
    runs = offer(world, steps=10)
    lasting = world.server.offer(a_spec("long", steps=1000, devices=()))
    world.pass_time(3)
    take_time(world, "/logs/", 0.7)
    world.pass_time(60)
    assert lasting.states == ["running"]
    assert {run.states[-1] for run in runs} == {"succeeded"}
    assert min(len(run.logs["stdout"]) for run in runs) > PIECE_BYTES


def test_no_ended_run_is_forgotten_before_its_turn_to_ship(world: VirtualWorld) -> None:
    runs = offer(world, steps=2)
    take_time(world, "/logs/", 20.0)
    world.pass_time(400)
    assert world.agent.is_idle
    assert min(len(run.logs["stdout"]) for run in runs) >= PIECE_BYTES


@pytest.mark.parametrize("part", ["/accept", "/state"])
def test_slow_calls_for_other_runs_cost_no_run_its_lease(world: VirtualWorld, part: str) -> None:
    lasting = world.server.offer(a_spec("long", steps=1000, devices=()))
    world.pass_time(3)
    take_time(world, part, 3.0)
    runs = offer(world)
    world.pass_time(60)
    assert lasting.states == ["running"]
    assert [run.states for run in runs] == [["running"]] * RUNS


def test_runs_that_are_slow_to_measure_cost_no_run_its_lease(
    world: VirtualWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = offer(world)
    world.pass_time(3)
    monkeypatch.setattr(world.runtime, "usage", lambda run, **_: world.clock.advance(1.0))
    world.pass_time(60)
    assert [run.states for run in runs] == [["running"]] * RUNS
