"""Views of jobs."""

import uuid
from collections.abc import Callable
from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from controlplane.web.pages.parts import page_or_part
from jobs.arrays.actions import array_act
from jobs.arrays.selectors import get_array
from jobs.models import Job
from jobs.pages.arrays import array_page, with_arrays
from jobs.pages.forms import JobForm, initial_of, read_yaml
from jobs.pages.job_page import job_page, log_tail, loss_chart
from jobs.pages.selectors import (
    STATE_FILTERS,
    QueueFilters,
    queue_numbers,
    queue_page,
    used_by_others,
)
from jobs.selectors import get_job, teams_of
from jobs.services import job_cancel, job_hold, job_release, job_requeue, job_submit
from jobs.submission.refusals import JobConflict
from jobs.submission.validation import JobInvalid

ACTIONS: dict[str, tuple[Callable[[Job, User], Job], str]] = {
    "cancel": (job_cancel, "The job is cancelled. If it runs, it is being stopped."),
    "hold": (job_hold, "The job is on hold until it is released."),
    "release": (job_release, "The job is released into the queue."),
    "requeue": (job_requeue, "The job is back in the queue."),
}


ARRAY_ACTIONS = {
    "cancel": "{} are cancelled. Running elements are being stopped.",
    "hold": "{} are on hold until they are released. Running elements go on.",
    "release": "{} are released into the queue.",
    "requeue": "{} are back in the queue.",
}


def person(request: HttpRequest) -> User:
    return cast(User, request.user)


@require_GET
def queue(request: HttpRequest) -> HttpResponse:
    user = person(request)
    filters, teams = QueueFilters.of(request.GET), list(teams_of(user))
    page, found = queue_page(user, teams, filters, request.GET.get("page"))
    rows = with_arrays(user, found, filters)
    context = {
        "filters": filters,
        "page": page,
        "rows": rows,
        "query": filters.query,
        "numbers": queue_numbers(user, teams),
        "teams": teams,
        "others": used_by_others(user, teams).words,
    }
    context["states"] = {name: words for name, (words, _) in STATE_FILTERS.items()}
    return page_or_part(request, "jobs/queue.html", "jobs/_queue.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
def submit(request: HttpRequest) -> HttpResponse:
    user = person(request)
    original = request.GET.get("from")
    source = get_job(user, original) if original else None
    if request.method != "POST":
        return _form(request, JobForm(user, initial=initial_of(source) if source else None), source)
    form = JobForm(user, request.POST)
    pasted = request.POST.get("yaml", "").strip()
    try:
        data = read_yaml(pasted) if pasted else form.data_of_job()
        submission = job_submit(user, data, cloned_from=source)
    except JobInvalid as error:
        if not pasted:
            form.show(error.fields)
        return _form(request, form, source, pasted=pasted, problems=error.fields)
    except JobConflict as error:
        messages.error(request, f"Nothing was submitted: {error}.")
        return _form(request, form, source, pasted=pasted)
    for warning in submission.warnings:
        messages.warning(request, warning)
    messages.success(request, f"{submission.job.name} is submitted.")
    if submission.job.array_id:
        return redirect("array", submission.job.array_id)
    return redirect("job", submission.job.pk)


def _form(
    request: HttpRequest,
    form: JobForm,
    source: Job | None,
    pasted: str = "",
    problems: dict[str, list[str]] | None = None,
) -> HttpResponse:
    context: dict[str, Any] = {"form": form, "source": source, "pasted": pasted}
    if pasted and problems:
        context["yaml_problems"] = [
            m if n == "yaml" else f"{n}: {m}" for n, all_of in problems.items() for m in all_of
        ]
    return render(request, "jobs/submit.html", context, status=422 if problems else 200)


@require_GET
def job(request: HttpRequest, job_id: uuid.UUID) -> HttpResponse:
    page = job_page(person(request), job_id)
    job = page.row.job
    context = {"page": page, "job": job, "chart": loss_chart(job), "log": log_tail(job)}
    return page_or_part(request, "jobs/job.html", "jobs/_job.html", context)


@require_POST
def job_action(request: HttpRequest, job_id: uuid.UUID, action: str) -> HttpResponse:
    if action not in ACTIONS:
        raise Http404(f"there is no action {action}")
    act, done = ACTIONS[action]
    user = person(request)
    try:
        act(get_job(user, job_id), user)
    except JobConflict as error:
        messages.error(request, f"Nothing was changed: {error}.")
    else:
        messages.success(request, done)
    return redirect("job", job_id)


@require_GET
def array(request: HttpRequest, array_id: uuid.UUID) -> HttpResponse:
    page = array_page(person(request), array_id, request.GET.get("page"))
    return page_or_part(request, "jobs/array.html", "jobs/_array.html", {"array": page})


@require_POST
def array_action(request: HttpRequest, array_id: uuid.UUID, action: str) -> HttpResponse:
    if action not in ARRAY_ACTIONS:
        raise Http404(f"there is no action {action}")
    user = person(request)
    try:
        count = array_act(action, get_array(user, array_id), user)
    except JobConflict as error:
        messages.error(request, f"Not all elements were changed: {error}.")
    else:
        messages.success(request, ARRAY_ACTIONS[action].format(f"{count} elements"))
    return redirect("array", array_id)
