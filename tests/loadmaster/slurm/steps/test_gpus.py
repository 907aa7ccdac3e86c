"""GPUs of steps and tasks: the values are those that a real Slurm (22.05) gives."""

import pytest

from loadmaster.slurm.options.values import ValueFormatError
from loadmaster.slurm.steps.gpus import binding, step_gpus


@pytest.mark.parametrize(
    ("options", "tasks", "count"),
    [
        ({}, 2, 3),
        ({"gres": "gpu:1"}, 2, 1),
        ({"gres": "gpu:A100:2"}, 1, 2),
        ({"gres": "gpu"}, 1, 1),
        ({"gres": "gpu:0"}, 2, 0),
        ({"gres": "none"}, 2, 0),
        ({"gres": "mic:1"}, 2, 3),
        ({"gpus": "2"}, 2, 2),
        ({"gpus": "0"}, 2, 0),
        ({"gpus": "A100:1"}, 2, 1),
        ({"gpus-per-node": "2"}, 2, 2),
        ({"gpus-per-node": "0"}, 2, 0),
        ({"gpus-per-task": "1"}, 2, 2),
        ({"gpu-bind": "single:1"}, 2, 3),
        ({"ntasks-per-gpu": "1"}, 2, 3),
    ],
)
def test_a_step_has_the_gpus_it_asks_for_or_all(
    options: dict[str, str], tasks: int, count: int
) -> None:
    assert step_gpus(options, tasks, of_job=3).count == count


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({}, ["0,1,2"] * 4),
        ({"gpu-bind": "none"}, ["0,1,2"] * 4),
        ({"gpu-bind": "closest"}, ["0,1,2"] * 4),
        ({"gpu-bind": "single:1"}, ["0", "1", "2", "0"]),
        ({"gpu-bind": "verbose,single:1"}, ["0", "1", "2", "0"]),
        ({"gpu-bind": "single:2"}, ["0", "0", "1", "1"]),
        ({"gpu-bind": "per_task:1"}, ["0", "1", "2", "0"]),
        ({"gpu-bind": "map_gpu:0,2"}, ["0", "2", "0", "2"]),
        ({"gpu-bind": "mask_gpu:0x1,0x6"}, ["0", "1,2", "0", "1,2"]),
        ({"ntasks-per-gpu": "2"}, ["0", "0", "1", "1"]),
        ({"gpus-per-task": "1"}, ["0", "1", "2", "0"]),
        ({"gpus-per-task": "1", "gpu-bind": "none"}, ["0,1,2"] * 4),
    ],
)
def test_tasks_see_the_gpus_that_slurm_binds_them_to(
    options: dict[str, str], seen: list[str]
) -> None:
    bound = step_gpus(options, 4, of_job=3).binding
    texts = [",".join(map(str, bound.of_task(task, [0, 1, 2]))) for task in range(4)]
    assert texts == seen


def test_tasks_of_a_step_without_gpus_see_none() -> None:
    assert binding("single:1").of_task(0, []) == []


@pytest.mark.parametrize(
    "text", ["rubbish", "single", "single:0", "per_task:x", "map_gpu:", "map_gpu:a", "mask_gpu:,"]
)
def test_bindings_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueFormatError, match="write"):
        binding(text)
