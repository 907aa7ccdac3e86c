"""What a policy of a third party is built on. Import the contracts from here, never from the
package that happens to hold them.

A policy is a frozen dataclass whose fields are its parameters (`parameter`), called with a
`Snapshot`, returning a `Plan`; name it in an entry point of the group `loadmaster.policies`.
`validate_plan` is the check that every plan must pass.
"""

from __future__ import annotations

from policies.contract.plan import PLAN_VERSION, Placement, Plan, PlanStatus, WaitCode, Waiting
from policies.contract.policy import (
    Policy,
    PolicyError,
    PolicyParameterError,
    SolverFailedError,
    UnknownPolicyError,
    parameter,
)
from policies.contract.snapshot import (
    SNAPSHOT_VERSION,
    DeviceView,
    GpuTypeView,
    JobColumns,
    JobPhase,
    Jobs,
    JobView,
    KindView,
    NodeRole,
    NodeState,
    NodeView,
    PairThroughput,
    PowerCapStep,
    PriceInterval,
    ProfileRequest,
    Purpose,
    RankPlacement,
    ResourceUse,
    Running,
    SlotHold,
    Snapshot,
    Source,
    TeamOrder,
    TeamView,
    Throughput,
    Trigger,
)
from policies.contract.validation import Violation, validate_plan

__all__ = [
    "PLAN_VERSION",
    "SNAPSHOT_VERSION",
    "DeviceView",
    "GpuTypeView",
    "JobColumns",
    "JobPhase",
    "JobView",
    "Jobs",
    "KindView",
    "NodeRole",
    "NodeState",
    "NodeView",
    "PairThroughput",
    "Placement",
    "Plan",
    "PlanStatus",
    "Policy",
    "PolicyError",
    "PolicyParameterError",
    "PowerCapStep",
    "PriceInterval",
    "ProfileRequest",
    "Purpose",
    "RankPlacement",
    "ResourceUse",
    "Running",
    "SlotHold",
    "Snapshot",
    "SolverFailedError",
    "Source",
    "TeamOrder",
    "TeamView",
    "Throughput",
    "Trigger",
    "UnknownPolicyError",
    "Violation",
    "WaitCode",
    "Waiting",
    "parameter",
    "validate_plan",
]
