"""REST of job arrays."""

from typing import Any, cast
from uuid import UUID

from django.contrib.auth.models import User
from django.http import Http404
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.web.models import Scope
from controlplane.web.rest.errors import ConflictError
from controlplane.web.rest.strict import StrictView
from jobs.arrays.actions import ACTIONS, array_act
from jobs.arrays.selectors import get_array, states_of
from jobs.models import JobArray
from jobs.submission.refusals import JobConflict


class ArraySerializer(serializers.ModelSerializer[JobArray]):
    """An array: its indices, and how many elements are in which state."""

    name = serializers.SerializerMethodField()
    states = serializers.SerializerMethodField()

    class Meta:
        model = JobArray
        fields = ["id", "number", "name", "indices", "at_once", "size", "submitted_at", "states"]

    def get_name(self, array: JobArray) -> str:
        """Name of the elements, without an index."""
        return str(array.jobs.values_list("name", flat=True)[0])

    def get_states(self, array: JobArray) -> dict[str, int]:
        """Numbers of elements by state; states without any are left out."""
        return dict(states_of([array.pk]).get(array.pk, {}))


class ArrayActionSerializer(ArraySerializer):
    """The array after an action, and the number of elements that it reached."""

    changed = serializers.SerializerMethodField()

    class Meta(ArraySerializer.Meta):
        fields = [*ArraySerializer.Meta.fields, "changed"]

    def get_changed(self, array: JobArray) -> int:
        """Elements that the action reached."""
        return int(self.context["changed"])


class ArrayView(StrictView):
    """An array of a team of the caller's; operators see all."""

    @extend_schema(operation_id="arrays_retrieve", responses=ArraySerializer)
    def get(self, request: Request, array_id: UUID) -> Response:
        """One array; its elements are GET jobs/?array=ID."""
        return Response(ArraySerializer(get_array(request.user, array_id)).data)


class ArrayActionView(StrictView):
    """Actions on all elements of an array."""

    write_scope = Scope.SUBMIT

    @extend_schema(
        operation_id="arrays_act",
        request=None,
        responses=ArrayActionSerializer,
        parameters=[
            OpenApiParameter("verb", str, OpenApiParameter.PATH, enum=list(ACTIONS), required=True)
        ],
    )
    def post(self, request: Request, array_id: UUID, verb: str) -> Response:
        """Cancel, hold, release or requeue the elements that allow it."""
        if verb not in ACTIONS:
            raise Http404(f"there is no action {verb}; there are {', '.join(ACTIONS)}")
        array = get_array(request.user, array_id)
        try:
            changed = array_act(verb, array, cast(User, request.user))
        except JobConflict as error:
            raise ConflictError(str(error)) from None
        context: dict[str, Any] = {"changed": changed}
        return Response(ArrayActionSerializer(array, context=context).data)
