"""Filters of the list of jobs."""

from __future__ import annotations

import django_filters
from django.db.models import Q, QuerySet

from jobs.lifecycle import ACTIVE, JobState
from jobs.models import Job
from jobs.selectors import id_begins

STATES = [(str(s), str(s)) for s in JobState]


class JobFilter(django_filters.FilterSet):  # type: ignore[misc]  # the library has no types
    """?state=queued&state=running&team=&cluster=&mine=true&active=true&search="""

    state = django_filters.MultipleChoiceFilter(choices=STATES, distinct=False)
    team = django_filters.CharFilter(field_name="team__name")
    cluster = django_filters.CharFilter(field_name="cluster__name")
    mine = django_filters.BooleanFilter(method="of_mine", label="Only jobs the caller submitted")
    active = django_filters.BooleanFilter(
        method="of_active", label="Only jobs that are not over (false: only those that are)"
    )
    search = django_filters.CharFilter(
        method="of_search", label="Part of the name or of the kind's name, or the id's beginning"
    )

    class Meta:
        model = Job
        fields: list[str] = []

    def of_mine(self, jobs: QuerySet[Job], name: str, value: bool) -> QuerySet[Job]:
        """Those the caller submitted, or the others."""
        own = Q(user=self.request.user.pk)
        return jobs.filter(own if value else ~own)

    def of_active(self, jobs: QuerySet[Job], name: str, value: bool) -> QuerySet[Job]:
        """Those that are not over, or those that are."""
        active = Q(state__in=sorted(str(s) for s in ACTIVE))
        return jobs.filter(active if value else ~active)

    def of_search(self, jobs: QuerySet[Job], name: str, value: str) -> QuerySet[Job]:
        """Those whose name or kind holds the text, or whose id begins with it."""
        return jobs.filter(
            Q(name__icontains=value) | Q(kind__name__icontains=value) | id_begins(value)
        )
