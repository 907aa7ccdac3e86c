"""Entries of the energy ledger."""

from decimal import Decimal

from django.db import models


class EnergyEntry(models.Model):
    """Energy of an assignment in one hour, and its cost.

    IT energy is the sum of `measured_kwh` and `modelled_kwh` of its GPUs, and of `rest_kwh`, its
    part of the rest of the node. The predicted figures are None without a prediction.
    """

    assignment = models.ForeignKey(
        "jobs.Assignment",
        on_delete=models.CASCADE,
        related_name="energy_entries",
        db_index=False,
    )
    hour = models.DateTimeField()
    cluster = models.ForeignKey(
        "clusters.Cluster", on_delete=models.CASCADE, related_name="+", db_index=False
    )
    node = models.ForeignKey("clusters.Node", on_delete=models.CASCADE, related_name="+")
    job = models.ForeignKey("jobs.Job", on_delete=models.CASCADE, related_name="+")
    team = models.ForeignKey(
        "jobs.Team", on_delete=models.CASCADE, related_name="+", db_index=False
    )
    purpose = models.CharField(max_length=10)
    gpu_s = models.FloatField(
        default=0.0, help_text="Seconds times GPUs held, a shared GPU by its share"
    )
    measured_kwh = models.FloatField(default=0.0)
    modelled_kwh = models.FloatField(default=0.0)
    rest_kwh = models.FloatField(default=0.0)
    facility_kwh = models.FloatField(default=0.0)
    emissions_g = models.FloatField(default=0.0)
    predicted_kwh = models.FloatField(null=True)
    cost = models.DecimalField(max_digits=16, decimal_places=8, default=Decimal(0))
    measured_cost = models.DecimalField(max_digits=16, decimal_places=8, default=Decimal(0))
    predicted_cost = models.DecimalField(max_digits=16, decimal_places=8, null=True)

    class Meta:
        verbose_name_plural = "energy entries"
        constraints = [
            models.UniqueConstraint(fields=["assignment", "hour"], name="energy_entry_once_an_hour")
        ]
        indexes = [
            models.Index(fields=["cluster", "hour"]),
            models.Index(fields=["team", "hour"]),
            # The most expensive jobs of a time are read from this index alone.
            models.Index(fields=["cluster", "job", "hour", "cost"], name="energy_by_job"),
        ]
        ordering = ["hour"]
        default_permissions = ()
        permissions = [("see_all_costs", "May see the energy and cost of every team")]

    def __str__(self) -> str:
        return f"{self.assignment_id} at {self.hour:%Y-%m-%d %H:%M}"
