"""Page of a person's own account."""

from django.contrib.auth.views import PasswordChangeView
from django.contrib.messages.views import SuccessMessageMixin
from django.urls import reverse_lazy


class ChangePassword(
    SuccessMessageMixin,  # type: ignore[type-arg]  # generic in stubs only
    PasswordChangeView,
):
    template_name = "registration/password.html"
    success_url = reverse_lazy("queue")
    success_message = "Your password is changed."
