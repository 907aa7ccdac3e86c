from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User
from django.http import HttpRequest, HttpResponse

from controlplane.web.credentials.passwords import make_one_time

if TYPE_CHECKING:

    class _Styled:
        pass

    class _DjangoUserAdmin(DjangoUserAdmin[User]):
        pass
else:
    _DjangoUserAdmin = DjangoUserAdmin
    from unfold.admin import ModelAdmin as _Styled
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from controlplane.web.pages.admin_audit import AuditedAdmin

admin.site.unregister(User)
admin.site.unregister(Group)


@admin.register(User)
class UserAdmin(AuditedAdmin, _DjangoUserAdmin, _Styled):
    """Users; operators without Django's permission cannot make operators."""

    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        if not change:
            make_one_time(obj)

    def user_change_password(
        self,
        request: HttpRequest,
        id: str,  # noqa: A002  # Django's name
        form_url: str = "",
    ) -> HttpResponse:
        """Set a password; one that somebody else has set is for one login."""
        answer = super().user_change_password(request, id, form_url)
        done = answer.status_code == 302 and answer["Location"] != request.get_full_path()
        if done and (user := self.get_object(request, id)) and user != request.user:
            make_one_time(user)
        return answer


@admin.register(Group)
class GroupAdmin(AuditedAdmin, DjangoGroupAdmin, _Styled):
    """Groups of permissions."""


def audit_pages_of_libraries() -> None:
    """Audit what the pages of other applications change, such as tokens and periodic tasks."""
    for model, page in list(admin.site._registry.items()):
        if not isinstance(page, AuditedAdmin):
            kind = type(page)
            admin.site.unregister(model)
            admin.site.register(model, type(kind.__name__, (AuditedAdmin, kind), {}))


audit_pages_of_libraries()
