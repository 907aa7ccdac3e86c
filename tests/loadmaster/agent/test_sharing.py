"""Jobs that share a GPU: their pace on an emulated one, and who has no room beside whom."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from loadmaster.agent.node.emulated import KEPT, Emulation, EmulationError, parse_emulation
from loadmaster.agent.node.machine import EmulatedDevices
from loadmaster.agent.node.sampling import per_holder
from loadmaster.agent.outcome import outcome_of
from loadmaster.agent.runtimes.base import Exit
from loadmaster.protocol import (
    OUT_OF_SHARED_MEMORY,
    AssignmentState,
    DeviceSample,
    ReasonClass,
    StopReason,
)
from loadmaster.training.run_folder import PaceWatch
from tests.builders_agent import (
    FakeServer,
    VirtualWorld,
    a_spec,
    an_agent,
    an_emulation,
    python,
    until,
)

TABLE = {
    "digits": {"text": 0.8, "speech": 0.0},
    "text": {"default": 0.5},
    "default": {"default": 0.7},
}
STEPS = {"digits": {1: 0.05, 2: 0.03}, "text": {1: 0.1}, "speech": {1: 0.1}}
FOREVER = python(
    "import loadmaster.training as training\nfor _ in training.steps(range(100000), save=lambda"
    " path: path.write_text(''), load=lambda path: None): pass\n"
)


def a_world(tmp_path: Path) -> VirtualWorld:
    """An agent of emulated GPUs with the tables above, whose jobs are played."""
    world = VirtualWorld(tmp_path)
    world.agent.close()
    devices = EmulatedDevices(an_emulation(step_s=STEPS, shared=TABLE), "n1", slots=2)
    world.agent = an_agent(
        world.server, tmp_path, runtime=world.runtime, clock=world.clock, devices=devices
    )
    return world


def offer(world: VirtualWorld, name: str, kind: str, slot: int = 0) -> None:
    """A long job of a kind on the node's first GPU."""
    world.server.offer(
        a_spec(name, job=f"job-{name}", kind_name=kind, slot=slot, share=0.5, steps=10_000)
    )
    world.pass_time(2.0)


def paces(world: VirtualWorld, name: str) -> list[Any]:
    """The step times a run was told."""
    return [
        pytest.approx(p)
        for run, play in world.runtime.plays.items()
        if run.assignment == name
        for p in play.paces_s
    ]


def test_two_kinds_slow_each_other_by_the_table_for_as_long_as_they_share(tmp_path: Path) -> None:
    world = a_world(tmp_path)
    offer(world, "a", "digits")
    offer(world, "b", "text", slot=1)
    world.server.stop("b", StopReason.CANCEL)
    world.pass_time(5.0)
    assert paces(world, "a") == [0.05, 0.05 / 0.8, 0.05]
    assert world.server.held["b"].state == AssignmentState.CANCELLED


def test_a_rank_of_a_gang_goes_at_the_pace_of_all_its_gpus(tmp_path: Path) -> None:
    world = a_world(tmp_path)
    world.server.offer(a_spec("a", job="job-a", kind_name="digits", gang_gpus=2, steps=10_000))
    world.pass_time(2.0)
    assert paces(world, "a") == [0.03]


def test_the_later_of_two_that_do_not_fit_is_out_of_memory_and_the_first_goes_on_alone(
    tmp_path: Path,
) -> None:
    world = a_world(tmp_path)
    offer(world, "a", "digits")
    offer(world, "b", "speech", slot=1)
    world.pass_time(5.0)
    last = world.server.held["b"].reports[-1]
    assert (last.to, last.reason_class) == (AssignmentState.FAILED, ReasonClass.GPU)
    assert last.reason == OUT_OF_SHARED_MEMORY
    assert world.server.held["a"].state == AssignmentState.RUNNING
    assert paces(world, "a") == [0.05, 0.05]


def test_an_agent_that_starts_again_puts_right_what_changed_meanwhile(tmp_path: Path) -> None:
    world = a_world(tmp_path)
    offer(world, "a", "digits")
    offer(world, "b", "text", slot=1)
    told = len(paces(world, "a"))
    world.agent.close()
    world.agent = an_agent(world.server, tmp_path, runtime=world.runtime, clock=world.clock)
    world.pass_time(1.0)
    assert len(paces(world, "a")) == told + 1


def test_what_a_kind_keeps_comes_from_its_row_then_from_the_default_row() -> None:
    emulation = an_emulation(shared=TABLE)
    assert emulation.kept("digits", ["text"]) == 0.8
    assert emulation.kept("text", ["digits"]) == 0.5
    assert emulation.kept("digits", ["other"]) == 0.7
    assert emulation.kept("digits", ["text", "other"]) == pytest.approx(0.56)
    assert emulation.kept("speech", ["digits"]) == emulation.kept("digits", ["speech"]) == 0.0
    assert Emulation("V100", 1).kept("a", ["b"]) == KEPT
    assert emulation.kept("digits", []) == 1.0


