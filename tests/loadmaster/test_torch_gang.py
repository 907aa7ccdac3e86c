"""Two ranks that PyTorch trains with gloo: however they are interrupted, they come to the same
network to the last bit.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.builders_gangs import GangLaunches
from tests.builders_training import end_of, until

pytestmark = [pytest.mark.torch, pytest.mark.slow]

MODULE = "tests.torch_gang_job"
STEPS = 40


@pytest.fixture
def gang(tmp_path: Path) -> GangLaunches:
    return GangLaunches(tmp_path / "gang", STEPS, {"GLOO_SOCKET_IFNAME": "lo"})


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the gang learns when nobody disturbs it."""
    gang = GangLaunches(
        tmp_path_factory.mktemp("uninterrupted"), STEPS, {"GLOO_SOCKET_IFNAME": "lo"}
    )
    ends = [end_of(process) for process in gang.start_module(MODULE)]
    assert [code for code, _ in ends] == [0, 0], ends
    return json.loads(gang.result(0).read_text())


def test_a_gang_that_is_pre_empted_and_resumed_learns_the_very_same(
    gang: GangLaunches, uninterrupted: Any
) -> None:
    processes = gang.start_module(MODULE, LOADMASTER_EMULATED_STEP_S="0.05")
    until(lambda: gang.ranks[0].events("progress"), "the first step")
    gang.ranks[1].write_term(stop=True)
    ends = [end_of(process) for process in processes]
    assert [code for code, _ in ends] == [75, 75], ends
    step = gang.ranks[0].lines()[-1]["step"]
    assert isinstance(step, int)
    assert 0 < step < STEPS
    ends = [end_of(process) for process in gang.start_module(MODULE)]
    assert [code for code, _ in ends] == [0, 0], ends
    assert gang.ranks[1].events("start")[0]["step"] == step
    assert json.loads(gang.result(0).read_text()) == uninterrupted


def test_a_gang_of_which_a_rank_is_killed_learns_the_very_same(
    gang: GangLaunches, uninterrupted: Any
) -> None:
    processes = gang.start_module(
        MODULE, LOADMASTER_EMULATED_STEP_S="0.05", LOADMASTER_CHECKPOINT_EVERY_S="0.2"
    )
    until(lambda: gang.ranks[0].events("checkpoint"), "a checkpoint")
    processes[1].kill()
    code, stderr = end_of(processes[0])
    assert code in (1, 77), stderr
    assert gang.ranks[0].lines()[-1]["event"] == "fell", stderr
    end_of(processes[1])
    ends = [end_of(process) for process in gang.start_module(MODULE)]
    assert [code for code, _ in ends] == [0, 0], ends
    assert gang.ranks[0].events("start")[0]["step"] != 0
    assert json.loads(gang.result(0).read_text()) == uninterrupted
