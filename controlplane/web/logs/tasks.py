"""Celery's logs: a task's lines carry its name, its id and the request's id."""

from typing import Any

from celery.signals import before_task_publish, setup_logging, task_postrun, task_prerun
from structlog.contextvars import bind_contextvars, clear_contextvars, get_contextvars

HEADER = "request_id"
"""Header of a task's message with the id of the request that started it."""

LONGEST_ID = 128
"""Most characters of that id."""


@setup_logging.connect
def leave_logging(**_: Any) -> None:
    """Keep Celery from setting up logging."""


@before_task_publish.connect
def send_id(headers: dict[str, Any] | None = None, **_: Any) -> None:
    """Put the current request's id on the message."""
    request_id = get_contextvars().get(HEADER)
    if request_id is not None and headers is not None:
        headers.setdefault(HEADER, request_id)


@task_prerun.connect
def bind_task(task_id: str = "", task: Any = None, **_: Any) -> None:
    """Bind the task and the request's id to every line until the task ends."""
    # A task that is run in place, by a test or by `apply`, keeps the ids of its caller.
    if task is None or task.request.is_eager or task.request.called_directly:
        return
    clear_contextvars()
    bind_contextvars(task=task.name, task_id=task_id)
    request_id = getattr(task.request, HEADER, None)
    if request_id:
        bind_contextvars(**{HEADER: str(request_id)[:LONGEST_ID]})


@task_postrun.connect
def unbind_task(task: Any = None, **_: Any) -> None:
    """Unbind all ids once a worker's task has ended."""
    if task is not None and not task.request.is_eager:
        clear_contextvars()
