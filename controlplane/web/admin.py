"""Administration of users, groups and tokens; it also audits the pages of libraries."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from knox.models import AuthToken

from controlplane.web.credentials.passwords import make_one_time
from controlplane.web.credentials.tokens import end_tokens

if TYPE_CHECKING:

    class _Styled:
        pass

    class _DjangoUserAdmin(DjangoUserAdmin[User]):
        pass

    class _ModelAdmin(admin.ModelAdmin[AuthToken]):
        pass
else:
    _DjangoUserAdmin = DjangoUserAdmin
    from unfold.admin import ModelAdmin as _ModelAdmin
    from unfold.admin import ModelAdmin as _Styled
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from controlplane.web.pages.admin_audit import AuditedAdmin

admin.site.unregister(User)
admin.site.unregister(Group)
admin.site.unregister(AuthToken)


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
        """Set another user's password, for one login; one's own has a page of its own."""
        user = self.get_object(request, unquote(id))
        if user == request.user:
            return redirect("password")
        response = super().user_change_password(request, id, form_url)
        is_set = response.status_code == 302 and response["Location"] != request.get_full_path()
        if is_set and user:
            make_one_time(user)
        return response


@admin.register(Group)
class GroupAdmin(AuditedAdmin, DjangoGroupAdmin, _Styled):
    """Groups of permissions."""


@admin.register(AuthToken)
class TokenAdmin(AuditedAdmin, _ModelAdmin):
    """API tokens, which only end here: REST issues them with a scope and an end."""

    list_display = fields = ("token_key", "user", "created", "expiry")
    list_select_related = ("user",)
    search_fields = ("token_key", "user__username")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def delete_model(self, request: HttpRequest, obj: Model) -> None:
        end_tokens(AuthToken.objects.filter(pk=obj.pk))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[AuthToken]) -> None:
        end_tokens(queryset)


def audit_pages_of_libraries() -> None:
    """Audit changes on the pages of other applications, such as periodic tasks.

    Actions of these pages, such as to run a task with any arguments, are not audited: they are
    removed.
    """
    for model, page in list(admin.site._registry.items()):
        if isinstance(page, AuditedAdmin):
            continue
        page_class = type(page)
        bases = (AuditedAdmin, page_class)
        admin.site.unregister(model)
        admin.site.register(model, type(page_class.__name__, bases, {"actions": ()}))


audit_pages_of_libraries()
