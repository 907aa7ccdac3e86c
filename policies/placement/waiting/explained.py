"""Reasons as people read them: checked, and as exact as the whole plan allows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from policies.contract.plan import Expected, Plan, WaitCode, Waiting
from policies.contract.snapshot import JobPhase, Snapshot
from policies.placement.priced_options import per_watt_second
from policies.placement.waiting.plan_facts import PlanFacts
from policies.placement.waiting.reason_rules import IMPOSSIBLE, first_true, holds, winners
from policies.placement.waiting.reasons import MOST_NAMED


def explained(plan: Plan, snapshot: Snapshot) -> tuple[Waiting, ...]:
    """Return the plan's waiting jobs, each with a reason that is true and as exact as can be."""
    facts = PlanFacts(plan, snapshot)
    true_reasons: dict[object, Waiting] = {}
    reasons = []
    for entry in plan.waiting:
        # 1. The policy's reason if it is true, else the first true one: once for jobs alike.
        key = facts.alike(entry)
        if key not in true_reasons:
            true_reasons[key] = _true_reason(facts, entry)
        reason = true_reasons[key].of(entry.job, entry.expected)

        # 2. A more exact one, where the plan says more of the job.
        for exact in _more_exact(facts, reason):
            if holds(facts, exact):
                reason = exact
                break
        reasons.append(reason)
    return tuple(reasons)


def _true_reason(facts: PlanFacts, entry: Waiting) -> Waiting:
    """Return the policy's reason if it is true, else the first true one.

    A policy that knows nodes one by one calls a gang impossible that fits on several.
    """
    if holds(facts, entry):
        return entry
    if entry.code in IMPOSSIBLE:
        not_spread = Waiting(entry.job, WaitCode.NOT_SPREAD)
        if holds(facts, not_spread):
            return not_spread
    return first_true(facts, entry.job)


def _more_exact(facts: PlanFacts, entry: Waiting) -> Iterator[Waiting]:
    """Yield reasons that say more than this one, the preferred first; each is still to be checked.

    Only of jobs that are measured, or that wait for room: the other reasons say all there is.
    """
    if entry.code is WaitCode.AWAITING_PROFILE:
        yield replace(entry, nodes=tuple(_measured_on(facts, entry.job))[:MOST_NAMED])
        return
    if entry.code not in (WaitCode.NO_CAPACITY, WaitCode.POSTPONED):
        return
    if facts.phase(entry.job) is JobPhase.RUNNING:
        yield _preempted(facts, entry)
    expected = entry.expected
    if expected is None or not expected.nodes or expected.start_s <= facts.snapshot.now_s:
        return
    if entry.code is WaitCode.NO_CAPACITY:
        yield _held_there(facts, entry, expected)
    else:
        yield from _reserved(facts, entry, expected)
        yield from _cheaper_later(facts, entry, expected)
        yield replace(_held_there(facts, entry, expected), code=WaitCode.BETTER_NODE)


def _preempted(facts: PlanFacts, entry: Waiting) -> Waiting:
    """Return the reason of a running job whose GPUs go to others."""
    running = facts.snapshot.jobs.columns.others["running"][facts.row(entry.job)]
    nodes = dict.fromkeys(seat.node for run in running for seat in run.ranks)
    return replace(
        entry,
        code=WaitCode.PREEMPTED,
        nodes=tuple(nodes)[:MOST_NAMED],
        jobs=tuple(winners(facts, entry.job))[:MOST_NAMED],
    )


def _held_there(facts: PlanFacts, entry: Waiting, expected: Expected) -> Waiting:
    """Return the reason with the nodes on which the job is expected, and the jobs there."""
    there = facts.held_from(entry.job, facts.node_set(expected.nodes))
    return there.of(entry.job, expected)


def _reserved(facts: PlanFacts, entry: Waiting, expected: Expected) -> Iterator[Waiting]:
    """Yield the reservation that begins first on a node on which the job would fit now."""
    first = facts.first_reservation(facts.beside.nodes(entry.job), entry.job)
    if first is not None and first.start_s < expected.start_s:
        yield replace(
            entry,
            code=WaitCode.RESERVED,
            nodes=(first.node,),
            jobs=(first.job,),
            from_s=first.start_s,
            gpus=first.gpus,
        )


def _cheaper_later(facts: PlanFacts, entry: Waiting, expected: Expected) -> Iterator[Waiting]:
    """Yield the first price below the present one, no later than the expected start."""
    there = facts.node_set(expected.nodes)
    snapshot = facts.snapshot
    per_kg = snapshot.emissions_cost_per_kg
    now = snapshot.energy_at(snapshot.now_s)
    if now is None or facts.beside.shortage(entry.job, there) is not None:
        return
    price = per_watt_second(now, per_kg)
    for step in snapshot.energy:
        is_ahead = snapshot.now_s < step.from_s <= expected.start_s
        if is_ahead and per_watt_second(step, per_kg) < price:
            yield replace(
                entry,
                code=WaitCode.CHEAPER_LATER,
                nodes=expected.nodes[:MOST_NAMED],
                jobs=(),
                from_s=step.from_s,
            )
            return


def _measured_on(facts: PlanFacts, job: str) -> Iterable[str]:
    """Return the nodes on which the job's kind is measured."""
    return facts.measured.get(facts.snapshot.jobs.columns.kinds[facts.row(job)], ())
