"""Views of simulations."""

import json
import uuid
from collections.abc import Callable
from typing import Any, cast

import yaml
from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.models import User
from django.core.exceptions import BadRequest
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from controlplane.studies import services
from controlplane.studies.documents import StudyDocumentError
from controlplane.studies.downloads import download
from controlplane.studies.lifecycle import ACTIVE
from controlplane.studies.models import Simulation
from controlplane.studies.pages.forms import StudyForm, read_yaml
from controlplane.studies.pages.selectors import (
    DOWNLOADS,
    MOST_COMPARED,
    kept_until,
    results_of,
    results_table,
    simulations_page,
    sizes_of,
)
from controlplane.studies.selectors import (
    get_simulation,
    link_of,
    shared_simulation,
)
from controlplane.studies.services import SimulationConflictError
from controlplane.studies.what_if.queue_end_page import shown
from controlplane.studies.what_if.turns import BusyError
from controlplane.web.bounded_data import LONGEST_YAML
from controlplane.web.pages.parts import page_or_part
from controlplane.web.pages.static_files import PLOTLY_NAME
from jobs.roles import refusal

# A report is one file with its script inside, shown in a frame of our page as a document of no
# origin: it may run its own script and nothing else, reads no cookie, sends no request, and cannot
# be framed by others.
REPORT_POLICY = {
    "default-src": ["'none'"],
    "script-src": ["'unsafe-inline'"],
    "style-src": ["'unsafe-inline'"],
    "img-src": ["data:", "blob:"],
    "base-uri": ["'none'"],
    "form-action": ["'none'"],
    "frame-ancestors": ["'self'"],
    "sandbox": ["allow-scripts", "allow-downloads"],
}

IN_PLACE = ("policies", "switches")
"""Fields of a study without a form field, and the place of their errors."""

ACTIONS: dict[str, tuple[Callable[[Simulation, User], object], str]] = {
    "cancel": (services.simulation_cancel, "The simulation is cancelled."),
    "delete": (services.simulation_delete, "The simulation and all it came to are removed."),
    "share": (
        services.simulation_share,
        "Anybody with the link below can look at this simulation, without an account.",
    ),
    "unshare": (services.simulation_unshare, "The link leads nowhere any more."),
}


