"""The REST form of kinds."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from policies.contract.snapshot import Source
from profiling.pages.rows import KindRow, ProfileRow, RunRow


class ProfileSerializer(serializers.Serializer[ProfileRow]):
    """One number of a kind."""

    gpu_type = serializers.CharField()
    gpus = serializers.IntegerField()
    spread = serializers.BooleanField(help_text="Over several nodes")
    steps_per_s = serializers.FloatField()
    samples = serializers.IntegerField(help_text="Measurements it rests on")
    age_s = serializers.FloatField(
        help_text=(
            "Seconds since the newest measurement; for an estimate, of the oldest it is made of"
        )
    )
    estimated_steps_per_s = serializers.FloatField(
        allow_null=True, help_text="What would be estimated from the kind's other numbers"
    )
    error = serializers.FloatField(allow_null=True, help_text="Relative error of that estimate")

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """With `source`, which as an attribute would hide the one that every field has."""
        return {
            **super().get_fields(),
            "source": serializers.ChoiceField(choices=[str(s) for s in Source]),
        }


class RunSerializer(serializers.Serializer[RunRow]):
    """A measurement wanted, under way or given up."""

    gpu_type = serializers.CharField()
    gpus = serializers.IntegerField()
    state = serializers.ChoiceField(choices=["wanted", "running", "given_up"])
    failures = serializers.IntegerField()
    reason = serializers.CharField(help_text="Empty where it comes from a job of another team")


class KindSerializer(serializers.Serializer[KindRow]):
    """A kind: what determines a job's speed."""

    id = serializers.IntegerField()
    name = serializers.CharField()
    digest = serializers.CharField()
    setup_s = serializers.FloatField(allow_null=True, help_text="Seconds from launch to first step")
    jobs = serializers.IntegerField(help_text="Jobs of it that you may see")
    active_jobs = serializers.IntegerField()
    profiles = ProfileSerializer(many=True)
    runs = RunSerializer(many=True)
    error = serializers.FloatField(
        allow_null=True, help_text="Median relative error of leave-one-out estimates"
    )
