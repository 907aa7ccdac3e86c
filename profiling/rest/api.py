"""REST: what is known of kinds."""

from __future__ import annotations

from django.contrib.auth.models import AnonymousUser, User
from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import NotFound
from rest_framework.permissions import IsAdminUser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.web.rest.defaults import BoundedPagination
from jobs.models import Kind
from profiling import services
from profiling.pages.rows import KindRow, table_of, visible_kinds
from profiling.rest.serializers import KindSerializer


class KindList(APIView):
    """Kinds, the newest first."""

    pagination_class = BoundedPagination

    @extend_schema(operation_id="kinds_list", responses=KindSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Kinds of the jobs you may see: what is known, its source, and the errors of estimates."""
        paginator = self.pagination_class()
        page = paginator.paginate_queryset(visible_kinds(request.user), request, view=self) or []
        return paginator.get_paginated_response(
            [KindSerializer(row).data for row in table_of(request.user, page).kinds]
        )


class KindDetail(APIView):
    """One kind."""

    @extend_schema(operation_id="kinds_retrieve", responses=KindSerializer)
    def get(self, request: Request, pk: int) -> Response:
        """The kind, if it is one of a job you may see."""
        return Response(KindSerializer(_row(request.user, pk)).data)


class KindForget(APIView):
    """Have a kind measured anew."""

    permission_classes = [IsAdminUser]

    @extend_schema(operation_id="kinds_forget", request=None, responses=KindSerializer)
    def post(self, request: Request, pk: int) -> Response:
        """Operators: keep its numbers as estimates until they have been measured again."""
        services.forget(_kind(request.user, pk))
        return Response(KindSerializer(_row(request.user, pk)).data)


def _kind(user: User | AnonymousUser, pk: int) -> Kind:
    kind = visible_kinds(user).filter(pk=pk).first()
    if kind is None:
        raise NotFound(f"there is no kind {pk}, or none of its jobs is one you may see")
    return kind


def _row(user: User | AnonymousUser, pk: int) -> KindRow:
    return table_of(user, [_kind(user, pk)]).kinds[0]
