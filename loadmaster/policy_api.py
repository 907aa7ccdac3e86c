"""Contracts for policies of third parties: a frozen dataclass, called with a Snapshot for a Plan.

Name it in an entry point of the group `loadmaster.policies`; `validate_plan` checks its plans.
"""

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
    "PLAN_VERSION", "SNAPSHOT_VERSION", "DeviceView", "GpuTypeView", "JobColumns", "JobPhase",
    "JobView", "Jobs", "KindView", "NodeRole", "NodeState", "NodeView", "PairThroughput",
    "Placement", "Plan", "PlanStatus", "Policy", "PolicyError", "PolicyParameterError",
    "PowerCapStep", "PriceInterval", "ProfileRequest", "Purpose", "RankPlacement",
    "ResourceUse", "Running", "SlotHold", "Snapshot", "SolverFailedError", "Source",
    "TeamOrder", "TeamView", "Throughput", "Trigger", "UnknownPolicyError", "Violation",
    "WaitCode", "Waiting", "parameter", "validate_plan",
]  # fmt: skip  # a long list of names
