"""Changes of clusters by operators."""

import json
from collections.abc import Mapping
from typing import Any

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.db import transaction

from clusters.events import request_reschedule
from clusters.models import Cluster, Reason


def cluster_change(cluster: Cluster, by: User, values: Mapping[str, Any]) -> list[str]:
    """Set these checked fields, ask for a round, and note it in the cluster's history.

    Only the given columns are written: the row also holds the lock of a round that may be running.
    """
    fields = [
        f"{name} from {getattr(cluster, name)} to {value}"
        for name, value in values.items()
        if getattr(cluster, name) != value
    ]
    if fields:
        with transaction.atomic():
            Cluster.objects.filter(pk=cluster.pk).update(**values)
            LogEntry.objects.create(
                user=by,
                content_type=ContentType.objects.get_for_model(Cluster),
                object_id=str(cluster.pk),
                object_repr=str(cluster)[:200],
                action_flag=CHANGE,
                change_message=json.dumps([{"changed": {"fields": fields}}]),
            )
            request_reschedule(cluster, Reason.OPERATOR)
    return fields
