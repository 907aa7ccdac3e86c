"""Rounds as REST shows them to people."""

from __future__ import annotations

from rest_framework import serializers

from controlplane.loop.models import Round


class RoundSerializer(serializers.ModelSerializer[Round]):
    """A round in a list."""

    cluster = serializers.CharField(source="cluster.name")

    class Meta:
        model = Round
        fields = [
            "id", "cluster", "number", "status", "reasons", "policy", "parameters", "seed",
            "plan_status", "objective", "bound",
            "cost_rate_per_h", "message", "carried", "started_at", "ended_at", "snapshot_s",
            "solve_s", "apply_s",
        ]  # fmt: skip


class RoundDetailSerializer(RoundSerializer):
    """A round with its snapshot and plan, which name every team's jobs: for operators."""

    class Meta(RoundSerializer.Meta):
        fields = [
            *RoundSerializer.Meta.fields,
            "snapshot_sha256",
            "plan_sha256",
            "changes",
            "rejected",
            "snapshot",
            "plan",
        ]
