"""Simulated world of rounds, and the functions that answer its events.

As in `controlplane.loop.live`, a stopping launch holds its devices, its job waits, a launch on
those devices is deferred, and the end of the stop requests the next round. Launching, stopping and
restarting take no time by default. Profile runs are not simulated.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from controlplane.loop.changes import (
    ChangeQuotas,
    Keep,
    PlacementKey,
    Preempt,
    Start,
    Stop,
    changes,
    key_of,
)
from controlplane.loop.rounds import Applied, Decision, LastPlan
from controlplane.simulation.cluster.launch import Launch
from controlplane.simulation.world import events
from controlplane.simulation.world.ends import (
    complete,
    end_delay,
    end_overdue,
    kill,
    note_first_start,
)
from controlplane.simulation.world.launches import (
    ask_to_stop,
    break_launch,
    change_quotas,
    end_stop,
    end_term,
    keep,
    launch_placement,
    release,
)
from controlplane.simulation.world.measuring import end_profiling, measure_first_steps
from controlplane.simulation.world.nodes import end_drain, fail_node, repair_node
from controlplane.simulation.world.state import WorldState
from policies.contract.plan import Placement
from policies.contract.snapshot import Purpose, Running, Snapshot, Trigger

TRAINING = Purpose.TRAINING
"""Looked up once, for every running job of every round."""

ANSWERS: Mapping[type[events.Event], Callable[[WorldState, Any], None]] = {
    events.LastStep: complete,
    events.LaunchFailure: break_launch,
    events.TermEnd: end_term,
    events.WalltimeEnd: kill,
    events.StopEnd: end_stop,
    events.FirstSteps: measure_first_steps,
    events.DeadlinePassed: end_overdue,
    events.DelayEnd: end_delay,
    events.FirstStart: note_first_start,
    events.KindMeasured: end_profiling,
    events.DrainEnd: end_drain,
    events.NodeFailure: fail_node,
    events.NodeRepair: repair_node,
}
"""Function that answers each type of event."""


def answer(state: WorldState, event: events.Event) -> None:
    """Change the state by an event that is due."""
    ANSWERS[type(event)](state, event)


class SimulatedWorld:
    """World of the rounds of a simulation (`controlplane.loop.rounds.World`)."""

    def __init__(self, state: WorldState) -> None:
        self.state = state

    def snapshot(self) -> Snapshot:
        """Return the snapshot of the next round, as `controlplane.loop.live.observe` makes it."""
        state = self.state
        now_s = state.engine.now_s
        state.round_number += 1
        if state.pairs is not None:
            state.pairs.look(now_s, state.table.columns.kinds)
            state.builder.learn(state.pairs.changed)
        rows = self._rows_shown()
        running = None if state.shows_queue_only else state.running
        state.last_snapshot = state.last_snapshot.following(
            now_s=now_s,
            seed=state.scenario.seed + state.round_number,
            nodes=state.fleet.views(),
            kinds=state.builder.kinds(),
            jobs=state.builder.jobs(rows, running, state.launches, now_s),
            trigger=Trigger(tuple(dict.fromkeys(state.round_reasons))),
            memory=dict(state.memory),
        )
        state.round_reasons.clear()
        if state.first_runs is None:
            return state.last_snapshot
        return state.first_runs.with_explorers(state.last_snapshot)

    def last_plan(self) -> LastPlan | None:
        """Return the plan of the round before; a policy that fails ends the simulation."""
        return self.state.last_plan

    def apply(self, decision: Decision) -> Applied:
        """Apply the plan: stop, keep, then launch on free devices."""
        state = self.state
        plan = decision.plan

        # 1. Time passes during a decision, whose plan is applied to the later state.
        decision_s = state.switches.decides_in_s(len(state.active))
        if decision_s:
            state.engine.pass_until(state.engine.now_s + decision_s)

        # 2. Stop and keep what runs; nearly all launches are kept as they are.
        all_changes = changes(self._running_placements(), plan)
        placements: list[Placement] = []
        stopped: list[Launch] = []
        for change in all_changes:
            if isinstance(change, Keep):
                if change.placement is not None and change.changes_term:
                    keep(state, self._launch_of(change), change.placement)
                continue
            if isinstance(change, ChangeQuotas):
                change_quotas(state, self._launch_of(change), change.placement)
                continue
            if not isinstance(change, Preempt):
                placements.append(change.placement)
            if not isinstance(change, Start):
                self._count_stop(change)
                if state.shortcuts.stops_at_once:
                    stopped.append(self._launch_of(change))
                else:
                    ask_to_stop(state, self._launch_of(change))

        # 3. Stops that take no time have ended. Seeds depend on the number of the round, which
        #    would be the number of the round that follows the stops.
        for launch in stopped:
            release(state, launch, launch.steps_at(state.engine.now_s))
        if stopped:
            state.round_number += 1

        # 4. Launch on free devices.
        rejected = []
        for placement in placements:
            rejection = launch_placement(state, placement)
            if rejection is not None:
                rejected.append(rejection)

        # 5. The next round may carry out the rest of the plan.
        state.memory = plan.memory
        number = decision.carried or state.round_number
        state.last_plan = LastPlan.of(plan, number, rejected)
        return Applied(all_changes, tuple(rejected)).with_refused(decision.refused)

    def _rows_shown(self) -> tuple[int, ...]:
        """Return the rows of the jobs that the round sees."""
        state = self.state
        rules = state.start_rules
        queue: Sequence[int] = state.queue
        active: Sequence[int] = state.active
        if not rules.is_empty:
            queue = rules.within_limits(queue, state.launches, state.engine.now_s)
            active = rules.within_limits(active, state.launches, state.engine.now_s)
        rows = state.builder.rows(
            queue, active, state.round_number, shows_queue_only=state.shows_queue_only
        )
        if rules.is_empty:
            return rows
        return tuple(rules.without_blocked(rows))

    def _running_placements(self) -> dict[PlacementKey, Running]:
        """Return the launches that go on and that the policy saw."""
        state = self.state
        if state.shows_queue_only:
            return {}
        ids = state.table.columns.ids
        return {(ids[row], TRAINING, 0): state.running[row][0] for row in sorted(state.running)}

    def _launch_of(self, change: Keep | ChangeQuotas | Stop) -> Launch:
        """Return the launch that a change keeps or stops."""
        job, _, _ = key_of(change)
        return self.state.launches[self.state.table.row_of[job]]

    def _count_stop(self, change: Stop) -> None:
        """Count a stop of a job: a pre-emption, or a migration if it gets another place or size."""
        table = self.state.table
        job, _, _ = key_of(change)
        counts = table.preempted if isinstance(change, Preempt) else table.migrated
        counts[table.row_of[job]] += 1
