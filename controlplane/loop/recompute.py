"""Recomputation of a stored round: figures from its plan and prices, the plan from its snapshot."""

from dataclasses import dataclass, replace
from functools import partial

from clusters.tariffs import price_steps
from controlplane.loop.live.record import cost_rate_per_h, last_plan
from controlplane.loop.live.solver import solve_here
from controlplane.loop.models import Round
from controlplane.loop.rounds import carry_out_or_decide
from controlplane.loop.team_limits import within_team_limits
from policies.andreas.randomized_greedy import RandomizedGreedy
from policies.contract import plan_json, snapshot_json
from policies.contract.plan import PLAN_VERSION, Plan, PlanStatus
from policies.contract.snapshot import Purpose, Snapshot
from policies.cost_model.problem import build
from policies.cost_model.solution import Solution
from policies.host.registry import make
from policies.placement.profiling import reserve_profiling
from policies.search.cost_search import CostSearch


class RoundNotFoundError(Exception):
    """Round that is missing, without plan, or no longer fully stored."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Figure of a round as stored and as recomputed; None where the round has none."""

    name: str
    stored: float | None
    recomputed: float | None

    @property
    def difference(self) -> float | None:
        """Recomputed less stored figure; None if either is missing."""
        if self.stored is None or self.recomputed is None:
            return None
        return self.recomputed - self.stored


def find_round(name: str) -> Round:
    """Find the finished round of that id or `cluster:number`. Raises RoundNotFoundError."""
    cluster, colon, number = name.rpartition(":")
    if not number.isdecimal():
        raise RoundNotFoundError(
            f"{name!r}: write a round's id, or its cluster and number such as main:12"
        )
    rounds = Round.objects.select_related("cluster")
    if colon:
        rounds = rounds.filter(cluster__name=cluster, number=number)
    else:
        rounds = rounds.filter(pk=number)
    row = rounds.first()
    if row is None:
        raise RoundNotFoundError(f"there is no round {name}")
    if row.snapshot is None and row.plan is not None:
        raise RoundNotFoundError(
            f"round {name} is too old: its snapshot has been pruned"
            " (LOADMASTER_KEEP_SNAPSHOTS_DAYS)"
        )
    if row.snapshot is None or row.plan is None:
        raise RoundNotFoundError(f"round {name} is {row.status} and has no plan")
    return row


def recompute(row: Round) -> tuple[Figure, ...]:
    """Return objective and cost rate of the stored plan, at the prices known at the round."""
    plan = plan_json.from_json(row.plan)
    snapshot = _priced_anew(row)
    return (
        Figure("objective", row.objective, _objective(row, plan, snapshot)),
        Figure("cost_rate_per_h", row.cost_rate_per_h, cost_rate_per_h(plan, snapshot)),
    )


def replay(row: Round) -> Plan:
    """Decide the round again, or carry its plan out by the same rule. Raises RoundNotFoundError."""
    if row.carried is not None and last_plan(row) is None:
        raise RoundNotFoundError(
            f"round {row.cluster.name}:{row.number} carried out the plan of round {row.carried},"
            " which has been pruned (LOADMASTER_KEEP_ROUNDS_DAYS)"
        )
    policy = partial(solve_here, row.policy, row.parameters)
    snapshot = snapshot_json.from_json(row.snapshot)
    return carry_out_or_decide(snapshot, policy, partial(last_plan, row), row.policy).plan


def digests(row: Round, again: Plan) -> tuple[str, str]:
    """Return the digests of the stored plan and of `again`, the plan decided anew, to compare them.

    A plan of an older version has reasons to wait in another form. Then both digests are those of
    the placements.
    """
    if row.plan["version"] == PLAN_VERSION:
        return row.plan_sha256, plan_json.digest(again)
    stored = replace(plan_json.from_json(row.plan), waiting=())
    decided = replace(again, waiting=())
    return plan_json.digest(stored), plan_json.digest(decided)


def _priced_anew(row: Round) -> Snapshot:
    """Return the round's snapshot with the prices that were known when the round began."""
    snapshot = snapshot_json.from_json(row.snapshot)
    begin_s = snapshot.now_s
    end_s = begin_s + snapshot.horizon_s
    prices = price_steps(row.cluster, begin_s, end_s, known_by=row.started_at, zone=row.timezone)
    return replace(snapshot, energy=prices)


def _objective(row: Round, plan: Plan, snapshot: Snapshot) -> float | None:
    """Return the objective of the plan by its policy.

    Return None if the policy has no objective, or if the round did not decide the plan itself.
    """
    if plan.status is PlanStatus.KEPT or row.carried is not None:
        return None

    # 1. The snapshot that the policy was given: without jobs above limits, and profile runs.
    policy = make(row.policy, row.parameters)
    within_limits, _ = within_team_limits(snapshot)
    shown, _ = reserve_profiling(within_limits)

    # 2. The cost search decides anew.
    if isinstance(policy, CostSearch):
        return policy(shown).objective
    if not isinstance(policy, RandomizedGreedy):
        return None

    # 3. ANDREAS' objective is a function of a solution: the nodes and configurations of the plan.
    problem = build(shown, charged=policy.mode == "paper")
    ids = problem.snapshot.jobs.columns.ids
    job_numbers = {ids[row]: number for number, row in enumerate(problem.rows)}
    node_numbers = {node.id: number for number, node in enumerate(problem.nodes)}
    solution = Solution.empty(problem)
    for placement in plan.placements:
        job = job_numbers.get(placement.job)
        node = node_numbers.get(placement.ranks[0].node)
        if placement.purpose is not Purpose.TRAINING or job is None or node is None:
            continue
        node_class = int(problem.node_class[node])
        solution.node[job] = node
        solution.config[job] = problem.config_number[node_class, placement.gpus]
    return policy.f.value(problem, solution)
