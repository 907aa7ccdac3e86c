"""Clusters, their nodes and GPUs, what energy costs there, and the changes that ask for a round."""

from clusters.models.clusters import Cluster, GpuType
from clusters.models.energy import EnergyTariff, PueRecord, TariffBand
from clusters.models.nodes import Device, EnrolmentToken, Node, NodeEvent, Reason, RescheduleEvent

__all__ = [
    "Cluster", "Device", "EnergyTariff", "EnrolmentToken", "GpuType", "Node", "NodeEvent",
    "PueRecord", "Reason", "RescheduleEvent", "TariffBand",
]  # fmt: skip
