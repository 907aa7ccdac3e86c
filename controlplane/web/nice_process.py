"""Nice process that answers long questions for all web processes of a server.

A process runs Python in one thread at a time: a long question in a web process would slow
everybody's pages down.
"""

import logging
import os
from collections.abc import Callable
from functools import cache
from typing import TypeVar

from foundation.child_processes.limits import half_of_memory, keep_little_memory
from foundation.child_processes.shared import ChildGoneError, SharedChild
from loadmaster.outputs import lose_what_finds_no_room

SOCKET = "LOADMASTER_NICE_PROCESS"
"""Environment variable with the socket's path, also for children of this process."""

SPARE_S = 60
"""Seconds that a question may take beside a policy's decision: for imports and a new solver."""

NICE = 10

PROCESS = SharedChild("controlplane.web.nice_process", SOCKET, "the process for long questions")

T = TypeVar("T")
log = logging.getLogger(__name__)


def start() -> None:
    """Keep the process running for this one and its children, until this one ends."""
    PROCESS.start()


def ask(question: Callable[..., T], *arguments: object) -> T:
    """Return `question(*arguments)`, a function of a module, or raise what it raises.

    It has a database connection of its own. Questions wait for each other. NoAnswerError.
    """
    try:
        return PROCESS.ask(question, *arguments)
    except ChildGoneError as failure:  # over the question: a lack of time or memory
        log.warning("a long question has no answer: %s", failure)
        from controlplane.web.rest.errors import NoAnswerError  # Django takes memory

        text = "the answer took too much time or memory: try again, or ask for less"
        raise NoAnswerError(text) from failure


def main() -> None:
    """Answer one question after the other, and end with the parent."""
    lose_what_finds_no_room()
    keep_little_memory()
    PROCESS.answer_questions(
        nice=NICE, memory_bytes=half_of_memory(), spare_s=SPARE_S, prepare=_prepare
    )


def _prepare() -> float:
    """Get ready for a question; return its time limit in seconds."""
    _set_up_django()
    from django.conf import settings
    from django.db import close_old_connections

    close_old_connections()
    return 2 * float(settings.WHAT_IF_TIMEOUT_S)  # one decision may be under way


@cache
def _set_up_django() -> None:
    """Set up Django at the first question: it takes memory, and nobody may ever ask."""
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    django.setup(set_prefix=False)


if __name__ == "__main__":
    main()
