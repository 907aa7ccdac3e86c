"""Shortcuts of a simulation that provably make no difference.

A policy that decides about the queue alone (`policies.contract.policy.queue_only`) depends on free
capacity only, so its rounds need not see running jobs, and rounds with an empty queue or no free
device are left out. That needs a cluster without power cap, scarce resources, limits of teams,
dependencies and other rules of a workload, deadlines, shared devices, batch jobs or jobs without
GPUs.

A policy that keeps all started jobs (`keeps_started`) changes nothing while none waits: such rounds
are left out, but for drains and where caps, gathered rounds or the time to decide could matter.

A stop that takes no time has ended when its plan launches, so nothing is deferred. That needs
rounds that take no time and are held at once.
"""

from collections.abc import Iterable

import numpy as np

from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.switches import Switches
from controlplane.simulation.workloads.rules import NO_RULES, Rules
from policies.contract.plan import available, demanded
from policies.contract.policy import Policy, keeps_started, queue_only
from policies.contract.snapshot import JobColumns, NodeView


def may_hide_running(
    scenario: Scenario,
    columns: JobColumns,
    policy: Policy,
    switches: Switches,
    rules: Rules = NO_RULES,
) -> bool:
    """Return True if showing this policy the queue alone changes nothing but time."""
    if not queue_only(policy) or scenario.power_cap_w is not None or scenario.power_caps:
        return False
    if any(team.max_gpus is not None for team in scenario.teams):
        return False
    if any(d.slots > 1 for n in scenario.nodes for d in n.devices):
        return False
    if switches.takes_time or rules != NO_RULES or any(columns.others["dependencies"]):
        return False
    if bool(np.isfinite(columns.numbers["deadline_s"]).any()):
        return False
    if any(columns.others["batch"]) or not columns.counts["gpus_min"].all():
        return False
    return not any(columns.others["resources"]) and _is_roomy(scenario.nodes, columns)


def may_skip_empty(scenario: Scenario, policy: Policy, switches: Switches) -> bool:
    """Return True if rounds without a waiting job change nothing but time."""
    if not keeps_started(policy) or scenario.power_cap_w is not None or scenario.power_caps:
        return False
    return not (scenario.gather_s or switches.decision_s or switches.decision_per_job_s)


def stops_at_once(scenario: Scenario, switches: Switches) -> bool:
    """Return True if what a plan stops has ended before it launches."""
    return not (scenario.stop_s or scenario.gather_s or switches.takes_time)


def _is_roomy(nodes: Iterable[NodeView], columns: JobColumns) -> bool:
    if not len(columns.ids):
        return True
    cores = demanded(float(columns.numbers["cores"].max()))
    memory_gb = demanded(float(columns.numbers["memory_gb"].max()))
    has = [(len(n.devices), available(n.cores), available(n.memory_gb)) for n in nodes]
    return all(gpus * cores <= most and gpus * memory_gb <= most_gb for gpus, most, most_gb in has)
