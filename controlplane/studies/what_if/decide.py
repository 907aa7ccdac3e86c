"""A policy's decision about the live queue, made in a nice process; nothing is applied.

Jobs of other teams are there without their names, as on the timeline: that they take GPUs can be
seen, and nothing else.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from django.contrib.auth.models import User

from clusters.models import Cluster
from controlplane.loop.changes import key_of, sides
from controlplane.loop.live.observe import observe
from controlplane.loop.live.record import waiting_detail
from controlplane.loop.live.solver import kept_solver
from controlplane.loop.rounds import decide_or_keep, kept
from controlplane.studies.what_if.comparison import Figures, differences, figures
from controlplane.studies.what_if.turns import TURNS
from controlplane.web import nice_process
from controlplane.web.pages.formats import part_of
from jobs.selectors import OTHERS, seen_by
from jobs.wording.explanation import reason_for_waiting
from policies.contract.plan import Plan, Waiting
from policies.contract.policy import PolicyError, UnknownPolicyError
from policies.contract.snapshot import RankPlacement, Snapshot
from policies.host import registry
from policies.placement.waiting.explained import explained

T = TypeVar("T")


class WhatIfError(ValueError):
    """Invalid question; `field` names the place, the message the remedy."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True)
class Difference:
    """A job decided differently; `job` is None, without reasons, if another team's."""

    job: str | None
    name: str
    change: str
    before: str
    after: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class LeftWaiting:
    """A job of the reader's that would have no GPUs, and whether it has some now."""

    job: str
    name: str
    why: str
    runs_now: bool


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A policy's decision beside the present state. `names`: of visible jobs, by id."""

    cluster: str
    currency: str
    at: datetime
    failure: str | None
    current: Figures
    proposed: Figures
    differences: tuple[Difference, ...]
    waiting: tuple[LeftWaiting, ...]
    names: Mapping[str, str]
    snapshot: Snapshot


def what_if(
    user: User,
    cluster: Cluster,
    policy: str,
    parameters: Mapping[str, Any],
    shown: Callable[[WhatIf], T],
) -> T:
    """Ask the policy about the cluster now, and return what `shown` makes of the answer.

    Both run in the nice process, so `shown` is a function of a module.
    WhatIfError if the policy is unknown, BusyError, NoAnswerError.
    """
    check(policy, parameters)
    with TURNS.of(user.pk):
        answer: T = nice_process.ask(_shown, shown, user, cluster, policy, parameters)
    return answer


def _shown(
    shown: Callable[[WhatIf], T],
    user: User,
    cluster: Cluster,
    policy: str,
    parameters: Mapping[str, Any],
) -> T:
    return shown(_decided(user, cluster, policy, parameters))


def _decided(user: User, cluster: Cluster, policy: str, parameters: Mapping[str, Any]) -> WhatIf:
    """Let the policy decide about the cluster now, and compare that with the present state."""
    snapshot = observe(cluster.pk, time.time(), cluster.round_number + 1).snapshot
    decision = decide_or_keep(snapshot, lambda seen: solve_apart(policy, parameters, seen), policy)
    present = kept(snapshot, cluster.policy, "")
    names = names_of(user, snapshot)
    return WhatIf(
        cluster=cluster.name,
        currency=cluster.currency,
        at=datetime.fromtimestamp(snapshot.now_s, UTC),
        failure=decision.failure,
        current=figures(present, snapshot),
        proposed=figures(decision.plan, snapshot),
        differences=_differences(decision.plan, snapshot, names),
        waiting=_waiting(decision.plan, present, snapshot, names),
        names=names,
        snapshot=snapshot,
    )


def check(policy: str, parameters: Mapping[str, Any], place: str = "") -> None:
    """Raise WhatIfError for an unknown policy or bad parameters, with `place` before the field."""
    try:
        registry.check(policy, parameters)
    except UnknownPolicyError as error:
        raise WhatIfError(f"{place}policy", str(error)) from None
    except PolicyError as error:
        raise WhatIfError(f"{place}parameters", str(error)) from None


def solve_apart(policy: str, parameters: Mapping[str, Any], snapshot: Snapshot) -> Plan:
    """Solve in a child of this process, apart from that of the rounds, and killed sooner."""
    return kept_solver("WHAT_IF_TIMEOUT_S").solve(snapshot, policy, parameters)


def names_of(user: User, snapshot: Snapshot) -> dict[str, str]:
    """Return the names of the jobs that the user may see, by id."""
    names = {job.id: job.name for job in snapshot.jobs}
    return {job: names[job] for job in map(str, seen_by(user, names))}


def _differences(
    plan: Plan, snapshot: Snapshot, names: Mapping[str, str]
) -> tuple[Difference, ...]:
    """Changes that the plan would make; those of hidden jobs without id and reason."""
    waiting = {entry.job: entry for entry in explained(plan, snapshot)}
    result = []
    for change in differences(plan, snapshot):
        job, _purpose, _copy = key_of(change)
        is_visible = job in names
        why = ""
        if is_visible and job in waiting:
            why = reason_of(waiting[job], snapshot, names)
        ranks_before, ranks_after = sides(change)
        difference = Difference(
            job=job if is_visible else None,
            name=names.get(job, OTHERS),
            change=type(change).__name__.lower(),
            before=_devices_in_words(ranks_before, snapshot),
            after=_devices_in_words(ranks_after, snapshot),
            why=why,
        )
        result.append(difference)
    return tuple(result)


def _waiting(
    plan: Plan, present: Plan, snapshot: Snapshot, names: Mapping[str, str]
) -> tuple[LeftWaiting, ...]:
    """Visible jobs that the plan lets wait, with the reasons."""
    running = {placement.job for placement in present.placements}
    result = []
    for entry in explained(plan, snapshot):
        if entry.job in names:
            why = reason_of(entry, snapshot, names)
            runs_now = entry.job in running
            result.append(LeftWaiting(entry.job, names[entry.job], why, runs_now))
    return tuple(result)


def reason_of(entry: Waiting, snapshot: Snapshot, names: Mapping[str, str]) -> str:
    """Return why a plan lets a job wait, in words; `names` are those that its reader may see."""
    detail = waiting_detail(entry, snapshot)
    node_names = {node.id: node.name for node in snapshot.nodes}
    now = datetime.fromtimestamp(snapshot.now_s, UTC)
    return reason_for_waiting("queued", entry.code.value, detail, {**node_names, **names}, now)


def _devices_in_words(ranks: tuple[RankPlacement, ...], snapshot: Snapshot) -> str:
    """Nodes of the ranks with the numbers of their GPUs: "node-1 (GPU 0, 1), node-2 (GPU 0)"."""
    parts = []
    for rank in ranks:
        node = snapshot.node_by_id[rank.node]
        numbers = {device.id: str(index) for index, device in enumerate(node.devices)}
        gpus = ", ".join(numbers.get(device, device) for device in rank.devices)
        parts.append(f"{node.name} ({part_of(rank.share)}GPU {gpus})")
    return ", ".join(parts)
