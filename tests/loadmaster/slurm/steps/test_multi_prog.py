"""Files of `srun --multi-prog`."""

from pathlib import Path

import pytest

from loadmaster.slurm.steps.multi_prog import ProgramsError, commands_of


def read(folder: Path, text: str, tasks: int) -> list[str]:
    (folder / "programs").write_text(text)
    return [" ".join(command) for command in commands_of(folder / "programs", tasks)]


def test_each_task_has_the_program_of_its_line(tmp_path: Path) -> None:
    text = "# comment\n0 master 'a b'\n\n1-2,4 worker %t:%o\n* rest %o\n"
    found = read(tmp_path, text, 6)
    assert found == [
        "master a b", "worker 1:0", "worker 2:1", "rest 0", "worker 4:2", "rest 1",
    ]  # fmt: skip


def test_lines_for_more_tasks_than_there_are_fit_fewer(tmp_path: Path) -> None:
    assert read(tmp_path, "0-99 a\n", 2) == ["a", "a"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0 a\n", "no program for task 1"),
        ("0-1 a\n1 b\n", "line 2: task 1 has a program"),
        ("x a\n* b\n", "names no tasks"),
        ("0\n", "names no program"),
        ("0 'a\n", "quotation mark"),
    ],
)
def test_wrong_files_are_refused_with_the_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ProgramsError, match=said):
        read(tmp_path, text, 2)
    with pytest.raises(ProgramsError, match="cannot be read"):
        commands_of(tmp_path / "missing", 1)
