"""A page of a long list, by whatever an address says."""

from __future__ import annotations

from typing import TypeVar

from django.core.paginator import Page, Paginator

T = TypeVar("T")


def page_of(paginator: Paginator[T], number: object) -> Page[T]:
    """The page of that number; the first if it is none, the last if it is too large."""
    return paginator.get_page(str(number))
