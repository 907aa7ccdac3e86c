"""Hadar against the optimum of its own problem P1, over all slots, by CP-SAT, on small instances.

`python -m experiments.bench.hadar.optimum`. P1 knows all jobs and slots at once; the policy decides
slot by slot. Shown are the worth of all jobs over the optimum's, and how many instances are below
the 1 / (2 alpha) of the paper: its proof is for prices that rise smoothly, so nodes of one GPU,
whose price jumps from the least to the most, are counted apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from ortools.sat.python import cp_model

from experiments.bench.figures import Figure, figure, show
from policies.contract.plan import Running
from policies.contract.snapshot import (
    DeviceView,
    JobColumns,
    JobPhase,
    Jobs,
    JobView,
    KindView,
    NodeView,
    Snapshot,
    Source,
    Throughput,
)
from policies.hadar.hadar import Hadar
from policies.hadar.offers import offers_of
from policies.placement.plan_builder import PlanBuilder

TYPES = ("fast", "slow")
SLOT_S = 100.0
SLOTS = 12
UTILITY = "effective_throughput"
KEEP = 0.0
"""Restarts cost nothing here, so jobs move for any gain, as in the paper's Algorithm 2."""


@dataclass(frozen=True, slots=True)
class Instance:
    """Two nodes, one of each type, and rigid gangs: GPUs of a node; by job its gang, its steps and
    its steps in a slot on each type.
    """

    gpus: int
    gang: tuple[int, ...]
    steps: tuple[int, ...]
    rates: tuple[tuple[int, int], ...]

    @classmethod
    def drawn(cls, seed: int, gpus: int) -> Instance:
        """Draw three or four jobs that need one to three slots where they are fastest."""
        rng = np.random.default_rng(seed)
        jobs = int(rng.integers(3, 5))
        gang, steps, rates = [], [], []
        for _ in range(jobs):
            slow = int(rng.integers(2, 10))
            fast = slow + int(rng.integers(0, 10))
            gang.append(int(rng.integers(1, gpus + 1)))
            rates.append((fast, slow))
            steps.append(fast * int(rng.integers(1, 4)))
        return cls(gpus, tuple(gang), tuple(steps), tuple(rates))

    def worth(self, job: int, slots: int) -> float:
        """Return the worth of a job that ends after so many slots: its effective throughput."""
        best_s = self.steps[job] / max(self.rates[job]) * SLOT_S
        return self.gang[job] * best_s / (slots * SLOT_S)


def optimum(instance: Instance) -> float:
    """Return the greatest worth of all jobs in P1."""
    model = cp_model.CpModel()
    jobs = range(len(instance.gang))
    runs = {
        (j, t, r): model.new_bool_var(f"runs {j} {t} {r}")
        for j in jobs
        for t in range(SLOTS)
        for r in range(len(TYPES))
    }

    # One place in a slot, and no GPU twice.
    for t in range(SLOTS):
        for j in jobs:
            model.add_at_most_one(runs[j, t, r] for r in range(len(TYPES)))
        for r in range(len(TYPES)):
            used = sum(instance.gang[j] * runs[j, t, r] for j in jobs)
            model.add(used <= instance.gpus)

    # A job ends in the first slot after which all its steps are done; it must end.
    terms = []
    for j in jobs:
        ends = [model.new_bool_var(f"ends {j} {t}") for t in range(SLOTS)]
        model.add_exactly_one(ends)
        for t in range(SLOTS):
            done = sum(instance.rates[j][r] * runs[j, s, r] for s in range(t + 1) for r in range(2))
            model.add(done >= instance.steps[j]).only_enforce_if(ends[t])
            terms.append(instance.worth(j, t + 1) * ends[t])
    model.maximize(sum(terms))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    if solver.solve(model) != cp_model.OPTIMAL:
        raise RuntimeError("the jobs do not end within the slots")
    return float(solver.objective_value)


def achieved(instance: Instance) -> tuple[float, float]:
    """Return (worth of all jobs under the policy, alpha of its first prices)."""
    left = {f"j{j}": float(steps) for j, steps in enumerate(instance.steps)}
    running: dict[str, tuple[Running, ...]] = {}
    total = 0.0
    alpha = 1.0
    for slot in range(10 * SLOTS):
        snapshot = _snapshot(instance, left, running, slot)
        if slot == 0:
            builder = PlanBuilder(snapshot, never_touch=False, keep_wide=False)
            offers = offers_of(builder, UTILITY, 1.0, KEEP)
            alpha = max(price.alpha for price in offers.ranges.values())
        plan = Hadar(utility=UTILITY, keep=KEEP)(snapshot)
        running = {}
        for placed in plan.placements:
            job = int(placed.job[1:])
            r = TYPES.index(snapshot.node_by_id[placed.ranks[0].node].gpu_type)
            left[placed.job] -= instance.rates[job][r]
            running[placed.job] = (Running(0, placed.ranks, slot * SLOT_S),)
            if left[placed.job] <= 0.0:
                del left[placed.job]
                total += instance.worth(job, slot + 1)
        if not left:
            return total, alpha
    raise RuntimeError("the jobs do not end")


def _snapshot(
    instance: Instance,
    left: dict[str, float],
    running: dict[str, tuple[Running, ...]],
    slot: int,
) -> Snapshot:
    devices = tuple(DeviceView(f"gpu{d}", 16.0) for d in range(instance.gpus))
    nodes = tuple([NodeView(name, name, name, devices, ()) for name in TYPES])
    kinds = []
    rows = []
    for job, steps in left.items():
        j = int(job[1:])
        gpus = instance.gang[j]
        known = [
            Throughput(name, gpus, rate / SLOT_S, Source.MEASURED)
            for name, rate in zip(TYPES, instance.rates[j], strict=True)
        ]
        kinds.append(KindView(job, throughputs=tuple(known)))
        row = JobView(job, job, 0.0, steps, gpus, gpus, total_steps=float(instance.steps[j]))
        if job in running:
            row = replace(row, running=running[job], phase=JobPhase.RUNNING)
        rows.append(row)
    columns = Jobs(JobColumns.of(rows))
    return Snapshot("optimum", (slot + 1) * SLOT_S, SLOT_S, 1, nodes, tuple(kinds), columns)


def figures(seeds: int = 60) -> Iterator[Figure]:
    """Yield the ratios for nodes of one GPU, and of more."""
    for gpus in (1, 2, 4):
        ratios = []
        below = 0
        for seed in range(seeds):
            instance = Instance.drawn(seed, gpus)
            worth, alpha = achieved(instance)
            best = optimum(instance)
            ratios.append(worth / best)
            below += worth < best / (2.0 * alpha)
        yield figure(
            f"hadar, worth over the optimum of P1, nodes of {gpus} GPUs",
            100.0 * float(np.mean(ratios)),
            None,
            "%",
            worst=round(min(ratios), 3),
            below_1_over_2_alpha=below,
            instances=seeds,
        )


if __name__ == "__main__":
    show(figures())
