"""Views of nodes and operators' actions on them."""

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import cast

from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_GET, require_POST

from clusters.models import Node
from clusters.models.nodes import Role
from clusters.services.enrolment import issue_enrolment_token
from clusters.services.nodes import (
    NodeStateError,
    SlotsError,
    node_cordon,
    node_drain,
    node_set_role,
    node_set_slots,
    node_uncordon,
)
from controlplane.execution.pages.selectors import cluster_nodes, page_of_nodes
from controlplane.web.operators import is_operator
from controlplane.web.pages.parts import page_or_part


@require_GET
def nodes(request: HttpRequest) -> HttpResponse:
    user = cast(User, request.user)
    roles = {Role.PRODUCTION: "Production", Role.PROFILING: "Profiling", Role.BOTH: "Both"}
    page = page_of_nodes(request.GET.get("page"))
    context = {"clusters": cluster_nodes(user, page), "roles": roles, "page": page, "query": ""}
    return page_or_part(request, "execution/nodes.html", "execution/_nodes.html", context)


@require_POST
def node_action(request: HttpRequest, node_id: uuid.UUID, action: str) -> HttpResponse:
    user = cast(User, request.user)
    if not is_operator(user):
        raise PermissionDenied("only operators change nodes")
    node = get_object_or_404(Node, pk=node_id)
    try:
        if action == "take-back":
            messages.warning(request, _token_of(node, user))
        else:
            messages.success(request, _act(node, action, request.POST, user.get_username()))
    except NodeStateError as error:
        messages.error(request, f"Nothing was changed: {error}.")
    except SlotsError as error:
        messages.error(request, f"Nothing was changed. Jobs per GPU: {error}.")
    return redirect("nodes")


def _act(node: Node, action: str, said: Mapping[str, str], actor: str) -> str:
    role, reason = said.get("role", ""), said.get("reason", "").strip()
    match action:
        case "cordon":
            node_cordon(node, actor=actor, reason=reason)
            return f"{node.name} gets no new jobs. Running jobs continue."
        case "uncordon":
            node_uncordon(node, actor=actor)
            return f"{node.name} gets new jobs again."
        case "drain":
            until = _deadline(said.get("minutes", ""))
            node_drain(node, until, actor=actor, reason=reason)
            today = until is not None and until.date() == datetime.now(UTC).date()
            form = "%H:%M" if today else "%Y-%m-%d %H:%M"
            when = "now" if until is None else f"by {until:{form}} UTC"
            return (
                f"{node.name} gets no new jobs. Running jobs save a checkpoint and move to other"
                f" nodes {when}."
            )
        case "role" if role in Role.values:
            node_set_role(node, role, actor=actor)
            served = "production and profiling" if role == Role.BOTH else role
            return f"{node.name} now serves {served}."
        case "slots":
            slots = _slots(said.get("slots", ""))
            node_set_slots(node, slots, actor=actor)
            shared = f"Up to {slots} jobs may now share each GPU"
            return f"{'Jobs no longer share the GPUs' if slots == 1 else shared} of {node.name}."
    raise Http404(f"there is no action {action} {role}".strip())


def _token_of(node: Node, user: User) -> str:
    """Words with a new token for a machine that takes the place of the node's."""
    token = issue_enrolment_token(node.cluster, created_by=user, node=node)
    return (
        f"Enrolment token for the machine that replaces {node.name}, shown only now and valid for"
        f" one hour: {token}"
    )


def _slots(text: str) -> int:
    if not (text.strip().isdecimal() and text.strip().isascii()) or len(text.strip()) > 5:
        raise SlotsError("slots", f"must be a whole number such as 2, not {text[:20]!r}")
    return int(text)


def _deadline(minutes: str) -> datetime | None:
    if not minutes.strip():
        return None
    if not minutes.strip().isdecimal() or len(minutes.strip()) > 5:
        raise NodeStateError(
            f"the deadline must be a whole number of minutes, not {minutes[:20]!r}"
        )
    return datetime.now(UTC) + timedelta(minutes=int(minutes))
