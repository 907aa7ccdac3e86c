"""Clusters, nodes, GPUs, energy prices, and rescheduling events."""

from clusters.models.clusters import Cluster, GpuType
from clusters.models.energy import EnergyTariff, PueRecord, TariffBand, TariffStep
from clusters.models.nodes import (
    Device,
    EnrolmentToken,
    ImplausibleFigure,
    Node,
    NodeEvent,
    Reason,
    RescheduleEvent,
)

__all__ = [
    "Cluster",
    "Device",
    "EnergyTariff",
    "EnrolmentToken",
    "GpuType",
    "ImplausibleFigure",
    "Node",
    "NodeEvent",
    "PueRecord",
    "Reason",
    "RescheduleEvent",
    "TariffBand",
    "TariffStep",
]
