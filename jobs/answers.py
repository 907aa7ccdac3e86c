"""What submissions are answered with, many at once in a constant number of queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import prefetch_related_objects

from jobs.intake import Answer, Submission
from jobs.serializers import SubmissionSerializer
from jobs.validation import JobInvalid


def bodies(submissions: Sequence[Submission]) -> list[dict[str, Any]]:
    """The answers to jobs that were made just now, from the jobs at hand: they are nowhere yet and wait for the next decision."""
    jobs = [s.job for s in submissions]
    prefetch_related_objects(jobs, "dependencies")
    serializer = SubmissionSerializer(jobs, many=True, context={"warnings_of": {s.job.pk: s.warnings for s in submissions}})
    return [dict(row) for row in serializer.data]


def error_of(answer: Answer) -> Mapping[str, Any]:
    """The error that a submission is refused with, as REST shows it: code, detail and, for a wrong job, messages by field."""
    if isinstance(answer, JobInvalid):
        return {"code": "invalid", "detail": str(answer), "fields": answer.fields}
    return {"code": "conflict", "detail": str(answer)}
