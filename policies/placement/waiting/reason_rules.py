"""Rules of the reasons for waiting: what must be true of a snapshot and a plan for each code.

A policy says why it left a job waiting, and may know only a part of the cluster. Before people read
a reason, the rule of its code is asked (`RULES`). Where the rule does not hold, people read the
first reason that is true (`first_true`). The words of each code are in `jobs.wording.reasons`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from policies.contract.plan import PlanStatus, WaitCode, Waiting
from policies.contract.snapshot import JobPhase
from policies.placement.cluster_state import ShortageCode
from policies.placement.priced_options import per_watt_second
from policies.placement.waiting.plan_facts import CAPACITY, PlanFacts
from policies.placement.waiting.reasons import for_power


def first_true(facts: PlanFacts, job: str) -> Waiting:
    """Return the first reason that is true of a waiting job, in the order people ask for them."""
    # 1. Jobs that may not start yet, whatever is free.
    if facts.phase(job) is JobPhase.PROFILING:
        return Waiting(job, WaitCode.AWAITING_PROFILE)
    undone = facts.undone(job)
    if undone:
        return Waiting(job, WaitCode.DEPENDENCY, jobs=undone)
    if facts.plan.status is PlanStatus.KEPT:
        return Waiting(job, WaitCode.SOLVER_FAILED)

    # 2. Jobs that no open node could run, even if nothing else ran.
    impossible = facts.impossible(job)
    if impossible is not None:
        return replace(impossible, job=job)

    # 3. Jobs whose team has no GPUs left.
    limit = facts.reached_limit(job)
    if limit is not None:
        return Waiting(job, WaitCode.TEAM_LIMIT, gpus=limit, team=facts.team(job))

    # 4. Jobs that find no room or no power beside the placements of the plan.
    shortage = facts.beside.shortage(job)
    if shortage is None:
        return Waiting(job, WaitCode.POSTPONED)
    if shortage.code is ShortageCode.POWER_CAP:
        return replace(for_power(facts.snapshot, shortage), job=job)
    return facts.held_from(job, facts.empty.nodes(job))


Rule = Callable[[PlanFacts, Waiting], bool]
"""Predicate of a code: whether a reason agrees with the facts."""


def holds(facts: PlanFacts, entry: Waiting) -> bool:
    """Return True if a reason is true of its job."""
    return RULES[entry.code](facts, entry)


def _is_awaiting_profile(facts: PlanFacts, entry: Waiting) -> bool:
    return facts.phase(entry.job) is JobPhase.PROFILING


def _is_dependent(facts: PlanFacts, entry: Waiting) -> bool:
    return bool(entry.jobs) and set(entry.jobs) <= set(facts.undone(entry.job))


def _has_no_decision(facts: PlanFacts, entry: Waiting) -> bool:
    return facts.plan.status is PlanStatus.KEPT


def _is_impossible(facts: PlanFacts, entry: Waiting) -> bool:
    """Return True if no open nodes meet the needs that the reason names, even when empty."""
    impossible = facts.impossible(entry.job)
    return impossible is not None and entry.of("", None) == impossible


def _is_not_spread(facts: PlanFacts, entry: Waiting) -> bool:
    """Return True if only several nodes together could hold the job; its policy places none so."""
    if facts.impossible(entry.job, may_spread=False) is None:
        return False
    return facts.impossible(entry.job) is None


def _has_no_capacity(facts: PlanFacts, entry: Waiting) -> bool:
    """Return True if the job does not fit now, but would if the named jobs left the named nodes."""
    if facts.beside.shortage(entry.job) != CAPACITY:
        return False
    nodes = facts.node_set(entry.nodes)
    if facts.empty.shortage(entry.job, nodes) is not None:
        return False
    return entry.jobs == facts.held_from(entry.job, nodes).jobs


def _has_no_power(facts: PlanFacts, entry: Waiting) -> bool:
    """Return True if the job has room, and lacks as many watts as the reason says."""
    shortage = facts.beside.shortage(entry.job)
    if shortage is None or shortage.code is not ShortageCode.POWER_CAP:
        return False
    return entry.watts == for_power(facts.snapshot, shortage).watts


def _has_room(facts: PlanFacts, entry: Waiting) -> bool:
    """Return True if the job would fit now; the policy starts it later."""
    return facts.beside.shortage(entry.job) is None


def _was_preempted(facts: PlanFacts, entry: Waiting) -> bool:
    """Return True if the job ran, and the plan gives its devices to the named jobs."""
    if facts.phase(entry.job) is not JobPhase.RUNNING or not entry.jobs:
        return False
    return set(entry.jobs) <= set(winners(facts, entry.job))


def winners(facts: PlanFacts, job: str) -> Mapping[str, None]:
    """Return the jobs that the plan places on devices of a job that ran, in order."""
    running = facts.snapshot.jobs.columns.others["running"][facts.row(job)]
    owners = dict[str, None]()
    for run in running:
        for seat in run.ranks:
            for device in seat.devices:
                owner = facts.owners.get((seat.node, device), job)
                if owner != job:
                    owners[owner] = None
    return owners


def _is_cheaper_later(facts: PlanFacts, entry: Waiting) -> bool:
    """Return True if the job would fit now, and energy costs less from `from_s` on."""
    if entry.from_s is None or not _has_room(facts, entry):
        return False
    snapshot = facts.snapshot
    now = snapshot.energy_at(snapshot.now_s)
    later = snapshot.energy_at(entry.from_s)
    if now is None or later is None:
        return False
    per_kg = snapshot.emissions_cost_per_kg
    return per_watt_second(later, per_kg) < per_watt_second(now, per_kg)


def _has_a_better_node(facts: PlanFacts, entry: Waiting) -> bool:
    """Return True if the job would fit now, but not on the named nodes, where it is expected."""
    if entry.expected is None or not set(entry.nodes) <= set(entry.expected.nodes):
        return False
    there = facts.node_set(entry.expected.nodes)
    return _has_room(facts, entry) and facts.beside.shortage(entry.job, there) is not None


def _is_reserved(facts: PlanFacts, entry: Waiting) -> bool:
    """Return True if the job would fit now on the named node, where the named job is expected."""
    if not _has_room(facts, entry) or len(entry.nodes) != 1:
        return False
    if not facts.beside.nodes(entry.job) & facts.node_set(entry.nodes):
        return False
    for job, expected in facts.reservations.get(entry.nodes[0], ()):
        if entry.jobs == (job,) and entry.from_s == expected.start_s:
            return True
    return False


def _is_over_team_limit(facts: PlanFacts, entry: Waiting) -> bool:
    """Return True if the jobs of its team together need more GPUs than the team may use."""
    if facts.team(entry.job) != entry.team or facts.team_limits.get(entry.team) != entry.gpus:
        return False
    return facts.gpus_needed_by_teams[entry.team] > entry.gpus


def _is_outbid(facts: PlanFacts, entry: Waiting) -> bool:
    """Return True if a job would fit now, and is worth less than its GPUs cost."""
    if entry.price is None or entry.worth is None or entry.price <= entry.worth:
        return False
    return _has_room(facts, entry)


IMPOSSIBLE = (
    WaitCode.NO_THROUGHPUT,
    WaitCode.NO_NODE_FITS,
    WaitCode.TYPES_UNAVAILABLE,
    WaitCode.LABEL_UNAVAILABLE,
    WaitCode.RUNTIME_UNAVAILABLE,
    WaitCode.AGENT_TOO_OLD,
    WaitCode.NODES_OF_OTHER_TEAMS,
    WaitCode.NODES_UNAVAILABLE,
    WaitCode.NODES_LOST,
    WaitCode.NODES_AVOIDED,
)
"""Codes of jobs that no open node could run, even if nothing else ran."""

RULES: Mapping[WaitCode, Rule] = {
    WaitCode.AWAITING_PROFILE: _is_awaiting_profile,
    WaitCode.DEPENDENCY: _is_dependent,
    WaitCode.SOLVER_FAILED: _has_no_decision,
    WaitCode.TEAM_LIMIT: _is_over_team_limit,
    **dict.fromkeys(IMPOSSIBLE, _is_impossible),
    WaitCode.NOT_SPREAD: _is_not_spread,
    WaitCode.NO_CAPACITY: _has_no_capacity,
    WaitCode.POWER_CAP: _has_no_power,
    WaitCode.POSTPONED: _has_room,
    WaitCode.PREEMPTED: _was_preempted,
    WaitCode.CHEAPER_LATER: _is_cheaper_later,
    WaitCode.BETTER_NODE: _has_a_better_node,
    WaitCode.RESERVED: _is_reserved,
    WaitCode.OUTBID: _is_outbid,
}
"""Rule of each code."""
