"""One trace whose jobs share GPUs goes the same way through the simulated world and the live
one.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from clusters.models import Cluster, Device
from controlplane.loop.models import Round
from controlplane.simulation.cluster.launch import Launch
from jobs.models import Assignment, Job, Kind
from loadmaster.protocol import AssignmentState, ReasonClass
from policies.contract.snapshot import KindView, PairThroughput, Source
from policies.placement.speed import Speeds
from tests.builders_sharing import a_known_pair
from tests.builders_worlds import FixedKnowledge, LiveRun, LookingEngine, PretendedRuntime
from tests.controlplane.test_worlds_agree import engine as _engine
from tests.controlplane.test_worlds_agree import simulated, stays, the_cluster, the_jobs, the_kinds

pytestmark = pytest.mark.django_db

engine = _engine
"""The clock that Django reads too."""

KEPT = {("conv", "conv"): (0.7, 0.7), ("conv", "lstm"): (0.85, 0.6), ("lstm", "lstm"): (0.5, 0.5)}
"""What two of these kinds keep of their speed beside each other; two LSTMs gain nothing by it."""


class SharedRuntime(PretendedRuntime):
    """Agents whose GPUs are slower while two have them."""

    def __init__(self, base: PretendedRuntime, kinds: Sequence[KindView]) -> None:
        super().__init__(base.engine, base.rates)
        self.speeds_known = Speeds(kinds)
        self.of: dict[int, Assignment] = {}

    def _start(self, assignment: Assignment) -> None:
        super()._start(assignment)
        launch = self.launches[assignment.pk]
        self.of[id(launch)] = assignment
        self._look_again(launch)

    def _complete(self, launch: Launch) -> None:
        if launch.speed_change is None or launch.ends_s <= self.engine.now_s:
            super()._complete(launch)

    def _end(
        self,
        launch: Launch,
        state: AssignmentState,
        reason: ReasonClass | None = None,
    ) -> None:
        super()._end(launch, state, reason)
        self._look_again(launch)

    def _look_again(self, changed: Launch) -> None:
        (seat,) = changed.ranks
        here = [
            n
            for n in self.launches.values()
            if n.end_s > self.engine.now_s and n.ranks[0].node == seat.node
        ]
        here = [n for n in here if n.ranks[0].devices == seat.devices]
        for launch in here:
            if launch.goes_on:
                self._change_speed(launch, [other for other in here if other is not launch])

    def _change_speed(self, launch: Launch, others: list[Launch]) -> None:
        assignment = self.of[id(launch)]
        job, gpu_type = assignment.job, assignment.node.type_name
        shared = (
            [(gpu_type, [str(self.of[id(other)].job.kind_id) for other in others])]
            if others
            else []
        )
        launch.change_speed(
            self.engine.now_s,
            self.speeds_known.colocated(
                str(job.kind_id), self.rates(job, gpu_type, 1, False), 1, shared
            ),
            0.0,
        )
        launch.ends_s = (
            launch.first_step_s + (job.total_steps - launch.start_steps) / launch.steps_per_s
        )
        self.engine.at(max(self.engine.now_s, launch.ends_s), partial(self._complete, launch))


def pairing(kinds: dict[str, KindView]) -> dict[str, KindView]:
    """The kinds with their pairs on both GPU types."""
    found = {}
    for name, kind in kinds.items():
        alone = {t.gpu_type: t.steps_per_s for t in kind.throughputs if t.gpus == 1}
        pairs = tuple(
            PairThroughput(
                kinds[other].id,
                t,
                alone[t] * own,
                _alone(kinds[other], t) * others,
                Source.MEASURED,
            )
            for (one, other), (own, others) in KEPT.items()
            if one == name
            for t in sorted(alone)
        )
        found[name] = KindView(kind.id, kind.name, kind.throughputs, pairs)
    return found


def _alone(kind: KindView, gpu_type: str) -> float:
    return next(t.steps_per_s for t in kind.throughputs if (t.gpu_type, t.gpus) == (gpu_type, 1))


def keep_pairs(kind: KindView) -> None:
    """Have the live world know the kind's pairs already: what they then do is no news, which would
    ask for a round of its own.
    """
    for pair in kind.pairs:
        if int(kind.id) <= int(pair.other):
            two = Kind.objects.get(pk=int(kind.id)), Kind.objects.get(pk=int(pair.other))
            a_known_pair(*two, (pair.steps_per_s, pair.other_steps_per_s), pair.gpu_type)


def a_shared_cluster(
    policy: str, parameters: dict[str, Any]
) -> tuple[Cluster, FixedKnowledge, list[Job]]:
    """The trace of the other test, all jobs of one GPU that may share, on GPUs with two slots."""
    cluster = the_cluster(policy, parameters)
    Device.objects.update(slots=2)
    kinds = pairing(the_kinds())
    for kind in kinds.values():
        keep_pairs(kind)
    jobs = the_jobs(cluster, kinds)
    Job.objects.update(gpus_max=1, may_share=True)
    return cluster, FixedKnowledge(tuple(kinds.values())), jobs


@pytest.mark.parametrize(
    ("policy", "parameters"),
    [
        ("max_min_fairness", {"form": "sharing"}),
        pytest.param("gandiva", {"rotate": False}, marks=pytest.mark.slow),
        pytest.param("gandiva", {}, marks=pytest.mark.slow),
    ],
)
def test_jobs_that_share_gpus_go_the_same_way_through_both_worlds(
    policy: str, parameters: dict[str, Any], engine: LookingEngine
) -> None:
    cluster, knowledge, jobs = a_shared_cluster(policy, parameters)
    simulation = simulated(cluster, knowledge, ())
    live = LiveRun(cluster, jobs, knowledge, engine)
    live.runtime = SharedRuntime(live.runtime, knowledge.kinds)
    engine.after_each = live._look_for_events
    live.run()
    launches = [launch for job in simulation.state.jobs.values() for launch in job.launches]
    assert any(launch.ranks[0].share < 1.0 for launch in launches), (
        "the trace must have jobs that share"
    )
    assert stays(live.runtime.started) == stays(launches)
    assert not Job.objects.filter(cluster=cluster).exclude(state="completed").exists()
    assert Round.objects.filter(cluster=cluster).count() == len(simulation.rounds)
