"""REST of energy and cost."""

from typing import Any, cast

from django.contrib.auth.models import User
from django.shortcuts import get_object_or_404
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from clusters.models import Cluster
from controlplane.accounting.costs import CostRow, Costs
from controlplane.accounting.query import BY, PERIODS, CostQueryError, fields_of, read_query
from controlplane.web.rest.strict import StrictView

MOST_ROWS = 1000
"""Most groups in one answer."""


class MoneyField(serializers.DecimalField):
    """An amount in the cluster's currency, as text."""

    def __init__(self, **options: Any) -> None:
        super().__init__(max_digits=24, decimal_places=8, **options)


class CostRowSerializer(serializers.Serializer[CostRow]):
    """A sum; kWh are IT energy except `facility_kwh`, and costs are in the cluster's currency."""

    name = serializers.CharField()
    at = serializers.DateTimeField(allow_null=True, help_text="The start of the hour or day")
    job_id = serializers.CharField(allow_blank=True)
    team = serializers.CharField(allow_blank=True)
    user = serializers.CharField(allow_blank=True)
    gpu_h = serializers.FloatField()
    kwh = serializers.FloatField()
    measured_kwh = serializers.FloatField(help_text="Of the GPUs, by their meters")
    modelled_kwh = serializers.FloatField(help_text="Of the GPUs, by their type's watts")
    rest_kwh = serializers.FloatField(help_text="Of the rest of the nodes, always modelled")
    facility_kwh = serializers.FloatField(help_text="IT energy times PUE")
    emissions_kg = serializers.FloatField()
    cost = MoneyField()
    measured_cost = MoneyField()
    predicted_kwh = serializers.FloatField(allow_null=True)
    predicted_cost = MoneyField(allow_null=True)
    compared_cost = MoneyField(help_text="The billed cost of what was predicted")
    profiling_kwh = serializers.FloatField(help_text="The part of dedicated profile runs")
    profiling_cost = MoneyField(help_text="The part of dedicated profile runs")


class CostsSerializer(serializers.Serializer[Any]):
    """Sums by group, from the dearest down (hours and days in their order), and the total."""

    cluster = serializers.CharField()
    currency = serializers.CharField()
    timezone = serializers.CharField()
    since = serializers.DateTimeField()
    until = serializers.DateTimeField()
    by = serializers.ChoiceField(choices=list(BY))
    rows = CostRowSerializer(many=True)
    more = serializers.BooleanField(
        help_text="There are more groups: ask for a shorter time, or for the CSV"
    )
    total = CostRowSerializer()


class CostsView(StrictView):
    """Energy and cost. Operators see every team's, others their own teams'."""

    @extend_schema(
        operation_id="costs",
        parameters=[
            OpenApiParameter(
                "cluster",
                str,
                description="The cluster's name; may be left out where there is one only",
            ),
            OpenApiParameter("by", str, enum=list(BY), description="What to sum up by (team)"),
            OpenApiParameter("period", str, enum=list(PERIODS), description="A named time (7d)"),
            OpenApiParameter(
                "from", str, description="Instead of a period: the first day, or a time of ISO 8601"
            ),
            OpenApiParameter(
                "to", str, description="The last day, or a time of ISO 8601; now where left out"
            ),
        ],
        responses=CostsSerializer,
    )
    def get(self, request: Request) -> Response:
        """Sum up the energy and cost of a time by hour, day, node, team or job."""
        # 1. The query.
        fields = fields_of(request.query_params)
        cluster = _cluster(fields["cluster"])
        try:
            query = read_query(cluster, fields, timezone.now())
        except CostQueryError as error:
            raise ValidationError({error.field: [str(error)]}) from error

        # 2. Its sums. One row more than is answered tells if there are more.
        costs = Costs(cast(User, request.user), query)
        rows = costs.rows[: MOST_ROWS + 1]
        body = {
            "cluster": cluster.name,
            "currency": cluster.currency,
            "timezone": cluster.timezone,
            "since": query.since,
            "until": query.until,
            "by": query.by,
            "rows": rows[:MOST_ROWS],
            "more": len(rows) > MOST_ROWS,
            "total": costs.total,
        }
        return Response(CostsSerializer(body).data)


def _cluster(name: str) -> Cluster:
    """Return the cluster of this name; the only one if the name is empty.

    Raises Http404, and ValidationError if the name is empty and there are several clusters.
    """
    if name:
        return get_object_or_404(Cluster, name=name)
    clusters = list(Cluster.objects.all()[:2])
    if len(clusters) != 1:
        raise ValidationError({"cluster": ["is missing: say which cluster's costs, by its name"]})
    return clusters[0]
