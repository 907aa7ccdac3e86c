"""Policies that know pairs only in part by measurement: the world goes by the truth, and what runs
is learned.
"""

from math import isnan
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.simulation.cluster.launch import Launch
from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.report.run_metrics import METRICS, metrics_of
from controlplane.simulation.study.run_files import load, save
from controlplane.simulation.switches import Switches
from controlplane.simulation.workloads.base import Workload
from controlplane.simulation.world.observation.observed_pairs import ObservedPairs
from controlplane.simulation.world.outcome import Outcome, PairEstimates
from controlplane.simulation.world.run import Simulation, simulate
from controlplane.studies.pages.selectors import results_table
from foundation.forms import Form, FormError
from policies.contract.plan import Plan
from policies.contract.policy import Policy
from policies.contract.snapshot import JobColumns, Jobs, JobView, PairThroughput, Snapshot, Source
from policies.host.registry import make
from profiling.pairs.estimates import ErrorSummary
from profiling.pairs.study import with_estimates
from tests.builders_colocation import a_wide_node
from tests.builders_outcomes import a_finished_run, an_outcome
from tests.builders_pairs import GAVEL_ALONE, V100, gavels_kinds, gavels_rates
from tests.builders_policies import a_job
from tests.builders_shared_worlds import FLAT, Script, half_of

KINDS = gavels_kinds()
OBSERVED, SEED = 0.6, 2
TRUTH = {(k.id, p.other): p for k in KINDS for p in k.pairs}


def estimated_pairs(
    observed: float = OBSERVED, seed: int = SEED
) -> dict[tuple[str, str], PairThroughput]:
    """Pairs of two kinds that policies see as estimated."""
    found = with_estimates(KINDS, observed, seed=seed)
    return {
        (k.id, p.other): p
        for k in found.kinds
        for p in k.pairs
        if p.source is Source.ESTIMATED and k.id != p.other
    }


def a_possible_pair() -> tuple[str, str]:
    """One that is estimated, and can be together."""
    return next(pair for pair in estimated_pairs() if TRUTH[pair].steps_per_s > 0.0)


def a_wrongly_possible_pair() -> tuple[str, str, int]:
    """One that is estimated to be possible and is not, and the seed under which that is so."""
    seeds = (
        (pair, seed)
        for seed in range(200)
        for pair in estimated_pairs(0.4, seed)
        if TRUTH[pair].steps_per_s == 0.0
    )
    (one, other), seed = next(seeds)
    return one, other, seed


def a_scenario(gpus: int = 1, seed: int = SEED) -> Scenario:
    return Scenario((a_wide_node(gpus=gpus),), KINDS, FLAT, round_s=30.0, seed=seed)


def jobs_of(*kinds: str, steps: float = 2000.0) -> list[JobView]:
    return [
        a_job(f"j{i}", kind, remaining_steps=steps, total_steps=steps, may_share=True)
        for i, kind in enumerate(kinds)
    ]


class Watching:
    """Another policy, and what it was told of a pair, round by round."""

    def __init__(self, policy: Policy, kind: str, other: str) -> None:
        self.policy, self.kind, self.other = policy, kind, other
        self.told: list[PairThroughput | None] = []

    def __call__(self, snapshot: Snapshot) -> Plan:
        pairs = [
            p for k in snapshot.kinds if k.id == self.kind for p in k.pairs if p.other == self.other
        ]
        self.told.append(pairs[0] if pairs else None)
        return self.policy(snapshot)


def run(
    policy: Policy, jobs: list[JobView], scenario: Scenario, observed: float = OBSERVED
) -> Simulation:
    return Simulation(scenario, jobs, policy, switches=Switches(pairs_observed=observed)).run()


def test_a_policy_sees_an_estimate_until_the_pair_has_run_while_the_world_goes_by_the_truth() -> (
    None
):
    one, other = a_possible_pair()
    script = Script({"j0": half_of("gpu0"), "j1": half_of("gpu0")})
    watching = Watching(script, one, other)
    simulation = run(watching, jobs_of(one, other), a_scenario())
    first, *later = watching.told
    assert first is not None
    assert first.source is Source.ESTIMATED
    assert first == estimated_pairs()[one, other]
    truth = TRUTH[one, other]
    assert later[0] == PairThroughput(
        other, V100, truth.steps_per_s, truth.other_steps_per_s, Source.MEASURED
    )
    ended_s = min(job.completed_s or 0.0 for job in simulation.state.jobs.values())
    assert ended_s == pytest.approx(2000.0 / max(truth.steps_per_s, truth.other_steps_per_s))


