"""Base of REST views, which refuses calls with parameters or fields that it does not read.

The known parameters are those of the OpenAPI document, so that each one that works is documented.
"""

from collections.abc import Collection
from typing import Any

import django_filters
from django import forms
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter
from rest_framework.exceptions import ValidationError
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.views import APIView

PAGES = ("limit", "offset")
"""Parameters of all lists with pages."""

FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class StrictView(APIView):
    """Mixin that refuses unknown query parameters, and bodies of calls that take none."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Check the call once its caller is known and allowed to make it."""
        super().initial(request, *args, **kwargs)
        handler = getattr(self, str(request.method).lower(), None)
        if handler is None:
            return  # 405 follows

        # 1. Query parameters.
        known = query_names(self, request)
        problem = f"is no parameter of this call; it takes {', '.join(known) or 'none'}"
        unknown = {name: [problem] for name in request.query_params if name not in known}
        if unknown:
            raise ValidationError(unknown)

        # No row has a text with NUL, and PostgreSQL would fail on a query for it.
        with_nul = [name for name, text in request.query_params.items() if "\0" in text]
        if with_nul:
            raise ValidationError({name: ["holds the character NUL"] for name in with_nul})

        # 2. The body of a call that changes something, but takes none.
        if request.method in SAFE_METHODS or takes_body(self, request):
            return
        if request.data:
            names = list(request.data) if isinstance(request.data, dict) else ["request"]
            raise ValidationError({str(name): ["is not read: leave it out"] for name in names})


def query_names(view: APIView, request: Request) -> list[str]:
    """Return the names of a call's query parameters, in order."""
    # 1. Parameters that `extend_schema` documents: single ones, and fields of serializers.
    names: list[str] = []
    parameters: list[Any] = list(_schema(view, request).get_override_parameters())
    for parameter in parameters:
        if not isinstance(parameter, OpenApiParameter):
            names += parameter().fields
        elif parameter.location == OpenApiParameter.QUERY:
            names.append(parameter.name)

    # 2. Filters and pages of a list; a view without actions is one.
    is_list = request.method in SAFE_METHODS and getattr(view, "action", "list") != "retrieve"
    if is_list and getattr(view, "filterset_class", None) is not None:
        names += view.filterset_class.base_filters  # type: ignore[attr-defined]  # of GenericViewSet
    if is_list and getattr(view, "pagination_class", None) is not None:
        names += PAGES
    return sorted(set(names))


def takes_body(view: APIView, request: Request) -> bool:
    """Return True for a call that is documented with a body."""
    if request.method not in ("POST", "PUT", "PATCH"):
        return False
    return _schema(view, request).get_request_serializer() is not None


def _schema(view: APIView, request: Request) -> AutoSchema:
    """Return the description of a call, which `extend_schema` attaches to its method."""
    handler = getattr(view, str(request.method).lower())
    schema_class = getattr(handler, "kwargs", {}).get("schema", AutoSchema)
    schema: AutoSchema = schema_class()
    schema.view = view
    schema.method = str(request.method)
    return schema


def read_flag(text: str) -> bool:
    """Return the value of a flag in a query. Raises ValueError if it is not true or false."""
    if text.lower() not in FLAGS:
        raise ValueError("must be true or false")
    return FLAGS[text.lower()]


def flag_of(request: Request, name: str) -> bool:
    """Return a flag of the query, False if it is left out. Raises ValidationError."""
    try:
        return read_flag(request.query_params.get(name, "false"))
    except ValueError as error:
        raise ValidationError({name: [str(error)]}) from None


def choice_of(request: Request, name: str, choices: Collection[str]) -> str | None:
    """Return a parameter that must be one of `choices`, None if it is left out.

    Raises ValidationError.
    """
    word = request.query_params.get(name)
    if word is not None and word not in choices:
        raise ValidationError({name: [f"must be one of {', '.join(choices)}"]})
    return word


class _FlagField(forms.Field):
    """Form field of a flag, which refuses other words than those of FLAGS, unlike Django's."""

    def to_python(self, value: str | None) -> bool | None:
        if value is None:
            return None
        try:
            return read_flag(value)
        except ValueError as error:
            raise forms.ValidationError(str(error)) from None


class FlagFilter(django_filters.BooleanFilter):  # type: ignore[misc]  # the library has no types
    """Filter by a flag of the query."""

    field_class = _FlagField
