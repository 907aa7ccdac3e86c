from typing import TYPE_CHECKING

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User

if TYPE_CHECKING:

    class _Styled:
        pass

    class _DjangoUserAdmin(DjangoUserAdmin[User]):
        pass
else:
    _DjangoUserAdmin = DjangoUserAdmin
    from unfold.admin import ModelAdmin as _Styled
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

admin.site.unregister(User)
admin.site.unregister(Group)


@admin.register(User)
class UserAdmin(_DjangoUserAdmin, _Styled):
    """Users; operators without Django's permission cannot make operators."""

    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm


@admin.register(Group)
class GroupAdmin(DjangoGroupAdmin, _Styled):
    """Groups of permissions."""