def test_errors_of_all_estimates_and_of_those_that_ran_are_reported() -> None:
    one, other = a_possible_pair()
    script = Script({"j0": half_of("gpu0"), "j1": half_of("gpu0")})
    simulation = run(script, jobs_of(one, other), a_scenario())
    assert simulation.state.pairs is not None
    found, guess, truth = (
        simulation.state.pairs.estimates(),
        estimated_pairs()[one, other],
        TRUTH[one, other],
    )
    assert found.all == with_estimates(KINDS, OBSERVED, seed=SEED).errors
    errors = [
        abs(guess.steps_per_s / truth.steps_per_s - 1),
        abs(guess.other_steps_per_s / truth.other_steps_per_s - 1),
    ]
    assert (found.ran.count, found.measured) == (2, 1)
    assert found.ran.mean == pytest.approx(sum(errors) / 2)


def test_what_turns_out_not_to_fit_is_never_put_together_and_known_from_then_on() -> None:
    one, other, seed = a_wrongly_possible_pair()
    watching = Watching(Script({"j0": half_of("gpu0"), "j1": half_of("gpu0")}), one, other)
    simulation = run(watching, jobs_of(one, other), a_scenario(seed=seed), observed=0.4)
    assert watching.told[0] is not None
    assert watching.told[0].steps_per_s > 0.0
    assert watching.told[1] == PairThroughput(other, V100, 0.0, 0.0, Source.MEASURED)
    assert simulation.state.pairs is not None
    assert simulation.state.pairs.estimates().ran.wrongly_possible == 2
    first, second = sorted(
        (n.start_s, n.end_s) for job in simulation.state.jobs.values() for n in job.launches
    )
    assert first[1] <= second[0]


def test_the_first_measurement_replaces_an_estimate_and_later_ones_move_it() -> None:
    one, other = a_possible_pair()
    seen = ObservedPairs(KINDS, OBSERVED, SEED)
    for rates in ((1.0, 2.0), (2.0, 4.0), (2.0, 4.0)):
        seen.learn((one, other, V100), rates)
    told = {(k.id, p.other): p for k in seen.changed(KINDS) for p in k.pairs}
    assert told[one, other].steps_per_s == pytest.approx(1.0 + 1 / 2 + (1 - 1 / 2) / 3), (
        "weights 1, 1/2, 1/3"
    )
    assert told[other, one].other_steps_per_s == told[one, other].steps_per_s
    assert seen.estimates().ran.count == 2, (
        "an estimate is held against the first measurement alone"
    )
    assert list(seen.changed(KINDS)) == []


def test_two_that_have_not_worked_side_by_side_teach_nothing() -> None:
    one, other = a_possible_pair()
    seen, kinds = ObservedPairs(KINDS, OBSERVED, SEED), (one, other)
    pair = [Launch(f"j{row}", half_of("gpu0"), 0.0, 0, 10.0, 1.0, row=row) for row in (0, 1)]
    seen.meet(pair, V100)
    seen.look(10.0, kinds)
    assert seen.number_measured == 0
    pair[1].stop_wanted_s = 10.0
    seen.look(20.0, kinds)
    assert seen.number_measured == 0, "the second was to stop before its first step"


def test_a_gang_or_a_third_one_on_the_gpu_is_no_measurement_of_a_pair() -> None:
    seen = ObservedPairs(KINDS, OBSERVED, SEED)
    one, other, third = (
        Launch(f"j{row}", half_of("gpu0"), 0.0, 0, 0.0, 1.0, row=row) for row in range(3)
    )
    gang = Launch("j3", half_of("gpu0", "gpu1"), 0.0, 0, 0.0, 1.0, row=3)
    seen.meet([one, gang], V100)
    seen.meet([one, other], V100)
    seen.meet([one, other, third], V100)
    seen.look(20.0, tuple(GAVEL_ALONE))
    assert seen.number_measured == 0


