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
from controlplane.studies.selectors import get_simulation, link_of, shared_simulation
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
"""Fields of a study that are no form fields and yet have places for their messages."""

ACTIONS: dict[str, tuple[Callable[[Simulation, User], object], str]] = {
    "cancel": (services.simulation_cancel, "The simulation is cancelled."),
    "delete": (services.simulation_delete, "The simulation and its results are deleted."),
    "share": (
        services.simulation_share,
        "Anybody with the link below can see this simulation without an account.",
    ),
    "unshare": (services.simulation_unshare, "The link no longer works."),
}


@require_GET
def simulations(request: HttpRequest) -> HttpResponse:
    """List of the simulations that the user may see."""
    page = simulations_page(_person(request), request.GET.get("page"))
    any_active = any(simulation.state in ACTIVE for simulation in page.object_list)
    context = {"page": page, "query": "", "active": any_active}
    return page_or_part(request, "studies/list.html", "studies/_list.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    """Form of a new simulation, whose study is pasted whole or typed by field."""
    user = _person(request)
    if request.method != "POST":
        return _form(request, StudyForm(user), _study_of(user, request.GET.get("from")))
    form = StudyForm(user, request.POST)
    pasted = request.POST.get("study", "").strip()
    trace: Any = request.FILES.get("trace")
    try:
        study = read_yaml("study", pasted) if pasted else form.asked(trace)
        if not isinstance(study, dict):
            raise StudyDocumentError({"study": ["must be a study: cluster, workload, policies"]})
        simulation = services.simulation_create(user, study)
    except StudyDocumentError as error:
        problems = error.fields
        if not pasted:
            problems = form.worded(problems)
            form.show(problems)
        return _form(request, form, pasted, problems)
    except (SimulationConflictError, BusyError) as error:
        return _form(request, form, pasted, {"study": [str(error)]})
    messages.success(request, f"{simulation.name} waits for a worker.")
    return redirect("simulation", simulation.pk)


def _form(
    request: HttpRequest,
    form: StudyForm,
    pasted: str = "",
    problems: dict[str, list[str]] | None = None,
) -> HttpResponse:
    """Page of the form; `problems`: messages by the study's field, 422 if there are any."""
    # Messages without a place in the form stand above it: for a pasted study all of them.
    problems = problems or {}
    placed = set() if pasted else {*form.fields, *IN_PLACE}
    study_problems = []
    for name, texts in problems.items():
        if name not in placed:
            prefix = "" if name == "study" else f"{name}: "
            study_problems += [f"{prefix}{text}" for text in texts]
    context: dict[str, Any] = {
        "form": form,
        "pasted": pasted,
        "problems": problems,
        "study_problems": study_problems,
        "policy_problems": [] if pasted else problems.get("policies", []),
    }
    return render(request, "studies/new.html", context, status=422 if problems else 200)


def _study_of(user: User, pk: str | None) -> str:
    """Earlier study as YAML to edit; empty if none is asked for. Http404 if it is hidden."""
    if not pk:
        return ""
    simulation = get_simulation(user, pk)
    if simulation.is_what_if:
        raise Http404("a what-if cannot be edited; ask again")
    document = Simulation.objects.values_list("document", flat=True).get(pk=simulation.pk)
    if len(json.dumps(document)) > LONGEST_YAML:
        raise BadRequest(f"a study of more than {LONGEST_YAML:,} characters is edited as a file")
    dumper: Any = yaml.CSafeDumper
    return yaml.dump(document, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120)


@require_GET
def simulation(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """Page of a simulation, with its results once it has any."""
    user = _person(request)
    shown_simulation = get_simulation(user, pk)
    context = {
        **_context(shown_simulation),
        "refusal": refusal(user, shown_simulation),
        "plotly": PLOTLY_NAME,
        "report": reverse("simulation_report", args=[shown_simulation.pk]),
        "kept_until": kept_until(shown_simulation),
    }
    link = link_of(shown_simulation)
    if link:
        context["link"] = request.build_absolute_uri(reverse("shared_simulation", args=[link]))
    if shown_simulation.is_what_if and shown_simulation.state == Simulation.State.DONE:
        context["end"] = shown(user, shown_simulation)
    return page_or_part(request, "studies/simulation.html", "studies/_simulation.html", context)


@require_POST
def simulation_action(request: HttpRequest, pk: uuid.UUID, action: str) -> HttpResponse:
    """Cancel, delete, share or unshare a simulation."""
    user = _person(request)
    target = get_simulation(user, pk)
    if action not in ACTIONS:
        raise Http404(f"there is no action {action}")
    act, success = ACTIONS[action]
    try:
        act(target, user)
    except SimulationConflictError as error:
        messages.error(request, f"Nothing was changed: {error}.")
    else:
        messages.success(request, success)
    return redirect("simulations") if action == "delete" else redirect("simulation", pk)


@require_GET
def simulation_file(request: HttpRequest, pk: uuid.UUID, name: str) -> StreamingHttpResponse:
    """Download of a file with results."""
    owner = get_simulation(_person(request), pk)
    answer = None
    if name in DOWNLOADS or name == "report.html":
        media_type = DOWNLOADS.get(name, "application/octet-stream")
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        answer = download(owner, name, media_type, **headers)
    if answer is None:
        raise Http404(f"there is no {name}")
    return answer


@require_GET
def simulation_report(request: HttpRequest, pk: uuid.UUID) -> StreamingHttpResponse:
    """Report of a simulation, for the frame on its page."""
    return _report(get_simulation(_person(request), pk))


@login_not_required
@require_GET
def shared(request: HttpRequest, link: str) -> HttpResponse:
    """Page of a share link: one simulation, to be looked at."""
    context = {
        **_context(shared_simulation(link)),
        "report": reverse("shared_report", args=[link]),
    }
    response = render(request, "studies/shared.html", context)
    response["X-Robots-Tag"] = "noindex, nofollow"
    return response


@login_not_required
@require_GET
def shared_report(request: HttpRequest, link: str) -> StreamingHttpResponse:
    return _report(shared_simulation(link))


@require_GET
def compare(request: HttpRequest) -> HttpResponse:
    """Page that compares the chosen simulations that have results."""
    # 1. The chosen ones, and their results. What-ifs are compared on their own pages.
    user = _person(request)
    keys = list(dict.fromkeys(request.GET.getlist("id")))[:MOST_COMPARED]
    chosen = [get_simulation(user, pk) for pk in keys]
    compared: list[tuple[Simulation, dict[str, Any]]] = []
    for candidate in chosen:
        results = None if candidate.is_what_if else results_of(candidate)
        if results is not None:
            compared.append((candidate, results))

    # 2. The newest ones that are done, to choose from.
    others = []
    for candidate in simulations_page(user, 1).object_list:
        if candidate.state == Simulation.State.DONE:
            others.append(candidate)

    # 3. The page, which warns of different currencies.
    studies = [(candidate.name, results) for candidate, results in compared]
    currencies = {results.get("currency") for _, results in compared}
    context = {
        "chosen": {str(candidate.pk) for candidate in chosen},
        "compared": [candidate for candidate, _ in compared],
        "others": others,
        "most": MOST_COMPARED,
        "table": results_table(studies) if studies else None,
        "mixed": len(currencies) > 1,
    }
    return render(request, "studies/compare.html", context)


def _context(simulation: Simulation) -> dict[str, Any]:
    """Context of a simulation's page, own or shared; the results of a what-if are elsewhere."""
    is_done = simulation.state == Simulation.State.DONE
    results = results_of(simulation) if is_done and not simulation.is_what_if else None
    return {
        "simulation": simulation,
        "summary": simulation.summary,
        "active": simulation.state in ACTIVE,
        "percent": 100 * simulation.progress,
        "table": results_table([(simulation.name, results)]) if results else None,
        "sizes": sizes_of(simulation) if results else {},
    }


def _report(simulation: Simulation) -> StreamingHttpResponse:
    """Report as a document to be framed. Http404 while there is none."""
    headers = {"X-Frame-Options": "SAMEORIGIN"}
    response = download(simulation, "report.html", "text/html; charset=utf-8", **headers)
    if response is None:
        raise Http404("there is no report yet")
    response._csp_config = REPORT_POLICY  # type: ignore[attr-defined]  # django-csp's hook
    return response


def _person(request: HttpRequest) -> User:
    return cast(User, request.user)
