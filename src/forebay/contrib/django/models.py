"""No tables: only the permission `forebay.view_dashboard`, and the entry in the admin."""

from django.db import models


class Dashboard(models.Model):
    """The dashboard, as the admin lists it."""

    class Meta:
        managed = False
        default_permissions = ("view",)
        verbose_name = "dashboard"
        verbose_name_plural = "dashboard"
