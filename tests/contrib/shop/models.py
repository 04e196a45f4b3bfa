"""What a web application writes."""

from django.db import models


class Order(models.Model):
    item = models.CharField(max_length=100)
    details = models.JSONField(default=dict)

    class Meta:
        app_label = "shop"
