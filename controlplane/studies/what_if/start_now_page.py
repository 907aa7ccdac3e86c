"""Part of a job's page: what would start it now."""

import uuid
from typing import Any, cast

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from controlplane.studies.what_if.start_now import start_now
from controlplane.studies.what_if.turns import BusyError
from controlplane.web.rest.errors import ConflictError, NoAnswerError
from jobs.selectors import get_job


@require_GET
def start_now_part(request: HttpRequest, job_id: uuid.UUID) -> HttpResponse:
    """Answer on the job's page; an error is said there, too."""
    user = cast(User, request.user)
    job = get_job(user, job_id)
    try:
        context: dict[str, Any] = {"found": start_now(user, job)}
    except (ConflictError, BusyError, NoAnswerError) as error:
        context = {"problem": str(error.detail)}
    return render(request, "studies/_start_now.html", context)