@pytest.mark.parametrize(
    ("shared", "said"),
    [
        ({"a": {"b": 1.5}}, "shared.a.b: must be >= 0 and <= 1, not 1.5"),
        ({"a": {"b": -1}}, "shared.a.b: must be >= 0 and <= 1, not -1"),
        ({"a": {}}, "shared.a: must hold at least one entry"),
        ([1], "shared: must be an object"),
    ],
)
def test_a_table_that_no_pair_can_follow_is_refused_by_name(shared: object, said: str) -> None:
    with pytest.raises(EmulationError, match=said):
        parse_emulation({"gpu_type": "V100", "shared": shared})


def test_a_table_is_read_from_the_file() -> None:
    assert parse_emulation({"gpu_type": "V100", "shared": {"a": {"b": 1}}}).shared == {
        "a": {"b": 1.0}
    }


def test_a_watch_follows_the_file_and_keeps_the_last_pace_where_it_is_torn(tmp_path: Path) -> None:
    path, found = tmp_path / "pace.json", []
    for at, text in enumerate(
        ("", '{"step_s": 0.3}', '{"step_s"', '{"step_s": 0}', '{"step_s": NaN}', "[]")
    ):
        path.write_text(text)
        os.utime(path, ns=(at, at))
        found.append(PaceWatch(tmp_path, 0.1).step_s())
    assert found == [0.1, 0.3, 0.1, 0.1, 0.1, 0.1]
    assert PaceWatch(None, 0.1).step_s() == PaceWatch(tmp_path / "nowhere", 0.1).step_s() == 0.1


def test_real_processes_follow_the_pace_they_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    server = FakeServer()
    agent = an_agent(
        server,
        tmp_path,
        devices=EmulatedDevices(an_emulation(step_s=STEPS, shared=TABLE), "n1", slots=2),
    )
    first = server.offer(a_spec("a", command=FOREVER, steps=100_000))
    until(lambda: len(first.progress) > 1, agent)
    second = server.offer(
        a_spec("b", job="job-2", kind_name="text", slot=1, command=FOREVER, steps=100_000)
    )
    until(lambda: len(second.progress) > 1, agent)
    told = json.loads((tmp_path / "runs" / "lm-a-1" / "pace.json").read_text())
    assert told == {"step_s": pytest.approx(0.05 / 0.8)}
    for name in ("a", "b"):
        server.stop(name, StopReason.CANCEL)
    until(lambda: agent.is_idle, agent)
    agent.close()


def test_a_shared_gpus_watts_are_told_once_by_all_who_run_on_it(tmp_path: Path) -> None:
    world = a_world(tmp_path)
    offer(world, "a", "text")
    offer(world, "b", "text", slot=1)
    world.pass_time(3.0)
    newest = [world.server.held[name].batches[-1].usage[-1] for name in ("a", "b")]
    assert [(sample.gpu_power_w, sample.gpu_fraction) for sample in newest] == [
        (125.0, 0.5),
        (125.0, 0.5),
    ]
    assert world.server.beats[-1].devices[0].power_w == 250.0


def test_a_gpu_without_figures_has_no_parts() -> None:
    assert per_holder(DeviceSample("GPU-1"), 2) == DeviceSample("GPU-1")


@pytest.mark.parametrize(
    "words",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes",
        "CUDA_ERROR_OUT_OF_MEMORY",
    ],
)
def test_a_crash_for_want_of_gpu_memory_is_the_jobs_fault_alone_and_not_beside_others(
    words: str,
) -> None:
    ended = Exit(0.0, exit_code=1)
    beside, alone = (
        outcome_of(ended, last_words=words, shares_gpu=True),
        outcome_of(ended, last_words=words),
    )
    assert (beside.reason_class, alone.reason_class) == (ReasonClass.GPU, ReasonClass.USER)
    assert beside.reason == f"{OUT_OF_SHARED_MEMORY}: {words}"
    assert (
        outcome_of(ended, last_words="MemoryError", shares_gpu=True).reason_class
        == ReasonClass.USER
    )


def test_real_processes_of_which_one_finds_no_memory_beside_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    server = FakeServer()
    agent = an_agent(
        server,
        tmp_path,
        devices=EmulatedDevices(an_emulation(step_s=STEPS, shared=TABLE), "n1", slots=2),
    )
    first = server.offer(a_spec("a", command=FOREVER, steps=100_000))
    until(lambda: len(first.progress) > 1, agent)
    crash = python("import time; time.sleep(1); raise RuntimeError('CUDA out of memory')")
    second = server.offer(a_spec("b", job="job-2", kind_name="text", slot=1, command=crash))
    until(lambda: second.state == AssignmentState.FAILED, agent)
    assert second.reports[-1].reason_class == ReasonClass.GPU
    assert first.state == AssignmentState.RUNNING
    server.stop("a", StopReason.CANCEL)
    until(lambda: agent.is_idle, agent)
    agent.close()
