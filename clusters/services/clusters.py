"""Changes of clusters by operators."""

from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from clusters.events import request_reschedule
from clusters.models import Cluster, Reason
from controlplane.audit.record import record_values
from controlplane.web.operators import changed, note_change


def cluster_change(cluster: Cluster, by: User, values: Mapping[str, Any]) -> list[str]:
    """Set fields to these valid values, note the change in the history, and ask for a round.

    Return the names of the fields that changed. Only the given columns are written: the row also
    holds the lock of a round that may be running.
    """
    changed_fields = changed(cluster, values)
    if changed_fields:
        old_values = {name: getattr(cluster, name) for name in values}
        with transaction.atomic():
            record_values("cluster.change", cluster, values, old_values, by=by)
            Cluster.objects.filter(pk=cluster.pk).update(**values)
            note_change(cluster, by, changed_fields)
            request_reschedule(cluster, Reason.OPERATOR)
    return changed_fields
