"""Work that a simulation may leave out because it provably makes no difference.

A policy that decides about the queue alone (`policies.contract.policy.queue_only`) never touches
what runs, and whether a job fits depends on what is free only. So its rounds need not see what runs
(devices held by jobs that a snapshot does not know are taken), and a round with an empty queue or
without a free device need not be held at all. That needs a cluster in which nothing else of what
runs matters: no power cap, no resources that could run out before the GPUs do, no jobs that wait
for others, no devices with room for two.

A stop that takes no time has ended when the plan that asked for it launches: nobody need be
deferred to a round that carries the plan out at the same moment. That needs rounds that take no
time and are held as soon as they are wanted.
"""

from __future__ import annotations

from collections.abc import Iterable

from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.switches import Switches
from policies.contract.policy import Policy, queue_only
from policies.contract.snapshot import JobColumns, NodeView


def may_hide_running(
    scenario: Scenario, columns: JobColumns, policy: Policy, switches: Switches
) -> bool:
    """Return True if showing this policy the queue alone changes nothing but time."""
    if not queue_only(policy) or scenario.power_cap_w is not None or scenario.power_caps:
        return False
    if any(d.slots > 1 for n in scenario.nodes for d in n.devices):
        return False
    if switches.decision_s or switches.decision_per_job_s or any(columns.others["dependencies"]):
        return False
    return not any(columns.others["resources"]) and _is_roomy(scenario.nodes, columns)


def stops_at_once(scenario: Scenario, switches: Switches) -> bool:
    """Return True if what a plan stops has ended before it launches."""
    return not (
        scenario.stop_s or scenario.gather_s or switches.decision_s or switches.decision_per_job_s
    )


def _is_roomy(nodes: Iterable[NodeView], columns: JobColumns) -> bool:
    """True if cores and memory suffice for the hungriest jobs on every GPU."""
    if not len(columns.ids):
        return True
    units = columns.counts["units"].clip(min=1)
    cores = float((columns.numbers["cores"] * units).max())
    memory_gb = float((columns.numbers["memory_gb"] * units).max())
    gpus = [(len(node.devices), node) for node in nodes]
    return all(n * cores <= node.cores and n * memory_gb <= node.memory_gb for n, node in gpus)
