"""Shortcuts of a simulation that provably make no difference but in time.

`hides_running`: a policy that decides about the queue alone (`queue_only`) depends on free capacity
only, so its rounds need not see running jobs, and rounds with an empty queue or no free device are
left out. That needs a cluster without power cap, scarce resources, limits of teams, dependencies
and other rules of a workload, deadlines, shared devices, batch jobs or jobs without GPUs. It stays
because without it FIFO's 1,000 rounds on 100 nodes take four to five times as long (0.26 s, goal
0.5 s), and the gathered rounds of a year's part about three times (the year: 83 s, goal 120 s).

`skips_empty`: a policy that keeps all started jobs (`keeps_started`) changes nothing while none
waits. Such rounds are left out, but for drains and where caps, gathered rounds or the time to
decide could matter.

`stops_at_once`: a stop that takes no time has ended when its plan launches, so nothing is deferred.
That needs rounds that take no time and are held at once.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.switches import Switches
from controlplane.simulation.workloads.rules import NO_RULES, Rules
from policies.contract.plan import available, demanded
from policies.contract.policy import Policy, keeps_started, queue_only
from policies.contract.snapshot import JobColumns, NodeView


@dataclass(frozen=True, slots=True)
class Shortcuts:
    """Shortcuts that a simulation takes."""

    hides_running: bool = False
    skips_empty: bool = False
    stops_at_once: bool = False


def shortcuts_of(
    scenario: Scenario, columns: JobColumns, policy: Policy, switches: Switches, rules: Rules
) -> Shortcuts:
    """Return all shortcuts that change nothing in this simulation."""
    return Shortcuts(
        hides_running=may_hide_running(scenario, columns, policy, switches, rules),
        skips_empty=may_skip_empty(scenario, policy, switches),
        stops_at_once=stops_at_once(scenario, switches),
    )


def may_hide_running(
    scenario: Scenario,
    columns: JobColumns,
    policy: Policy,
    switches: Switches,
    rules: Rules = NO_RULES,
) -> bool:
    """Return True if showing this policy the queue alone changes nothing but time."""
    # 1. The policy must not look at running jobs, and its plans apply to the state it has seen.
    if not queue_only(policy) or switches.takes_time:
        return False

    # 2. Running jobs must not limit waiting ones but by the devices that they hold whole.
    if scenario.power_cap_w is not None or scenario.power_caps:
        return False
    if any(team.max_gpus is not None for team in scenario.teams):
        return False
    if any(device.slots > 1 for node in scenario.nodes for device in node.devices):
        return False
    if any(columns.others["resources"]) or not _is_roomy(scenario.nodes, columns):
        return False

    # 3. Every job must need a device, and be free to start whenever there is one.
    if any(columns.others["batch"]) or not columns.counts["gpus_min"].all():
        return False
    if rules != NO_RULES or any(columns.others["dependencies"]):
        return False
    return not np.isfinite(columns.numbers["deadline_s"]).any()


def may_skip_empty(scenario: Scenario, policy: Policy, switches: Switches) -> bool:
    """Return True if rounds without a waiting job change nothing but time."""
    if not keeps_started(policy) or scenario.power_cap_w is not None or scenario.power_caps:
        return False
    takes_time = switches.decision_s or switches.decision_per_job_s
    return not (scenario.gather_s or takes_time)


def stops_at_once(scenario: Scenario, switches: Switches) -> bool:
    """Return True if what a plan stops has ended before it launches."""
    return not (scenario.stop_s or scenario.gather_s or switches.takes_time)


def _is_roomy(nodes: Iterable[NodeView], columns: JobColumns) -> bool:
    """Return True if no node runs out of cores or memory before its devices are all held."""
    if not len(columns.ids):
        return True
    cores = demanded(float(columns.numbers["cores"].max()))
    memory_gb = demanded(float(columns.numbers["memory_gb"].max()))
    for node in nodes:
        gpus = len(node.devices)
        if gpus * cores > available(node.cores) or gpus * memory_gb > available(node.memory_gb):
            return False
    return True
