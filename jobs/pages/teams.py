"""Page of teams: who is in them with which role, which operators change."""

from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.functional import SimpleLazyObject
from django.views.decorators.http import require_GET, require_POST

from controlplane.web.operators import is_operator
from jobs.models import Membership, TeamRole
from jobs.pages.selectors import PAGE_SIZE
from jobs.people import remove_member, set_role
from jobs.roles import rights_of
from jobs.selectors import teams_of

OUT = "out"
"""Choice that takes a person out of the team."""


def rights(request: HttpRequest) -> dict[str, Any]:
    """Context of pages: the person's `rights`, read where they matter."""
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        return {}
    return {"rights": SimpleLazyObject(lambda: rights_of(user))}


@require_GET
def teams(request: HttpRequest) -> HttpResponse:
    user = cast(User, request.user)
    rows = teams_of(user).prefetch_related("secrets")
    page = Paginator(rows, PAGE_SIZE).get_page(request.GET.get("page"))
    found = Membership.objects.filter(team__in=list(page.object_list)).select_related("user")
    members: dict[int, list[Membership]] = {}
    for row in found.order_by("user__username"):
        members.setdefault(row.team_id, []).append(row)
    cards = [(team, members.get(team.pk, [])) for team in page.object_list]
    context = {"cards": cards, "page": page, "query": "", "roles": TeamRole.choices, "out": OUT}
    return render(request, "jobs/teams.html", context)


@require_POST
def member_action(request: HttpRequest, name: str) -> HttpResponse:
    """Give a person a role in the team, or take them out of it (operators)."""
    user = cast(User, request.user)
    team = get_object_or_404(teams_of(user), name=name)
    if not is_operator(user):
        raise PermissionDenied("only operators change who is in a team")
    asked, role = request.POST.get("username", "").strip(), request.POST.get("role", "")
    person = User.objects.filter(username=asked).first()
    if person is None:
        messages.error(request, f"Nothing was changed: there is nobody called {asked[:150]!r}.")
    elif role == OUT:
        gone = remove_member(team, person)
        done = f"{asked} is {'no longer' if gone else 'not'} in {team}."
        messages.success(request, done)
    elif role in TeamRole.values:
        set_role(team, person, TeamRole(role))
        messages.success(request, f"{asked} is {role} of {team}.")
    else:
        messages.error(request, f"Nothing was changed: choose {', '.join(TeamRole.values)}.")
    return redirect("teams_page")
