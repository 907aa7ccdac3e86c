"""The administration's addresses and forms, as a browser would use them."""

from typing import Any

from django.test import Client
from django.urls import reverse


def admin_path(model: type[Any], what: str, *args: object) -> str:
    """The address of a model's list, form or history."""
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{what}", args=args)


def change_form(client: Client, url: str) -> dict[str, Any]:
    """What the page's form would send if nothing were changed."""
    answer = client.get(url)
    assert answer.status_code == 200
    main = answer.context["adminform"].form
    values: dict[str, Any] = {name: main[name].value() for name in main.fields}
    values |= {
        main[name].html_initial_name: main[name].value()
        for name in main.fields
        if main.fields[name].show_hidden_initial
    }
    for inline in answer.context["inline_admin_formsets"]:
        management = inline.formset.management_form
        values |= {
            management.add_prefix(name): management.initial[name]
            for name in management.fields
            if name in management.initial
        }
        for row in inline.formset.forms:
            values |= {row.add_prefix(name): row[name].value() for name in row.fields}
    return {
        name: "" if value is None else value for name, value in values.items() if value is not False
    }
