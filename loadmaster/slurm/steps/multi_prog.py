"""Programs of `srun --multi-prog`: a file says which tasks of a step run which program."""

import re
from collections.abc import Sequence
from pathlib import Path

from loadmaster import shell_words

_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
"""A task or a range of tasks: its first number, and its last one if there are several."""


class ProgramsError(ValueError):
    """Wrong file of programs; the message names line and remedy."""


def commands_of(path: Path, tasks: int) -> tuple[tuple[str, ...], ...]:
    """Return the command of each task by a file of lines such as `1-3 program %t %o`.

    %t is the task's number, %o its place among the tasks of its line. `* program` is for all tasks
    that no line before it names. Raises ProgramsError.
    """
    # 1. Read the commands line by line.
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ProgramsError(f"{path} cannot be read: {error}") from None
    commands: dict[int, tuple[str, ...]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        place = f"{path}, line {number}"
        words = _words(line, place)
        if not words:
            continue
        tasks_of_line = _tasks(words[0], tasks, place)
        if words[0] == "*":
            tasks_of_line = [task for task in tasks_of_line if task not in commands]
        for offset, task in enumerate(tasks_of_line):
            if task in commands:
                raise ProgramsError(f"{place}: task {task} has a program; remove one")
            commands[task] = tuple(_with_numbers(word, task, offset) for word in words[1:])

    # 2. Each task must have one.
    for task in range(tasks):
        if task not in commands:
            raise ProgramsError(f"{path} has no program for task {task}; add a line for it")
    return tuple(commands[task] for task in range(tasks))


def _words(line: str, place: str) -> list[str]:
    """Return the words of a line: tasks, program, arguments; none of a blank line or a comment.

    `place`: file and line, for messages. Raises ProgramsError.
    """
    try:
        words = shell_words.split(line, comments=True)
    except ValueError:
        raise ProgramsError(f"{place}: a quotation mark is not closed; close it") from None
    if len(words) == 1:
        raise ProgramsError(f"{place} names no program; write it behind the tasks")
    return words


def _tasks(text: str, tasks: int, place: str) -> Sequence[int]:
    """Return the tasks in a text such as 0,2-3 or *, without those beyond the step's `tasks`.

    Raises ProgramsError.
    """
    if text == "*":
        return range(tasks)
    numbers: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ProgramsError(f"{place}: {text[:40]!r} names no tasks; write such as 0,2-3 or *")
        first = int(match[1])
        last = int(match[2] or match[1])
        numbers.extend(range(first, min(last, tasks - 1) + 1))
    return numbers


def _with_numbers(word: str, task: int, offset: int) -> str:
    """Return a word with %t and %o replaced."""
    return word.replace("%t", str(task)).replace("%o", str(offset))
