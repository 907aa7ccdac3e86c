"""Idle GPUs beside waiting jobs in words, from the newest round."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.db.models import OuterRef, QuerySet, Subquery

from clusters.models import Cluster
from controlplane.loop.models import Round
from jobs.models import Job
from jobs.selectors import OTHERS, seen_by, uuids
from jobs.wording.facts import time_in_words

WORDS: Mapping[str, str] = {
    "reserved": "reserved for {job}",
    "left_free": "left free by the policy for a later start of {job}",
    "power_cap": "kept idle by the power cap, which {job} would exceed",
    "too_few_gpus": "on nodes with too few free GPUs for {job}",
    "too_little": "on nodes with too few cores or too little memory for {job}",
    "measured_first": "waiting until the kind of {job} is measured",
    "unsuitable": "on nodes whose GPU type, labels or size suit no waiting job",
}
"""Words of `policies.placement.waiting.idle.IdleCode`."""

SHOWN = 4


def newest_idle(cluster: Cluster) -> tuple[int, list[Sequence[object]]]:
    """Return (waiting jobs, [cause, GPUs, job, start] of each) of the newest ended round."""
    found = newest_by_cluster(Cluster.objects.filter(pk=cluster.pk)).get(cluster.name) or {}
    return int(found.get("waiting", 0)), list(found.get("gpus", ()))


def newest_by_cluster(clusters: QuerySet[Cluster]) -> Mapping[str, Any]:
    """Return what the newest ended round of each cluster keeps of idle GPUs, in one query."""
    ended = Round.objects.filter(cluster=OuterRef("pk"), ended_at__isnull=False)
    newest = Subquery(ended.order_by("-number").values("idle")[:1])
    return dict(clusters.annotate(idle=newest).values_list("name", "idle"))


def idle_in_words(user: User, cluster: Cluster, now: datetime) -> str:
    """Return how many GPUs are idle beside waiting jobs, and why; "" if none is."""
    waiting, rows = newest_idle(cluster)
    if not rows:
        return ""
    jobs = seen_by(user, uuids(job for _, _, job, _ in rows))
    pairs = Job.objects.filter(pk__in=jobs).values_list("pk", "name")
    names = {str(pk): name for pk, name in pairs}
    total = sum(int(str(gpus)) for _, gpus, _, _ in rows)
    told = [_cause(row, names, now) for row in rows[:SHOWN]]
    if len(rows) > SHOWN:
        told.append(f"{total - sum(int(str(r[1])) for r in rows[:SHOWN])} for other reasons")
    what = f"{total} GPU{'s' * (total != 1)} idle beside {waiting} waiting job"
    return f"{what}{'s' * (waiting != 1)}: {', '.join(told)}."


def _cause(row: Sequence[object], names: Mapping[str, str], now: datetime) -> str:
    code, gpus, job, start_s = row
    words = WORDS.get(str(code), "idle").format(job=names.get(str(job), OTHERS))
    start = time_in_words(start_s, now)
    return f"{gpus} {words}{f' from {start}' if start else ''}"
