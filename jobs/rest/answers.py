"""What submissions are answered with, many at once in a constant number of queries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from django.db.models import prefetch_related_objects
from rest_framework.fields import Field, SerializerMethodField
from rest_framework.relations import RelatedField

from jobs.models import Job
from jobs.rest.serializers import SubmissionSerializer
from jobs.submission.submit import Answer, Submission
from jobs.submission.validation import JobInvalid


def bodies(submissions: Sequence[Submission]) -> list[dict[str, Any]]:
    """Answers for jobs just created, from memory: they have no placement yet."""
    prefetch_related_objects([s.job for s in submissions if s.dependencies is None], "dependencies")
    context = {
        "warnings_of": {s.job.pk: s.warnings for s in submissions},
        "dependencies_of": {s.job.pk: s.dependencies for s in submissions},
    }
    return _rows(SubmissionSerializer(context=context), (s.job for s in submissions))


def _rows(serializer: SubmissionSerializer, jobs: Iterable[Job]) -> list[dict[str, Any]]:
    """`serializer.data` of many jobs at half the CPU time: fields are resolved once for all."""
    shown = [
        (name, _reader(field), field.to_representation)
        for name, field in serializer.fields.items()
        if not field.write_only
    ]
    rows = []
    for job in jobs:
        values = ((name, read(job), shape) for name, read, shape in shown)
        rows.append(
            {name: None if value is None else shape(value) for name, value, shape in values}
        )
    return rows


def _reader(field: Field[Any, Any, Any, Any]) -> Callable[[Job], Any]:
    if isinstance(field, RelatedField | SerializerMethodField):
        return field.get_attribute
    read = attrgetter(".".join(field.source_attrs))
    return (lambda job: read(job)()) if field.source_attrs[-1] == "__str__" else read


def error_of(answer: Answer) -> Mapping[str, Any]:
    """The error of a refused submission as REST shows it: code, detail, messages by field."""
    if isinstance(answer, JobInvalid):
        return {"code": "invalid", "detail": str(answer), "fields": answer.fields}
    return {"code": "conflict", "detail": str(answer)}