def test_without_the_switch_policies_see_the_truth() -> None:
    watching = Watching(Script({"j0": half_of("gpu0"), "j1": half_of("gpu0")}), *a_possible_pair())
    simulation = run(watching, jobs_of(*a_possible_pair()), a_scenario(), observed=1.0)
    assert simulation.state.pairs is None
    assert watching.told[0] == TRUTH[a_possible_pair()]


@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_a_part_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(FormError, match="pairs_observed"):
        Form(Switches).read({"pairs_observed": value})


def outcome_with(estimates: PairEstimates | None) -> Outcome:
    return an_outcome(pair_estimates=estimates)


SOME = PairEstimates(
    ErrorSummary(20, 0.11, 0.08, 0.25, 0.6, 2, 1), ErrorSummary(4, 0.05, 0.04, 0.09, 0.1, 0, 0), 3
)


def test_a_finished_run_keeps_the_errors(tmp_path: Path) -> None:
    for estimates in (SOME, None):
        save(tmp_path / "run.npz", a_finished_run(outcome_with(estimates)))
        found = load(tmp_path / "run.npz")
        assert found is not None
        assert found.outcome.pair_estimates == estimates


def test_the_errors_are_figures_of_a_run() -> None:
    found = metrics_of(outcome_with(SOME))
    errors = [found[f"pair_error_{name}"] for name in ("mean", "p50", "p90", "most")]
    assert errors == [0.11, 0.08, 0.25, 0.6]
    assert (found["pair_ran_error_mean"], found["pairs_measured"]) == (0.05, 3.0)
    assert isnan(metrics_of(outcome_with(None))["pair_error_mean"])


def test_pages_show_the_errors_where_pairs_were_estimated_and_not_else() -> None:
    metrics = [{"name": m.name, "words": m.words, "unit": m.unit} for m in METRICS]

    def headings(mean: float | None) -> tuple[str, ...]:
        policy = {
            "label": "fifo",
            "mean": {"pair_error_mean": {"mean": mean, "half_width": None, "n": 1}},
        }
        return results_table([("s", {"metrics": metrics, "policies": [policy]})]).headings

    assert "Error of estimated pairs, mean" in headings(0.11)
    assert not any("pairs" in heading for heading in headings(None))


CHOICES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("gandiva", {}),
    ("max_min_fairness", {"form": "sharing"}),
)


@settings(deadline=None, max_examples=20)
@given(
    st.lists(st.sampled_from(sorted(GAVEL_ALONE)), min_size=3, max_size=8),
    st.sampled_from(CHOICES),
    st.sampled_from([0.0, 0.3, 0.6]),
    st.integers(0, 20),
)
def test_whatever_is_estimated_all_jobs_end_and_everything_learned_is_true(
    kinds: list[str], choice: tuple[str, dict[str, Any]], observed: float, seed: int
) -> None:
    policy, rates = (
        make(*choice),
        gavels_rates() | {(q, k, t): (b, a) for (k, q, t), (a, b) in gavels_rates().items()},
    )

    def watched(snapshot: Snapshot) -> Plan:
        for kind, p in (
            (k.id, p) for k in snapshot.kinds for p in k.pairs if p.source is Source.MEASURED
        ):
            assert (p.steps_per_s, p.other_steps_per_s) == pytest.approx(
                rates[kind, p.other, p.gpu_type]
            )
        return policy(snapshot)

    simulation = run(watched, jobs_of(*kinds, steps=500.0), a_scenario(2, seed), observed)
    assert all(job.completed_s is not None for job in simulation.state.jobs.values())


def test_the_same_seed_gives_the_same_run() -> None:
    jobs = jobs_of(*list(GAVEL_ALONE)[:6])
    workload = Workload("test", Jobs(JobColumns.of(jobs)), KINDS)
    switches = Switches(pairs_observed=0.5)
    first, second = (
        simulate(a_scenario(2), workload, make(*CHOICES[1]), name="p", seed=3, switches=switches)
        for _ in range(2)
    )
    assert first.completion_s.tolist() == second.completion_s.tolist()
    assert first.pair_estimates == second.pair_estimates
    assert first.pair_estimates is not None
    assert first.pair_estimates.all.count > 0
