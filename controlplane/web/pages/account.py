"""Pages of a person's own account."""

from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.forms import PasswordChangeForm
from django.contrib.auth.models import User
from django.contrib.auth.views import PasswordChangeView
from django.contrib.messages.views import SuccessMessageMixin
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse_lazy
from django.views.decorators.http import require_GET, require_POST

from controlplane.audit.record import record
from controlplane.web.credentials.passwords import SESSION_KEY, check_new
from controlplane.web.credentials.tokens import end_tokens, last_used_at, scope_of, tokens_of


class NewPassword(PasswordChangeForm):
    """Form of the old password, and twice the new one."""

    def validate_password_for_user(self, user: User, field: str = "new_password2") -> None:
        """Add an error if the new password is too weak, or the old one."""
        old_password = self.cleaned_data.get("old_password")
        new_password = self.cleaned_data.get(field)
        if not old_password or not new_password:
            return
        try:
            check_new(user, old_password, new_password)
        except ValidationError as error:
            self.add_error(field, error)


class ChangePassword(
    SuccessMessageMixin,  # type: ignore[type-arg]  # generic in stubs only
    PasswordChangeView,
):
    """Page on which people change their own password."""

    form_class = NewPassword
    template_name = "registration/password.html"
    success_url = reverse_lazy("queue")
    success_message = "Your password is changed. Your API tokens have ended."

    @transaction.atomic
    def form_valid(self, form: PasswordChangeForm) -> HttpResponse:
        self.request.session.pop(SESSION_KEY, None)
        record("person.password", form.user)
        return super().form_valid(form)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        one_time = self.request.session.get(SESSION_KEY, False)
        return super().get_context_data(one_time=one_time, **kwargs)


@require_GET
def tokens_page(request: HttpRequest) -> HttpResponse:
    """Page of the person's API tokens, with scope, end and last use."""
    tokens = []
    for token in tokens_of(cast(User, request.user)):
        tokens.append((token, scope_of(token), last_used_at(token)))
    return render(request, "registration/tokens.html", {"tokens": tokens})


@require_POST
def revoke_token(request: HttpRequest, key: str) -> HttpResponse:
    """End one of the person's tokens."""
    if not end_tokens(tokens_of(cast(User, request.user)).filter(token_key=key)):
        raise Http404("you have no such token")
    messages.success(request, f"The token {key} has ended.")
    return redirect("tokens_page")