@require_GET
def simulations(request: HttpRequest) -> HttpResponse:
    page = simulations_page(_person(request), request.GET.get("page"))
    context = {
        "page": page,
        "query": "",
        "active": any(s.state in ACTIVE for s in page.object_list),
    }
    return page_or_part(request, "studies/list.html", "studies/_list.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    user = _person(request)
    if request.method != "POST":
        return _form(request, StudyForm(user), _study_of(user, request.GET.get("from")))
    form, pasted = StudyForm(user, request.POST), request.POST.get("study", "").strip()
    trace: Any = request.FILES.get("trace")
    try:
        asked = read_yaml("study", pasted) if pasted else form.asked(trace)
        if not isinstance(asked, dict):
            raise StudyDocumentError({"study": ["must be a study: cluster, workload, policies"]})
        made = services.simulation_create(user, asked)
    except StudyDocumentError as error:
        problems = error.fields if pasted else form.worded(error.fields)
        if not pasted:
            form.show(problems)
        return _form(request, form, pasted, problems)
    except (SimulationConflictError, BusyError) as error:
        return _form(request, form, pasted, {"study": [str(error)]})
    messages.success(request, f"{made.name} waits for a worker.")
    return redirect("simulation", made.pk)


def _form(
    request: HttpRequest,
    form: StudyForm,
    pasted: str = "",
    problems: dict[str, list[str]] | None = None,
) -> HttpResponse:
    problems = problems or {}
    context: dict[str, Any] = {"form": form, "pasted": pasted, "problems": problems}
    placed = () if pasted else (*form.fields, *IN_PLACE)
    context["study_problems"] = [
        message if name == "study" else f"{name}: {message}"
        for name, found in problems.items()
        if name not in placed
        for message in found
    ]
    context["policy_problems"] = [] if pasted else problems.get("policies", [])
    return render(request, "studies/new.html", context, status=422 if problems else 200)


def _study_of(user: User, pk: str | None) -> str:
    """Earlier study as YAML to edit; empty if none is asked for, 404 if hidden."""
    if not pk:
        return ""
    found = get_simulation(user, pk)
    if found.is_what_if:
        raise Http404("a what-if is asked anew")
    document = Simulation.objects.values_list("document", flat=True).get(pk=found.pk)
    if len(json.dumps(document)) > LONGEST_YAML:
        raise BadRequest(f"a study of more than {LONGEST_YAML:,} characters is edited as a file")
    of_libyaml: Any = yaml.CSafeDumper
    return yaml.dump(document, Dumper=of_libyaml, sort_keys=False, allow_unicode=True, width=120)


@require_GET
def simulation(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    user = _person(request)
    found = get_simulation(user, pk)
    context = {**_context(found), "refusal": refusal(user, found)}
    if link := link_of(found):
        context["link"] = request.build_absolute_uri(reverse("shared_simulation", args=[link]))
    if found.is_what_if and found.state == Simulation.State.DONE:
        context["end"] = shown(user, found)
    context |= {
        "plotly": PLOTLY_NAME,
        "report": reverse("simulation_report", args=[found.pk]),
        "kept_until": kept_until(found),
    }
    return page_or_part(request, "studies/simulation.html", "studies/_simulation.html", context)


@require_POST
def simulation_action(request: HttpRequest, pk: uuid.UUID, action: str) -> HttpResponse:
    user = _person(request)
    found = get_simulation(user, pk)
    if action not in ACTIONS:
        raise Http404(f"there is no action {action}")
    act, done = ACTIONS[action]
    try:
        act(found, user)
    except SimulationConflictError as error:
        messages.error(request, f"Nothing was changed: {error}.")
    else:
        messages.success(request, done)
    return redirect("simulations") if action == "delete" else redirect("simulation", pk)


@require_GET
def simulation_file(request: HttpRequest, pk: uuid.UUID, name: str) -> StreamingHttpResponse:
    found = get_simulation(_person(request), pk)
    kind = DOWNLOADS.get(name, "application/octet-stream")
    named = {"Content-Disposition": f'attachment; filename="{name}"'}
    is_offered = name in DOWNLOADS or name == "report.html"
    answer = download(found, name, kind, **named) if is_offered else None
    if answer is None:
        raise Http404(f"there is no {name}")
    return answer


@require_GET
def simulation_report(request: HttpRequest, pk: uuid.UUID) -> StreamingHttpResponse:
    return _report(get_simulation(_person(request), pk))


@login_not_required
@require_GET
def shared(request: HttpRequest, link: str) -> HttpResponse:
    """Page of a share link: one simulation, to be looked at."""
    found = shared_simulation(link)
    context = {**_context(found), "report": reverse("shared_report", args=[link])}
    response = render(request, "studies/shared.html", context)
    response["X-Robots-Tag"] = "noindex, nofollow"
    return response


@login_not_required
@require_GET
def shared_report(request: HttpRequest, link: str) -> StreamingHttpResponse:
    return _report(shared_simulation(link))


@require_GET
def compare(request: HttpRequest) -> HttpResponse:
    user = _person(request)
    asked = list(dict.fromkeys(request.GET.getlist("id")))[:MOST_COMPARED]
    chosen = [get_simulation(user, pk) for pk in asked]
    studies = [s for s in chosen if not s.is_what_if]
    done = [(s, results) for s in studies if (results := results_of(s)) is not None]
    others = [s for s in simulations_page(user, 1).object_list if s.state == Simulation.State.DONE]
    currencies = {results.get("currency") for _, results in done}
    context = {
        "chosen": {str(s.pk) for s in chosen},
        "compared": [s for s, _ in done],
        "others": others,
        "most": MOST_COMPARED,
        "table": results_table([(s.name, results) for s, results in done]) if done else None,
        "mixed": len(currencies) > 1,
    }
    return render(request, "studies/compare.html", context)


def _context(found: Simulation) -> dict[str, Any]:
    is_done = found.state == Simulation.State.DONE and not found.is_what_if
    results = results_of(found) if is_done else None
    return {
        "simulation": found,
        "summary": found.summary,
        "active": found.state in ACTIVE,
        "percent": 100 * found.progress,
        "table": results_table([(found.name, results)]) if results else None,
        "sizes": sizes_of(found) if results else {},
    }


def _report(found: Simulation) -> StreamingHttpResponse:
    framed = {"X-Frame-Options": "SAMEORIGIN"}
    response = download(found, "report.html", "text/html; charset=utf-8", **framed)
    if response is None:
        raise Http404("there is no report yet")
    response._csp_config = REPORT_POLICY  # type: ignore[attr-defined]  # django-csp's hook
    return response


def _person(request: HttpRequest) -> User:
    return cast(User, request.user)
