"""Clusters and GPU types."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any
from zoneinfo import available_timezones

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from clusters.caps import CapHoursError, read_cap_hours
from policies.contract.policy import PolicyError, PolicyParameterError
from policies.host import registry

LONGEST_AHEAD_S = 31 * 86_400.0
"""Longest period and horizon: rounds read the prices of every hour until then."""

LONGEST_SILENCE_S = 86_400.0
"""Longest lease, grace and margin, after which a silent node's jobs start elsewhere."""


def check_time_zone(name: str) -> None:
    """Raise ValidationError for a name that is no IANA time zone."""
    if name not in available_timezones():
        raise ValidationError(f"{name!r} is no IANA time zone; write one such as Europe/Rome")


def check_power_cap_hours(entries: object) -> None:
    """Raise ValidationError for invalid caps by hour."""
    try:
        read_cap_hours(entries)
    except CapHoursError as error:
        raise ValidationError(str(error)) from None


def check_policy(policy: str, parameters: object) -> None:
    """Raise ValidationError, by the cluster's field, for an unknown policy or wrong parameters."""
    if not isinstance(parameters, dict):
        problem = 'must be an object such as {"iterations": 1000}'
        raise ValidationError({"policy_parameters": problem})
    try:
        registry.check(policy, parameters)
    except PolicyParameterError as error:
        raise ValidationError({"policy_parameters": str(error)}) from None
    except PolicyError as error:
        raise ValidationError({"policy": str(error)}) from None


def check_lease(lease_s: float, heartbeat_s: float) -> None:
    """Raise ValidationError, by the cluster's field, unless a lease outlasts a lost heartbeat."""
    if lease_s < 2 * heartbeat_s:
        problem = f"must be at least two heartbeats ({2 * heartbeat_s:g} s)"
        raise ValidationError({"lease_s": problem})


class Profiling(models.TextChoices):
    """How the speed of a new kind is measured."""

    FIRST_RUN = "first_run", "first run: the first real run is the measurement"
    DEDICATED = "dedicated", "dedicated: repeatable jobs are run for some steps beforehand"
    OFF = "off", "off: speeds are declared or estimated"


class Predictor(models.TextChoices):
    """Predictor of the run times of batch jobs (`profiling.run_times.predictors`)."""

    WALLTIME = "walltime", "walltime: what the user gave"
    LAST_TWO = "last_two", "last two: mean of the user's last two run times"
    DATA_DRIVEN = "data_driven", "data driven: median of the most similar jobs before"


BROKEN_AFTER = 3
"""Rounds in a row with a fault after which a policy is named as broken."""

LONGEST_FAULT = 1000
"""Longest text of a policy's fault that a cluster keeps."""


def policy_fault(previous: Mapping[str, Any], policy: str, detail: str) -> dict[str, Any]:
    """Return the value of a cluster's field `policy_fault` after a round.

    `previous`: its value before the round, perhaps of another policy. `detail`: the fault of the
    round; "" if it had none.
    """
    if not detail:
        return {}
    rounds = 1
    if previous.get("policy") == policy:
        rounds += previous.get("rounds", 0)
    return {"policy": policy, "rounds": rounds, "detail": detail[:LONGEST_FAULT]}


