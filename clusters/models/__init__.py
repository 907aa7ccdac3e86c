"""Clusters, their nodes and GPUs, what energy costs there, and what is assigned to them."""

from clusters.models.assignments import (
    Assignment,
    AssignmentEvent,
    AssignmentSlot,
    LogChunk,
    ProgressPoint,
    UsagePoint,
)
from clusters.models.clusters import Cluster, GpuType
from clusters.models.energy import EnergyEntry, EnergyTariff, PueRecord, TariffBand
from clusters.models.nodes import Device, EnrolmentToken, Node, NodeEvent

__all__ = [
    "Assignment",
    "AssignmentEvent",
    "AssignmentSlot",
    "Cluster",
    "Device",
    "EnergyEntry",
    "EnergyTariff",
    "EnrolmentToken",
    "GpuType",
    "LogChunk",
    "Node",
    "NodeEvent",
    "ProgressPoint",
    "PueRecord",
    "TariffBand",
    "UsagePoint",
]
