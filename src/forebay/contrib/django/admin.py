"""The link from the admin to the dashboard, for users with the permission `forebay.view_dashboard`."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from forebay.contrib.django.config import config
from forebay.contrib.django.models import Dashboard


@admin.register(Dashboard)
class DashboardAdmin(admin.ModelAdmin):
    """Shown where FOREBAY['DASHBOARD_URL'] is set."""

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        if not self.has_view_permission(request):
            return super().changelist_view(request, extra_context)
        return HttpResponseRedirect(config().DASHBOARD_URL or "")

    def has_view_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return config().DASHBOARD_URL is not None and request.user.has_perm("forebay.view_dashboard")

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False