class Cluster(models.Model):
    """Nodes scheduled together, with one currency, one time zone and one policy.

    `round_number`, `round_owner` and `round_expires_at` are the lock by which one round runs at a
    time: it is taken by compare-and-swap, and expires. A plan is applied only if its round's number
    is still the current one.
    """

    # What it is.
    name = models.SlugField(unique=True, max_length=63)
    timezone = models.CharField(max_length=63, default="UTC", validators=[check_time_zone])
    currency = models.CharField(
        max_length=3, default="EUR", help_text="ISO 4217 code; every price of this cluster is in it"
    )

    # How it is scheduled.
    policy = models.CharField(max_length=100, default=registry.DEFAULT)
    policy_parameters = models.JSONField(default=dict, blank=True)
    seed = models.PositiveIntegerField(default=1)
    period_s = models.FloatField(
        default=300.0,
        validators=[MinValueValidator(1.0), MaxValueValidator(LONGEST_AHEAD_S)],
        help_text="Seconds between periodic rounds (H)",
    )

    # Limits and costs that decisions weigh.
    power_cap_w = models.FloatField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1.0)],
        help_text="IT watts of all work together",
    )
    power_cap_hours = models.JSONField(
        default=list,
        blank=True,
        validators=[check_power_cap_hours],
        help_text=(
            'Lower caps for some hours, such as [{"power_cap_w": 2000, "from": "08:00", "to":'
            ' "20:00", "days": "01234"}]'
        ),
    )
    emissions_cost_per_kg = models.DecimalField(
        max_digits=12,
        decimal_places=6,
        default=Decimal(0),
        validators=[MinValueValidator(Decimal(0))],
        help_text=(
            "What decisions weigh a kilogram of CO2 at, in the cluster's currency; bills are"
            " without it"
        ),
    )
    horizon_s = models.FloatField(
        default=86_400.0,
        validators=[MinValueValidator(60.0), MaxValueValidator(LONGEST_AHEAD_S)],
    )
    restart_cost_s = models.FloatField(
        default=10.0,
        validators=[MinValueValidator(0.0), MaxValueValidator(LONGEST_AHEAD_S)],
        help_text="Seconds lost by a checkpoint-restart",
    )
    min_run_factor = models.FloatField(
        default=10.0,
        validators=[MinValueValidator(0.0), MaxValueValidator(1000.0)],
        help_text=(
            "A launch runs at least so many times its kind's restart cost before it is stopped;"
            " 0: no least time"
        ),
    )
    value_of_time = models.DecimalField(
        max_digits=12,
        decimal_places=6,
        default=Decimal("0.01"),
        validators=[MinValueValidator(Decimal(0)), MaxValueValidator(Decimal(10_000))],
        help_text=(
            "What an hour of a job's waiting is worth, in the cluster's currency; 0: only energy"
            " and lateness count"
        ),
    )

    # How the speeds of kinds and the run times of batch jobs become known.
    profiling = models.CharField(
        max_length=10,
        choices=Profiling.choices,
        default=Profiling.FIRST_RUN,
        help_text="How the speed of a new kind is measured, unless the job says otherwise",
    )
    profile_silence_s = models.FloatField(
        default=60.0,
        validators=[MinValueValidator(1.0), MaxValueValidator(86_400.0)],
        help_text="A profile run without a step after so many seconds ends",
    )
    profiling_steps = models.PositiveIntegerField(
        default=20, validators=[MinValueValidator(3)], help_text="Steps of one profile run"
    )
    predictor = models.CharField(
        max_length=20,
        choices=Predictor.choices,
        default=Predictor.DATA_DRIVEN,
        help_text="From what the run times of batch jobs are expected; it ends none",
    )

    # How agents and server notice that they have lost each other, and how jobs stop.
    heartbeat_s = models.FloatField(
        default=10.0, validators=[MinValueValidator(0.1), MaxValueValidator(600)]
    )
    lease_s = models.FloatField(
        default=60.0, validators=[MinValueValidator(0.5), MaxValueValidator(LONGEST_SILENCE_S)]
    )
    grace_s = models.FloatField(
        default=30.0, validators=[MinValueValidator(0.0), MaxValueValidator(LONGEST_SILENCE_S)]
    )
    margin_s = models.FloatField(
        default=10.0, validators=[MinValueValidator(0.0), MaxValueValidator(LONGEST_SILENCE_S)]
    )

    # What is kept of a launch's output.
    log_head_mb = models.FloatField(
        default=2.0,
        db_default=2.0,
        validators=[MinValueValidator(0.0), MaxValueValidator(1000.0)],
        help_text="Begin of a launch's long output that is kept",
    )
    log_tail_mb = models.FloatField(
        default=18.0,
        db_default=18.0,
        validators=[MinValueValidator(1.0), MaxValueValidator(1000.0)],
        help_text="End of a launch's long output that is kept",
    )

    # What rounds write: the policy's memory and fault, and their lock.
    memory = models.JSONField(
        default=dict, blank=True, help_text="What the policy asked to keep between rounds"
    )
    policy_fault = models.JSONField(
        default=dict,
        blank=True,
        help_text="Last fault of the policy, and the rounds in a row that had one",
    )
    round_number = models.PositiveBigIntegerField(default=0)
    round_owner = models.CharField(max_length=64, blank=True, default="")
    round_expires_at = models.DateTimeField(null=True, blank=True)
    last_round_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.name

    @property
    def broken_policy(self) -> str:
        """Sentence that names the policy as broken and its last fault; "" if it is not."""
        fault = self.policy_fault
        is_of_this_policy = fault.get("policy") == self.policy
        if not is_of_this_policy or fault.get("rounds", 0) < BROKEN_AFTER:
            return ""
        broken = f"Policy {self.policy} failed or broke a rule in the last {fault['rounds']} rounds"
        return f"{broken}: {fault['detail']}"

    @property
    def log_ends(self) -> tuple[int, int]:
        """Bytes that are kept of a long output: at its beginning, and at its end."""
        return int(1e6 * self.log_head_mb), int(1e6 * self.log_tail_mb)

    def clean(self) -> None:
        """Reject a lease shorter than the heartbeats that renew it."""
        check_lease(self.lease_s, self.heartbeat_s)


class GpuType(models.Model):
    """GPU model, with the watts of one idle GPU and of one at work (see `clusters.energy`)."""

    name = models.CharField(max_length=63, unique=True)
    tflops = models.FloatField(
        validators=[MinValueValidator(0.01)], help_text="Peak TFLOP/s, used for estimates"
    )
    memory_gb = models.FloatField(validators=[MinValueValidator(0.1)])
    idle_w = models.FloatField(
        validators=[MinValueValidator(0.0)], help_text="Watts of one idle GPU"
    )
    peak_w = models.FloatField(
        validators=[MinValueValidator(0.0)], help_text="Watts of one GPU at work"
    )
    price_per_hour = models.DecimalField(
        max_digits=12,
        decimal_places=6,
        default=Decimal(0),
        validators=[MinValueValidator(Decimal(0))],
        help_text=(
            "What an hour of one GPU in use costs (in its clusters' currency), for policies that go"
            " by prices; 0: not known"
        ),
    )
    emulated = models.BooleanField(default=False, help_text="A pacing clock in place of hardware")

    class Meta:
        verbose_name = "GPU type"
        ordering = ["name"]

    def __str__(self) -> str:
        return f"{self.name} (emulated)" if self.emulated else self.name

    def clean(self) -> None:
        """Reject a GPU that draws less at work than idle."""
        if self.peak_w < self.idle_w:
            raise ValidationError({"peak_w": f"must be at least the idle watts ({self.idle_w})"})
